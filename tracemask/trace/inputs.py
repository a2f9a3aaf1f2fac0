"""The records of a file, one by one, each with its place or its error. Knows no format's fields."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.files import InputFile, Layout
from tracemask.trace.parse import loads_with_route, replace_surrogates
from tracemask.trace.streams import damaged, lines_of, whole

_PARQUET_BATCH = 256
_NOT_JSON = ("binary", "timestamp", "date", "time", "duration", "decimal", "map")


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
        for unit, number, raw in lines_of(file.path, file.rel, start, stop, offset=offset, line=line):
            yield decode(raw, unit, number, file.rel) if isinstance(raw, bytes) else Record(unit, number, error=raw)
    elif file.layout is Layout.PARQUET:
        yield from _rows(file, start, stop)
    elif file.layout is Layout.DOCUMENT:
        yield from document(file)[start:stop]


def document(file: InputFile) -> list[Record]:
    """The records of a JSON document: its elements where it is a list; JSON lines under a wrong name are lines."""
    raw = whole(file.path, file.rel)
    if not isinstance(raw, bytes):
        return [Record(0, 1, error=raw)]
    found = decode(raw, 0, 1, file.rel)
    if found.error is not None:
        rows = [decode(line, 0, 1, file.rel) for line in raw.split(b"\n", 1)[:1]]
        if raw.count(b"\n") and rows[0].error is None:
            return list(records(InputFile(file.path, file.rel, Layout.LINES)))
        return [found]
    if isinstance(found.value, list):
        items = cast("list[Any]", found.value)
        replaced: dict[int, list[str]] = {}
        for path in found.replaced:  # "[7].messages[0].content"
            index, _, inner = path[1:].partition("]")
            replaced.setdefault(int(index), []).append(inner.removeprefix("."))
        return [Record(i, i + 1, item, replaced=replaced.get(i, [])) for i, item in enumerate(items)]
    return [found]


def _rows(file: InputFile, start: int, stop: int | None) -> Iterator[Record]:
    """Rows of a Parquet file as dicts; from damage on, each row is an error.

    Nulls that a struct column adds for absent keys are for the importer to strip.
    """
    source = _parquet(file)
    odd = any(word in str(source.schema_arrow) for word in _NOT_JSON)
    count, row = source.metadata.num_rows, 0
    end = count if stop is None else min(stop, count)
    try:
        for batch in source.iter_batches(batch_size=_PARQUET_BATCH):
            if row >= end:
                return
            first, row = row, row + batch.num_rows
            if row > start:
                values = batch.slice(max(start - first, 0), end - max(start, first)).to_pylist()
                for at, value in enumerate(values, max(start, first)):
                    yield Record(at, at + 1, json_like(value) if odd else value)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        for at in range(max(row, start), end):
            yield Record(at, at + 1, error=damaged(f"{file.rel}:{at + 1}", error))


def _parquet(file: InputFile) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file.path)
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError("TM910", where=file.rel, what=f"not a readable Parquet file: {str(error)[:200]}") from None


def json_like(value: Any) -> Any:
    """A table's value as JSON has it: bytes as base64, times in ISO form, decimals as numbers, maps as objects."""
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return value
    if kind is dict:
        return {key: json_like(item) for key, item in cast("dict[str, Any]", value).items()}
    if kind is list:
        items = cast("list[Any]", value)
        if items and type(items[0]) is tuple:
            return {str(key): json_like(item) for key, item in items}
        return items if items and type(items[0]) in (int, float) else [json_like(item) for item in items]
    if kind is bytes:
        return b64encode(value).decode("ascii")
    return (
        float(value) if isinstance(value, Decimal) else value.isoformat() if hasattr(value, "isoformat") else str(value)
    )


def count_records(file: InputFile) -> int:
    """How many records the file holds, without decoding them (a document is decoded)."""
    if file.layout is Layout.LINES:
        return sum(1 for _ in lines_of(file.path, file.rel))
    if file.layout is Layout.PARQUET:
        return _parquet(file).metadata.num_rows
    return len(document(file))
