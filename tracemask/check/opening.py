"""From what the caller gives (paths, datasets, names) to rows, tokenizer and template. Knows no rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemask.check.config import Settings
from tracemask.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from tracemask.render.template import Template
    from tracemask.render.tokenizer import Tokenizer
    from tracemask.store.row import Row

_AS_FINDINGS = frozenset({"TM506", "TM508"})  # what a rule states about files, not a reason to give up


def open_given(dataset: Any, settings: Settings) -> Any:
    """The dataset behind a path or paths; the StoreError that a rule states; anything else as it is."""
    paths = [dataset] if isinstance(dataset, (str, PathLike)) else dataset
    if isinstance(paths, list) and paths and all(isinstance(path, (str, PathLike)) for path in paths):
        for path in paths:
            if Path(path).is_file() and not Path(path).stat().st_size:
                raise UsageError("TM904", where=str(path), what="the file is empty", fix="give a dataset with rows")
        from tracemask.store.opening import open_named

        try:
            return open_named(dataset, columns=settings.columns)
        except StoreError as error:
            if error.code in _AS_FINDINGS:
                return error
            raise
    return dataset


def path_of(dataset: Any) -> str:
    """What a report names as its dataset: an open one, a path or paths."""
    paths = [dataset] if isinstance(dataset, (str, PathLike)) else getattr(dataset, "paths", dataset)
    named = isinstance(paths, (list, tuple)) and all(isinstance(path, (str, PathLike)) for path in paths)
    return ", ".join(map(str, paths)) if named else ""


def rows_of(dataset: Any, bad_row: Callable[[StoreError, int], None]) -> Iterator[tuple[Row, str]]:
    """The rows of a dataset or an iterable, with their shard; a row that cannot be read is told and left out."""
    sources = getattr(dataset, "sources", None)
    if sources is None:
        for row in dataset:
            yield row, ""
        return
    index = 0
    for source in sources:
        for i in range(source.rows):
            try:
                row = source.row(i, index=index)
            except StoreError as error:
                bad_row(error, index)
            else:
                yield row, source.where
            index += 1


def load_tokenizer(tokenizer: Any) -> Tokenizer | None:
    """A path becomes a Tokenizer, anything else is one."""
    if not isinstance(tokenizer, str) and not hasattr(tokenizer, "__fspath__"):
        return tokenizer
    from tracemask.render.tokenizer import Tokenizer

    return Tokenizer.load(tokenizer)


def load_template(template: Any, tokenizer: Tokenizer | None, date: str | None = None) -> Template | None:
    """Jinja source becomes a Template that prints `date` (ISO); none given: the tokenizer's own."""
    if template is None and tokenizer is not None:
        template = tokenizer.chat_template
    if not isinstance(template, str):
        return template
    from tracemask.render.template import Template, day_of

    strings = tokenizer.token_strings if tokenizer is not None else {}
    return Template(template, tokens=strings, date=day_of(date))
