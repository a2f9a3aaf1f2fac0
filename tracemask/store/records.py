"""Records of one file of another tool: Arrow, Parquet or JSON lines. Knows no name of a column and no row of ours.

Files are read lazily: a Parquet row group, a mapped Arrow table or one JSON line at a time.
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tracemask.core.errors import StoreError
from tracemask.core.registry import Table
from tracemask.store.blob import Blob
from tracemask.store.damage import damage
from tracemask.store.foreign_names import is_numbers, is_token_name
from tracemask.store.part import Part

if TYPE_CHECKING:
    import pyarrow as pa

_LOOK = 64  # JSON lines looked at for the names and kinds of fields
_KEEP = 4  # Parquet row groups held
_AGAIN = "write it again"


class Records(ABC):
    """One file's records, decoded when asked for: the part of a source that a file format provides."""

    where: str
    rows: int
    lists: list[str]  # fields that hold one list of numbers a record
    others: list[str]  # every other field

    @abstractmethod
    def get(self, i: int) -> Mapping[str, Any]:
        """Record `i`: lists as numpy arrays or Python lists, scalars as Python values."""

    def column(self, name: str) -> list[Any]:
        """One field of every record."""
        return [self.get(i).get(name) for i in range(self.rows)]


class ArrowRecords(Records):
    """An Arrow file, memory-mapped where it is local (file or stream format; Hugging Face writes streams)."""

    def __init__(self, blob: Blob) -> None:
        import pyarrow as pa

        self.where = blob.where
        with damage(self.where, "not a whole Arrow file", fix=_AGAIN):
            data = pa.memory_map(blob.path).read_buffer() if blob.fs is None else pa.py_buffer(blob.read())
            if data[:6].to_pybytes() == b"ARROW1":
                file = pa.ipc.open_file(data)
                schema, batches = file.schema, [file.get_batch(k) for k in range(file.num_record_batches)]
            else:
                stream = pa.ipc.open_stream(data)
                schema, batches = stream.schema, list(stream)
            self.lists, self.others = _kinds(schema)
        self._starts = [0, *accumulate(batch.num_rows for batch in batches)]
        self.rows = self._starts[-1]
        self._part = Part(schema, schema.names, mapped=batches.__getitem__)

    def get(self, i: int) -> Mapping[str, Any]:
        k = bisect_right(self._starts, i) - 1
        at = i - self._starts[k]
        with damage(self.where, f"record {i}", fix=_AGAIN):
            return {name: _value(self._part.column(k, place)[at]) for name, place in self._part.index.items()}

    def column(self, name: str) -> list[Any]:
        if name not in self._part.index:
            return [None] * self.rows
        out: list[Any] = []
        with damage(self.where, f"column {name!r}", fix=_AGAIN):
            for k in range(len(self._starts) - 1):
                out += self._part.column(k, self._part.index[name]).to_pylist()
        return out


class ParquetRecords(Records):
    """A Parquet file, a row group at a time."""

    def __init__(self, blob: Blob) -> None:
        import pyarrow.parquet as pq

        self.where = blob.where
        with damage(self.where, "not a whole Parquet file", fix=_AGAIN):
            self._file = pq.ParquetFile(blob.path if blob.fs is None else blob.open(), memory_map=blob.fs is None)
            meta = self._file.metadata
            self._starts = [0, *accumulate(meta.row_group(k).num_rows for k in range(meta.num_row_groups))]
            self.lists, self.others = _kinds(self._file.schema_arrow)
        self.rows = self._starts[-1]
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def get(self, i: int) -> Mapping[str, Any]:
        k = bisect_right(self._starts, i) - 1
        at = i - self._starts[k]
        with damage(self.where, f"record {i}", fix=_AGAIN):
            table = self._group(k)
            return {name: _value(table.column(name)[at]) for name in table.column_names}

    def _group(self, k: int) -> pa.Table:
        table = self._groups.get(k)
        if table is None:
            table = self._groups[k] = self._file.read_row_group(k)
            if len(self._groups) > _KEEP:
                self._groups.popitem(last=False)
        return table

    def column(self, name: str) -> list[Any]:
        if name not in self._file.schema_arrow.names:
            return [None] * self.rows
        with damage(self.where, f"column {name!r}", fix=_AGAIN):
            found = self._file.read(columns=[name]).column(0).to_pylist()
            if len(found) != self.rows:
                raise ValueError(f"{len(found)} values in {self.rows} rows")
        return found


class JsonRecords(Records):
    """JSON lines: the byte where each begins is kept, a line is decoded when asked for.

    A local file is read at places, not through a cursor: forked loaders share an open file and would share that too.
    """

    def __init__(self, blob: Blob) -> None:
        self.where = blob.where
        self._starts, self._stops, self._numbers = array("q"), array("q"), array("q")
        self._data = None if blob.fs is None else blob.read()
        offset = 0
        with blob.open() if self._data is None else io.BytesIO(self._data) as file:
            for line, raw in enumerate(file, 1):
                if not raw.isspace():
                    self._starts.append(offset)
                    self._stops.append(offset + len(raw))
                    self._numbers.append(line)
                offset += len(raw)
        self.rows = len(self._starts)
        self._file = blob.open() if self._data is None else None
        self.lists, self.others = self._fields()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def _raw(self, i: int) -> bytes:
        start, stop = self._starts[i], self._stops[i]
        if self._file is None:
            assert self._data is not None
            return self._data[start:stop]
        return os.pread(self._file.fileno(), stop - start, start)

    def _fields(self) -> tuple[list[str], list[str]]:
        kinds: dict[str, bool | None] = {}  # None: nothing seen yet
        for i in range(min(self.rows, _LOOK)):
            for name, value in self.get(i).items():
                if value is None or value == []:
                    kinds.setdefault(name, None)
                else:
                    kinds[name] = kinds.get(name) is not False and is_numbers(value)
        lists = [name for name, numeric in kinds.items() if numeric or (numeric is None and is_token_name(name))]
        return lists, [name for name in kinds if name not in lists]

    def get(self, i: int) -> Mapping[str, Any]:
        where = f"{self.where}:{self._numbers[i]}"
        try:
            value = json.loads(self._raw(i).removeprefix(b"\xef\xbb\xbf"))
        except ValueError as error:
            raise StoreError("TM910", where=where, what=f"invalid JSON: {error}", fix="repair it") from None
        if not isinstance(value, dict):
            raise StoreError("TM501", where=where, what="not a JSON object", fix="one object a line")
        return value


def _kinds(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Names of the fields that hold lists of numbers, and of all others."""
    lists = [field.name for field in schema if _is_number_list(field.type)]
    return lists, [field.name for field in schema if field.name not in lists]


def _is_number_list(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if not (kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)):
        return False
    return kinds.is_integer(kind.value_type) or kinds.is_floating(kind.value_type) or kinds.is_boolean(kind.value_type)


def _value(scalar: Any) -> Any:
    """An Arrow scalar: number lists as arrays (nulls as NaN), the rest as Python values."""
    if _is_number_list(scalar.type):
        return None if scalar.values is None else scalar.values.to_numpy(zero_copy_only=False)
    return scalar.as_py()


RECORDS: Table[Callable[[Blob], Records]] = Table(
    "foreign file",
    arrow=ArrowRecords,
    parquet=ParquetRecords,
    jsonl=JsonRecords,
    ndjson=JsonRecords,
)
