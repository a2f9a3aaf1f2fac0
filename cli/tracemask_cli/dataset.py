"""What the auditing verbs share: open a dataset with its tokenizer, find a row, lay a recipe's weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from tracemask.render.tokenizer import Tokenizer
    from tracemask.store.reader import Dataset
    from tracemask.store.row import Row

NUMBER = re.compile("-?[0-9]{1,18}")


def columns_option(text: str | None) -> dict[str, str] | None:
    """`ids=input_ids,mask=loss_mask` as a dict. Raises UsageError TM900."""
    from tracemask.core.errors import UsageError

    if not text:
        return None
    pairs = [[part.strip() for part in pair.split("=", 1)] for pair in text.split(",")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs) or len({pair[0] for pair in pairs}) < len(pairs):
        raise UsageError(
            "TM900",
            where="--columns",
            what=f"{text!r} is no list of name=column",
            fix="ids=input_ids,mask=m, each name once",
        )
    return {pair[0]: pair[1] for pair in pairs}


def opened(paths: str | list[str], *, columns: str | None = None) -> Dataset:
    """What a verb was pointed at, as one dataset. columns: the text of --columns."""
    from tracemask.store.opening import open_named

    return open_named(paths, columns=columns_option(columns))


def open_with_tokenizer(
    paths: str | list[str], *, tokenizer: str | None, columns: str | None = None
) -> tuple[Dataset, Tokenizer | None]:
    """The dataset, and its tokenizer if one was given. A tokenizer that did not write the shards is refused (TM506)."""
    from tracemask.core.errors import UsageError

    dataset = opened(paths, columns=columns)
    if tokenizer is None:
        return dataset, None
    from tracemask.render.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer)
    written: Any = dataset.metadata.get("tokenizer_sha256") if dataset.metadata else None
    if written and written != loaded.sha256:
        raise UsageError(
            "TM506",
            where=", ".join(dataset.paths),
            what=f"the shards were written with tokenizer {written[:12]}, {tokenizer} is {loaded.sha256[:12]}",
            fix="pass the tokenizer that converted them",
        )
    return dataset, loaded


def row_index(dataset: Dataset, text: str) -> int:
    """A row number, or the row whose id (or trace id) is `text`. Raises UsageError TM900."""
    from tracemask.core.errors import UsageError

    if NUMBER.fullmatch(text):
        index = int(text)
        index = index + len(dataset) if index < 0 else index
        if 0 <= index < len(dataset):
            return index
        raise UsageError("TM900", where=f"row {text}", what=f"the dataset has {len(dataset)} rows", fix="count from 0")
    scalars = dataset.scalars(["id", "trace_id"])
    for name in ("id", "trace_id"):
        if text in scalars.get(name, []):
            return scalars[name].index(text)
    raise UsageError(
        "TM900",
        where=f"row {text}",
        what="no row has this id or trace id",
        fix="give its number from 0, or an id as `tracemask show DATASET --row 0` prints it",
    )


def weigher(
    recipe: str | None, dataset: Dataset, tokenizer: Tokenizer | None
) -> Callable[[Row], dict[str, np.ndarray]]:
    """Row to weight streams: those of a recipe over the whole dataset, or (None) those that the rows store."""
    from tracemask.report.lanes import stored_weights

    if recipe is None:
        return stored_weights
    from tracemask.recipe import Recipe
    from tracemask.recipe.advantage import compute
    from tracemask.recipe.laying import Laying

    loaded = Recipe.load(recipe)
    advantages = compute(loaded, dataset.scalars(), rows=len(dataset))
    laying = Laying(loaded, dataset, advantages, token_bytes=None if tokenizer is None else tokenizer.id_bytes)
    return lambda row: laying.laid(row).weights
