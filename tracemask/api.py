"""Public verbs that are composed of more than one module; the others live where they are made. Imports lazily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracemask.store.reader import Dataset


def open_dataset(path: Any, *, columns: Mapping[str, str] | Sequence[str] | None = None) -> Dataset:
    """Our shards, or another tool's dataset (`columns={"ids": …, "mask": …}`). See tracemask.store.reader."""
    from tracemask.store.opening import open_named
    from tracemask.store.reader import open_dataset

    if columns is None or isinstance(columns, Mapping):
        return open_named(path, columns=columns)
    return open_dataset(path, columns=columns)
