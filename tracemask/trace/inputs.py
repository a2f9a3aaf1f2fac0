"""Which files an input names, how each is laid out, and its records one by one. Knows no format's fields."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from tracemask.core.errors import TraceError, UsageError
from tracemask.trace.parse import loads_with_route, replace_surrogates

_BUFFER = 1 << 20
_PARQUET_BATCH = 256
_BOM = b"\xef\xbb\xbf"


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
class Record:
    """One decoded record. `line` is 1-based (a physical line, a list element or a row); `value` is None on error.

    replaced: field paths in which a lone surrogate became U+FFFD.
    """

    index: int
    line: int
    value: Any = None
    error: TraceError | None = None
    replaced: list[str] = field(default_factory=list)


def find_files(paths: str | os.PathLike[str] | list[str | os.PathLike[str]]) -> list[InputFile]:
    """The files that a path, directory, glob or list of these names, in a fixed order, without formats.

    In a directory, files whose names no log has are passed over. Raises UsageError TM901, TM904.
    """
    out: list[InputFile] = []
    for path in paths if isinstance(paths, list) else [paths]:
        out.extend(_expand(os.fspath(path)))
    if not out:
        raise UsageError("TM904", where=str(paths), what="no log files", fix=f"expected {', '.join(_SUFFIXES)}")
    seen: dict[str, str] = {}
    for file in out:
        if seen.setdefault(file.rel, file.path) != file.path:
            raise UsageError(
                "TM900",
                where=file.path,
                what=f"two inputs are both {file.rel!r} below their roots",
                fix="pass their common folder",
            )
    return out


def _expand(path: str) -> list[InputFile]:
    local = Path(path)
    if local.is_dir():
        return _folder(local)
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


def _folder(root: Path) -> list[InputFile]:
    out: list[InputFile] = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        here = Path(folder)
        if here.name == "events" and any(name.endswith(".json") for name in names):
            rel = here.relative_to(root).as_posix()
            out.append(InputFile(str(here), root.name if rel == "." else rel, Layout.FOLDER))
            folders.clear()
            continue
        for name in names:
            layout = Layout.of(name)
            if layout is not None and not name.startswith("."):
                out.append(InputFile(str(here / name), (here / name).relative_to(root).as_posix(), layout))
    return sorted(out, key=lambda file: PurePosixPath(file.rel).parts)


def _guess(path: str) -> Layout:
    """For an explicit file with a name of no kind: by its first bytes."""
    with open(path, "rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        return Layout.PARQUET
    return Layout.ARCHIVE if head == b"PK\x03\x04" else Layout.LINES


def open_bytes(path: str) -> IO[bytes]:
    """A file for reading, .gz and .zst decompressed while it is read. Raises UsageError TM901."""
    try:
        if path.endswith(".gz"):
            import gzip

            return cast("IO[bytes]", io.BufferedReader(gzip.open(path, "rb"), _BUFFER))  # pyright: ignore[reportArgumentType]
        if path.endswith(".zst"):
            import pyarrow as pa

            return cast("IO[bytes]", io.BufferedReader(pa.input_stream(path, compression="zstd"), _BUFFER))
        return open(path, "rb", buffering=_BUFFER)
    except OSError as error:
        raise UsageError("TM901", where=path, what=error.strerror or str(error)) from None


def lines_of(
    file: InputFile, start: int = 0, stop: int | None = None, *, offset: int = 0, line: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """(unit, 1-based line, bytes) of the non-blank lines [start, stop).

    offset, line: where unit `start` begins (its byte, the lines before it), as unit_ranges found; 0, 0: from the top.
    """
    unit = start if offset else 0
    with open_bytes(file.path) as handle:
        if offset:
            handle.seek(offset)
        for number, raw in enumerate(handle, line + 1):
            if raw.isspace():
                continue
            if unit >= start:
                if stop is not None and unit >= stop:
                    return
                yield unit, number, raw.removeprefix(_BOM) if number == 1 else raw
            unit += 1


def decode(raw: bytes, index: int, line: int, where: str) -> Record:
    """One JSON text as a Record; a fault is the record's error TM910, not an exception."""
    try:
        value, by_hand = loads_with_route(raw)
    except ValueError as error:
        return Record(
            index,
            line,
            error=TraceError(
                "TM910", where=f"{where}:{line}", what=f"invalid JSON: {error}", fix="repair or remove the line"
            ),
        )
    if by_hand:
        value, replaced = replace_surrogates(value)
        return Record(index, line, value, replaced=replaced)
    return Record(index, line, value)


def records(
    file: InputFile, start: int = 0, stop: int | None = None, *, offset: int = 0, line: int = 0
) -> Iterator[Record]:
    """The records [start, stop) of one file, one at a time; memory is that of one record (of the file: a document)."""
    if file.layout is Layout.LINES:
        for unit, number, raw in lines_of(file, start, stop, offset=offset, line=line):
            yield decode(raw, unit, number, file.rel)
    elif file.layout is Layout.PARQUET:
        yield from _rows(file, start, stop)
    elif file.layout is Layout.DOCUMENT:
        yield from document(file)[start:stop]


def document(file: InputFile) -> list[Record]:
    """The records of a JSON document: its elements where it is a list; JSON lines under a wrong name are lines."""
    with open_bytes(file.path) as handle:
        raw = handle.read().removeprefix(_BOM)
    whole = decode(raw, 0, 1, file.rel)
    if whole.error is not None:
        rows = [decode(line, 0, 1, file.rel) for line in raw.split(b"\n", 1)[:1]]
        if raw.count(b"\n") and rows[0].error is None:
            return list(records(InputFile(file.path, file.rel, Layout.LINES)))
        return [whole]
    if isinstance(whole.value, list):
        items = cast("list[Any]", whole.value)
        paths = [path.removeprefix(f"[{i}]").removeprefix(".") for path in whole.replaced for i in [_index(path)]]
        owner = [_index(path) for path in whole.replaced]
        return [
            Record(i, i + 1, item, replaced=[p for p, o in zip(paths, owner, strict=True) if o == i])
            for i, item in enumerate(items)
        ]
    return [whole]


def _index(path: str) -> int:
    return int(path[1 : path.index("]")])


def _rows(file: InputFile, start: int, stop: int | None) -> Iterator[Record]:
    """Rows of a Parquet file as dicts.

    Nulls that a struct column adds for absent keys are for the importer to strip.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(file.path)
        row = 0
        for batch in source.iter_batches(batch_size=_PARQUET_BATCH):
            if stop is not None and row >= stop:
                return
            if row + batch.num_rows > start:
                for value in batch.to_pylist():
                    if row >= start and (stop is None or row < stop):
                        yield Record(row, row + 1, value)
                    row += 1
            else:
                row += batch.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError("TM910", where=file.rel, what=f"not a readable Parquet file: {str(error)[:200]}") from None


def count_records(file: InputFile) -> int:
    """How many records the file holds, without decoding them (a document is decoded)."""
    if file.layout is Layout.LINES:
        return sum(1 for _ in lines_of(file))
    if file.layout is Layout.PARQUET:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(file.path).metadata.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise TraceError("TM910", where=file.rel, what=f"not a readable Parquet file: {str(error)[:200]}") from None
    return len(document(file))
