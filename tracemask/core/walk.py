"""Walks a folder for files of some kinds, in a fixed order, and stops where it is plainly a folder of other things."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tracemask.core.errors import UsageError

MOST = 10_000  # other files that are passed over …
PER_HIT = 20  # … and beyond these, so many for each file that is looked for


def walk(root: str | Path, *, wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """(folder, folders in it, files in it) from `root` down, names sorted; the list of folders may be cut in place.

    Hidden ones, such as an editor's copies in .ipynb_checkpoints, are passed over unless `root` itself is one.
    UsageError TM905 where other files than `wanted` ones abound: a home folder, a checkout. OSError for a folder that
    cannot be read.
    """

    def unreadable(error: OSError) -> None:
        raise error

    hits = others = 0
    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:], names = sorted(filter(_shown, folders)), sorted(filter(_shown, names))
        found = sum(map(wanted, names))
        hits, others = hits + found, others + len(names) - found
        if others > max(MOST, PER_HIT * hits):
            what = f"{hits:,} of the first {hits + others:,} files have a name of a kind that is read here"
            raise UsageError("TM905", where=str(root), what=what, fix="name the folder or the files that are meant")
        yield Path(folder), folders, names


def _shown(name: str) -> bool:
    return not name.startswith(".")
