"""One Arrow shard opened for random access: zero-copy where it is uncompressed. Knows no manifest and no order.

A local file is mapped privately (copy on write): numpy views are read-only, torch views may be written in place and
then change this process's copy, never the file.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.row import Row
from tracemask.store.schema import SCALAR_ALIASES, SPANS, Profile, is_token_field, read_metadata
from tracemask.store.spans import from_spans

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_NAMES = {alias: name for name, alias in SCALAR_ALIASES.items()}


class Values:
    """One per-token column of one record batch: `flat` values and `offsets`; `null` rows have none."""

    __slots__ = ("flat", "null", "offsets", "packed", "start", "writable")

    def __init__(self, array: pa.LargeListArray, memory: Memory | None) -> None:
        offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
        self.offsets = offsets[array.offset : array.offset + len(array) + 1].data  # a memoryview gives plain integers
        child = array.values
        kind = child.type.to_pandas_dtype()
        self.packed = kind is np.bool_
        self.null = None if array.null_count == 0 else np.asarray(array.is_null())
        self.start = child.offset
        data = child.buffers()[1]
        if data is None:
            self.flat = self.writable = np.zeros(0, dtype=np.uint8 if self.packed else kind)
            return
        found = None if memory is None else memory.of(data)
        self.writable = np.frombuffer(data, np.uint8) if found is None else found
        self.writable = self.writable.view(np.uint8 if self.packed else kind)
        self.flat = self.writable.view()
        self.flat.flags.writeable = False

    def row(self, i: int, *, writable: bool = False) -> np.ndarray | None:
        """The values of row `i` as a view (booleans are unpacked into their own memory), or None where null."""
        if self.null is not None and self.null[i]:
            return None
        start, stop = self.offsets[i] + self.start, self.offsets[i + 1] + self.start
        if self.packed:
            first = start >> 3
            bits = np.unpackbits(self.flat[first : (stop + 7) >> 3], bitorder="little")
            return bits[start - (first << 3) : stop - (first << 3)].view(np.bool_)
        return (self.writable if writable else self.flat)[start:stop]

    def all(self) -> np.ndarray:
        """The values of every row, concatenated, in one view; booleans unpacked."""
        if len(self.offsets) < 2:
            return self.flat[:0].astype(np.bool_) if self.packed else self.flat[:0]
        start, stop = self.offsets[0] + self.start, self.offsets[-1] + self.start
        if self.packed:
            first = start >> 3
            bits = np.unpackbits(self.flat[first : (stop + 7) >> 3], bitorder="little")
            return bits[start - (first << 3) : stop - (first << 3)].view(np.bool_)
        return self.flat[start:stop]


class Memory:
    """The private mapping of a file, as writable bytes."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._bytes = np.frombuffer(mapped, dtype=np.uint8)
        self._start = self._bytes.ctypes.data

    def of(self, data: pa.Buffer) -> np.ndarray | None:
        """The bytes of a buffer that lies in the mapping, else None."""
        start = data.address - self._start
        return self._bytes[start : start + data.size] if 0 <= start <= len(self._bytes) - data.size else None


class Scalars(Mapping[str, Any]):
    """The scalars of one row, read when asked for. load: gives the record batch that holds them."""

    __slots__ = ("_batch", "_index", "_load", "_names")

    def __init__(self, load: Callable[[], pa.RecordBatch], names: dict[str, int], index: int) -> None:
        self._load, self._names, self._index = load, names, index
        self._batch: pa.RecordBatch | None = None

    def __getitem__(self, name: str) -> Any:
        at = self._names[name]
        batch = self._batch = self._batch or self._load()
        return plain(name, batch.column(at)[self._index].as_py())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def plain(name: str, value: Any) -> Any:
    """A stored scalar as a row gives it: rewards by name instead of as a list."""
    if (
        name == "rewards"
        and isinstance(value, list)
        and all(isinstance(item, dict) and "name" in item for item in value)
    ):
        return {item["name"]: {key: item[key] for key in ("score", "weight", "source")} for item in value}
    return value


class OpenShard:
    """A shard's rows by index. TM508 where the file is cut, TM501 where it is not one of ours."""

    def __init__(self, source: str | bytes, *, where: str, columns: tuple[str, ...] | None = None) -> None:
        import pyarrow as pa

        self.where = where
        mapped = _map(source, where) if isinstance(source, str) else None
        self._memory = Memory(mapped) if mapped is not None else None
        self._buffer = pa.py_buffer(source if mapped is None else mapped)
        try:
            self._reader = pa.ipc.open_file(pa.BufferReader(self._buffer))
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(
                "TM508", where=where, what=f"not a whole Arrow file: {error}", fix="convert again"
            ) from None
        self.schema = self._reader.schema
        self.metadata = read_metadata(self.schema, where=where)
        self.compact = self.metadata.get("profile") == Profile.COMPACT
        token_fields = [field.name for field in self.schema if is_token_field(field)]
        self.has_spans = SPANS in self.schema.names
        names = [*token_fields, SPANS] if self.has_spans else token_fields
        self.token_columns = tuple(name for name in names if columns is None or name in columns)
        self._scalar_names: list[str] = [field.name for field in self.schema if field.name not in names]
        self._cache: dict[int, _Batch] = {}
        self._readers: dict[str, tuple[Any, dict[str, int]]] = {}
        self._starts = self._batch_starts()
        self.rows = self._starts[-1]

    def _batch_starts(self) -> Sequence[int]:
        n = self._reader.num_record_batches
        if self.compact:
            return range(n + 1)
        self._cache = {i: self._load(i) for i in range(n)}
        return [0, *accumulate(batch.data.num_rows for batch in self._cache.values())]

    def _reader_of(self, part: str) -> tuple[Any, dict[str, int]]:
        """A reader of the "tokens" or the "scalars", and where each stored column lies in its batches.

        Reading a choice of fields spares decompression; where nothing is compressed it would copy what is mapped.
        """
        import pyarrow as pa

        if part not in self._readers:
            names = list(self.token_columns) if part == "tokens" else self._scalar_names
            fields = [i for i, field in enumerate(self.schema) if not self.compact or field.name in names]
            reader = self._reader
            if self.compact:
                options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
                reader = pa.ipc.open_file(pa.BufferReader(self._buffer), options=options)
            at = {self.schema.field(field).name: i for i, field in enumerate(fields)}
            self._readers[part] = reader, {name: at[name] for name in names}
        return self._readers[part]

    def _batch(self, part: str, index: int) -> pa.RecordBatch:
        import pyarrow as pa

        try:
            return self._reader_of(part)[0].get_batch(index)
        except (pa.ArrowInvalid, OSError) as error:
            what = f"record batch {index}: {error}"
            raise StoreError("TM508", where=self.where, what=what, fix="convert again") from None

    def _load(self, index: int) -> _Batch:
        return _Batch(self._batch("tokens", index), self._reader_of("tokens")[1], self._memory)

    def _at(self, i: int) -> tuple[_Batch, int]:
        if self.compact:
            batch = self._cache.get(i)
            if batch is None:
                self._cache = {i: self._load(i)}
                batch = self._cache[i]
            return batch, 0
        if len(self._cache) == 1:
            return self._cache[0], i
        k = bisect.bisect_right(self._starts, i) - 1
        return self._cache[k], i - self._starts[k]

    def row(self, i: int, *, index: int, writable: bool = False) -> Row:
        """Row `i` of this shard, numbered `index` in its dataset."""
        batch, at = self._at(i)
        columns: dict[str, np.ndarray] = {}
        for name in self.token_columns:
            if name == SPANS:
                spans = batch.data.column(batch.index[SPANS])[at].as_py()
                values = None if spans is None else from_spans(spans, len(columns["token_ids"]))
            else:
                values = batch.values(name).row(at, writable=writable)
            if values is not None:
                columns[name] = values
        load = (lambda: self._batch("scalars", i)) if self.compact else (lambda: batch.data)
        return Row(index, columns, Scalars(load, self._scalar_index, at))

    @cached_property
    def _scalar_index(self) -> dict[str, int]:
        index = self._reader_of("scalars")[1]
        return {SCALAR_ALIASES.get(name, name): at for name, at in index.items()}

    def scalar(self, name: str) -> list[Any]:
        """A whole scalar column; token data is not touched."""
        stored = SHARD_NAMES.get(name, name)
        out: list[Any] = []
        for column in self._scalar_column(name, stored):
            out += column.to_pylist()
        return [plain(name, value) for value in out] if name == "rewards" else out

    def _scalar_column(self, name: str, stored: str) -> Iterator[pa.Array]:
        import pyarrow as pa

        if stored not in self._scalar_names:
            known = ", ".join(self.scalar_names)
            raise StoreError("TM501", where=self.where, what=f"no scalar {name!r}", fix=f"known: {known}")
        field = self.schema.get_field_index(stored)
        if not self.compact:
            yield from (batch.data.column(field) for batch in self._cache.values())
            return
        options = pa.ipc.IpcReadOptions(included_fields=[field], use_threads=False)
        reader = pa.ipc.open_file(pa.BufferReader(self._buffer), options=options)
        yield from (reader.get_batch(index).column(0) for index in range(reader.num_record_batches))

    def batches(self) -> Iterator[_Batch]:
        """Every record batch in order; for whole-column work."""
        for index in range(self._reader.num_record_batches):
            yield self._cache[index] if not self.compact else self._load(index)

    @property
    def scalar_names(self) -> list[str]:
        """Scalars as rows spell them."""
        return [SCALAR_ALIASES.get(name, name) for name in self._scalar_names]


class _Batch:
    """A record batch whose columns become numpy on first use. index: stored column → position in the batch."""

    __slots__ = ("_memory", "_values", "data", "index")

    def __init__(self, data: pa.RecordBatch, index: dict[str, int], memory: Memory | None) -> None:
        self.data, self.index, self._memory = data, index, memory
        self._values: dict[str, Values] = {}

    def values(self, name: str) -> Values:
        """The per-token column `name`."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = Values(self.data.column(self.index[name]), self._memory)
        return found


def _map(path: str, where: str) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise StoreError("TM508", where=where, what="the file is empty", fix="convert again")
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            return mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise StoreError("TM508", where=where, what=error.strerror or str(error), fix="check the file") from error
