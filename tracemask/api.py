"""The few public verbs, composed from the rooms. Each imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracemask.check.runner import Report
    from tracemask.loss.batch import Batch
    from tracemask.recipe import Recipe
    from tracemask.store.reader import Dataset
    from tracemask.trace import Trace


def open_dataset(path: Any, **options: Any) -> Dataset:
    """Our shards, or another tool's dataset (`columns={"ids": …, "mask": …}`). See tracemask.store.reader."""
    from tracemask.store.reader import open_dataset

    return open_dataset(path, **options)


def check_dataset(dataset: Any, **options: Any) -> Report:
    """Run the lint rules over a dataset or its path. See tracemask.check.runner."""
    from tracemask.check.runner import check_dataset

    return check_dataset(dataset, **options)


def prepare(source: Iterable[Trace] | Dataset | str, recipe: Recipe | str, **options: Any) -> Iterator[Batch]:
    """Batches ready for `loss.from_hidden`, from traces or a dataset, without files. See tracemask.train.loader."""
    from tracemask.train.loader import prepare

    return prepare(source, recipe, **options)
