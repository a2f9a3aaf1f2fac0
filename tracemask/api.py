"""The few public verbs, composed from the rooms. Each imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracemask.check.runner import Report
    from tracemask.loss.batch import Batch
    from tracemask.recipe import Recipe
    from tracemask.store.reader import Dataset
    from tracemask.trace import Trace


def open_dataset(path: Any, *, columns: Mapping[str, str] | Sequence[str] | None = None) -> Dataset:
    """Our shards, or another tool's dataset (`columns={"ids": …, "mask": …}`). See tracemask.store.reader."""
    from tracemask.store.opening import open_named
    from tracemask.store.reader import open_dataset

    if columns is None or isinstance(columns, Mapping):
        return open_named(path, columns=columns)
    return open_dataset(path, columns=columns)


def check_dataset(dataset: Any, **options: Any) -> Report:
    """Run the lint rules over a dataset or its path. See tracemask.check.runner."""
    from tracemask.check.runner import check_dataset

    return check_dataset(dataset, **options)


def prepare(source: Iterable[Trace] | Dataset | str, recipe: Recipe | str, **options: Any) -> Iterator[Batch]:
    """Batches ready for `loss.from_hidden`, from traces or a dataset, without files. See tracemask.train.loader."""
    from tracemask.train.loader import prepare

    return prepare(source, recipe, **options)
