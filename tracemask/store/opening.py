"""Opens what a caller names: datasets by path or URL, or rows that come through a pipe. Knows no file format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tracemask.core.errors import StoreError, UsageError
from tracemask.store.fetch import Drained, drained
from tracemask.store.foreign import open_foreign
from tracemask.store.reader import Dataset, open_dataset

Named = str | os.PathLike[str]


def open_named(paths: Named | Sequence[Named], *, columns: Mapping[str, str] | None = None) -> Dataset:
    """The dataset at a path or URL, several of one kind as one, or JSON lines of token rows from "-" or another pipe.

    columns: our names to theirs, for other tools' data. UsageError TM900: a pipe beside other datasets. Everything else
    as `open_dataset`.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    with drained(given) as files:
        pipe = next((file for file in files if isinstance(file, Drained)), None)
        if pipe is None:
            return open_dataset(files, columns=columns or None)
        return _piped(pipe, columns or {}, alone=len(files) == 1)


def _piped(pipe: Drained, columns: Mapping[str, str], *, alone: bool) -> Dataset:
    """The rows of a drained pipe; they stay readable when its file is gone."""
    if not alone:
        what = "rows from a pipe beside other datasets"
        raise UsageError("TM900", where=pipe.shown, what=what, fix="write them to a file, and name that")
    if not os.path.getsize(pipe.path):
        raise StoreError("TM904", where=pipe.shown, what="nothing came through the pipe", fix="give JSON lines")
    return open_foreign(pipe.path, columns, shown=pipe.shown)
