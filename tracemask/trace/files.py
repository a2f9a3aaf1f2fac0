"""Which files an input names, and how each is laid out. Knows no format and opens no record."""

from __future__ import annotations

import glob
import os
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from tracemask.core.errors import TraceError, UsageError
from tracemask.core.walk import walk


class Layout(str, Enum):
    """How a file holds records."""

    LINES = "lines"  # one JSON value a line
    DOCUMENT = "document"  # one JSON value: a list of records, or one record
    PARQUET = "parquet"  # one record a row
    ARCHIVE = "archive"  # a zip
    FOLDER = "folder"  # one JSON file an event

    @classmethod
    def of(cls, path: str) -> Layout | None:
        """By the name of the file; None where the name is not one that logs have."""
        name = path.lower().removesuffix(".gz").removesuffix(".zst")
        for suffix, layout in _SUFFIXES.items():
            if name.endswith(suffix):
                return layout
        return None


_SUFFIXES = {
    ".jsonl": Layout.LINES,
    ".ndjson": Layout.LINES,
    ".json": Layout.DOCUMENT,
    ".traj": Layout.DOCUMENT,
    ".parquet": Layout.PARQUET,
    ".eval": Layout.ARCHIVE,
}


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of an input. `rel` is its path below the input root with "/", the only path that is ever stored."""

    path: str
    rel: str
    layout: Layout
    format: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files that an input names and nobody reads: those that no format fits, and in a directory those whose names no
    log has, counted by ending. Hidden files, and those in hidden folders, are neither."""

    unfit: list[str] = field(default_factory=list)
    other_names: Counter[str] = field(default_factory=Counter)

    @property
    def endings(self) -> list[str]:
        """The other names by ending, the most frequent first."""
        most = sorted(self.other_names.items(), key=lambda item: (-item[1], item[0]))
        return [f"{ending or 'no ending'} {n:,}" for ending, n in most]

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return {"unfit": self.unfit, "other_names": dict(sorted(self.other_names.items()))}

    def lines(self) -> list[str]:
        """For people: one line a kind, with what to do."""
        unfit, others = len(self.unfit), self.other_names.total()
        lines = [
            f"files that no format fits ({unfit:,}): {_some(self.unfit)}; --format NAME reads them all as that",
            f"files with a name that no log has ({others:,}): {_some(self.endings)}; name one itself to read it",
        ]
        return [line for line, count in zip(lines, (unfit, others), strict=True) if count]


_SHOWN = 5  # names or endings in a line


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


def find_files(
    paths: str | os.PathLike[str] | list[str | os.PathLike[str]], left_out: LeftOut | None = None
) -> list[InputFile]:
    """The files that a path, directory, glob or list of these names, in a fixed order, without formats.

    In a directory, files whose names no log has are passed over, and counted in `left_out`. Raises UsageError TM901,
    TM904, TM905.
    """
    out: list[InputFile] = []
    left_out = left_out or LeftOut()
    given = [os.fspath(path) for path in (paths if isinstance(paths, list) else [paths])]
    for path in given:
        out.extend(_expand(path, left_out))
    if not out:
        there = _some(left_out.endings) or "nothing"
        what = f"no log files; there: {there}"
        raise UsageError("TM904", where=", ".join(given), what=what, fix=f"expected {', '.join(_SUFFIXES)}")
    seen: dict[str, str] = {}
    for file in out:
        if file.rel in seen:
            what, fix = f"two inputs are both {file.rel!r} below their roots", "pass their common folder"
            if os.path.samefile(seen[file.rel], file.path):
                what, fix = "this input is given twice", "name it once: its traces would count twice"
            raise UsageError("TM900", where=file.path, what=what, fix=fix)
        seen[file.rel] = file.path
    return out


def _expand(path: str, left_out: LeftOut) -> list[InputFile]:
    local = Path(path)
    if local.is_dir():
        return _folder(local, left_out)
    if local.exists():
        return [InputFile(path, local.name, Layout.of(path) or _guess(path))]
    if glob.has_magic(path):
        root = Path(os.path.commonpath([path, path.split("*")[0].split("?")[0].split("[")[0] or "."]))
        found = sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())
        if found:
            return [InputFile(name, _relative(name, root), Layout.of(name) or _guess(name)) for name in found]
    raise UsageError("TM901", where=path, what="no such file or directory")


def _relative(name: str, root: Path) -> str:
    while not root.is_dir():
        root = root.parent
    return Path(name).relative_to(root).as_posix()


def _folder(root: Path, left_out: LeftOut) -> list[InputFile]:
    out: list[InputFile] = []
    for here, folders, names in walk(root, wanted=lambda name: Layout.of(name) is not None):
        if here.name == "events" and any(name.endswith(".json") for name in names):
            rel = here.relative_to(root).as_posix()
            out.append(InputFile(str(here), root.name if rel == "." else rel, Layout.FOLDER))
            folders.clear()
            continue
        for name in names:
            layout = Layout.of(name)
            if layout is None:
                left_out.other_names[Path(name).suffix.lower()] += 1
            else:
                out.append(InputFile(str(here / name), (here / name).relative_to(root).as_posix(), layout))
    return sorted(out, key=lambda file: PurePosixPath(file.rel).parts)


READERS = "check, show, stats, report and train"  # of rows of token ids


def _guess(path: str) -> Layout:
    """For an explicit file with a name of no kind: by its first bytes.

    TraceError TM912 for an Arrow file, and for a pickle, torch's too.
    """
    with open(path, "rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        return Layout.PARQUET
    if head == b"ARRO":
        fix = f"{READERS} read rows of token ids as they are"
        raise TraceError("TM912", where=path, what="an Arrow file, which is no log", fix=fix)
    archive = head == b"PK\x03\x04" and zipfile.is_zipfile(path)
    if head[:1] == b"\x80" or (archive and any(name.endswith("data.pkl") for name in zipfile.ZipFile(path).namelist())):
        fix = "where it was written, torch.load it and json.dumps one sample a line (docs/howto/traces.md)"
        raise TraceError(
            "TM912", where=path, what="a pickle, which runs code when it is read: never read here", fix=fix
        )
    return Layout.ARCHIVE if archive else Layout.LINES
