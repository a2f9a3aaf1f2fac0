"""Walks a folder for files of some kinds, in a fixed order, and stops where it is plainly a folder of other things."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tracemask.core.errors import UsageError

MOST = 10_000  # other files that are passed over …
PER_HIT = 20  # … and beyond these, so many for each file that is looked for

Entry = tuple[str, list[str], list[str]]
"""A folder, the folders in it and the files in it, as os.walk gives them; who cuts the middle list is not led there."""


def walk(root: str | Path, *, wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`bounded` over a folder of this machine. OSError for a folder that cannot be read."""

    def unreadable(error: OSError) -> None:
        raise error

    for folder, folders, names in bounded(os.walk(root, onerror=unreadable), wanted=wanted, where=str(root)):
        yield Path(folder), folders, names


def bounded(entries: Iterable[Entry], *, wanted: Callable[[str], bool], where: str) -> Iterator[Entry]:
    """`entries`, which go from `where` down, with names sorted; the list of folders may be cut in place.

    Hidden ones, such as an editor's copies in .ipynb_checkpoints, are passed over unless `where` itself is one.
    UsageError TM905 where other files than `wanted` ones abound: a home folder, a checkout, a bucket of models.
    """
    hits = others = 0
    for folder, folders, names in entries:
        folders[:], names = sorted(filter(_shown, folders)), sorted(filter(_shown, names))
        found = sum(map(wanted, names))
        hits, others = hits + found, others + len(names) - found
        if others > max(MOST, PER_HIT * hits):
            what = f"{hits:,} of the first {hits + others:,} files have a name of a kind that is read here"
            raise UsageError("TM905", where=where, what=what, fix="name the folder or the files that are meant")
        yield folder, folders, names


def _shown(name: str) -> bool:
    return not name.startswith(".")
