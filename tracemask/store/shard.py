"""One Arrow shard opened for random access: zero-copy where it is uncompressed. Knows no manifest and no order.

A local file is mapped privately (copy on write): numpy views are read-only, torch views may be written in place and
then change this process's copy, never the file.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.row import Row
from tracemask.store.schema import SCALAR_ALIASES, SPANS, Profile, is_token_field, read_batches, read_metadata
from tracemask.store.spans import from_spans
from tracemask.store.values import Memory, Values, one_row

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_NAMES = {alias: name for name, alias in SCALAR_ALIASES.items()}


class Scalars(Mapping[str, Any]):
    """The scalars of row `at` of record batch `k`, read when asked for. batch: it; None: read it from `shard` then."""

    __slots__ = ("_at", "_batch", "_k", "_names", "_shard")

    def __init__(self, shard: OpenShard, batch: pa.RecordBatch | None, k: int, at: int) -> None:
        self._shard, self._batch, self._k, self._at = shard, batch, k, at
        self._names = shard.scalar_index

    def __getitem__(self, name: str) -> Any:
        column = self._names[name]
        if self._batch is None:
            self._batch = self._shard.scalar_batch(self._k)
        return plain(name, self._batch.column(column)[self._at].as_py())

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
        except (pa.ArrowException, OSError) as error:
            raise StoreError(
                "TM508", where=where, what=f"not a whole Arrow file: {error}", fix="convert again"
            ) from None
        self.schema = self._reader.schema
        self.metadata = read_metadata(self.schema, where=where)
        self.compact = self.metadata.get("profile") == Profile.COMPACT
        token_fields = [field.name for field in self.schema if is_token_field(field)]
        self.has_spans = SPANS in self.schema.names
        names = [*token_fields, SPANS] if self.has_spans else token_fields
        self.stored_columns = tuple(names)
        self.token_columns = tuple(name for name in names if columns is None or name in columns)
        self._scalar_names: list[str] = [field.name for field in self.schema if field.name not in names]
        self._plain = tuple(name for name in self.token_columns if name != SPANS)
        types = {name: self.schema.field(name).type.value_type for name in token_fields}
        self._kinds = {name: np.dtype(kind.to_pandas_dtype()) for name, kind in types.items()}
        self._cache: dict[int, _Batch] = {}
        self._scalars: tuple[int, Any] = -1, None
        self._readers: dict[str, tuple[Any, dict[str, int]]] = {}
        self._starts = self._batch_starts()
        self.rows = self._starts[-1]

    def _batch_starts(self) -> Sequence[int]:
        n = self._reader.num_record_batches
        if self.compact:
            stated = read_batches(self.schema)
            if stated is not None and len(stated) != n:
                what = f"{n} record batches where {len(stated)} are stated"
                raise StoreError("TM508", where=self.where, what=what, fix="convert again")
            return range(n + 1) if stated is None else [0, *accumulate(stated)]
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
        except (pa.ArrowException, OSError) as error:
            what = f"record batch {index}: {error}"
            raise StoreError("TM508", where=self.where, what=what, fix="convert again") from None

    def _load(self, index: int) -> _Batch:
        return _Batch(self._batch("tokens", index), self._reader_of("tokens")[1], self._kinds, self._memory)

    def _at(self, i: int) -> tuple[_Batch, int, int]:
        """The batch that holds row `i`, the batch's number, and the row's number in it."""
        k = bisect.bisect_right(self._starts, i) - 1
        batch = self._cache.get(k)
        if batch is None:  # compact: one batch is kept, and its memory taken again
            self._cache = {}
            batch = self._cache[k] = self._load(k)
        return batch, k, i - self._starts[k]

    def row(self, i: int, *, index: int, writable: bool = False) -> Row:
        """Row `i` of this shard, numbered `index` in its dataset."""
        batch, k, at = self._at(i)
        columns: dict[str, np.ndarray] = {}
        for name in self._plain:
            if self.compact:
                values = self._unpacked(batch, name, at, writable=writable)
            else:
                values = batch.values(name).row(at, writable=writable)
            if values is not None:
                columns[name] = values
        if SPANS in self.token_columns:
            spans = batch.column(SPANS)[at].as_py()
            if spans is not None:
                columns[SPANS] = from_spans(spans, len(columns["token_ids"]))
        if writable and self.compact and batch.data.num_rows == 1:
            self._cache = {}  # what was unpacked for this row is the caller's now
        return Row(index, columns, Scalars(self, None if self.compact else batch.data, k, at))

    def _unpacked(self, batch: _Batch, name: str, at: int, *, writable: bool) -> np.ndarray | None:
        values = one_row(batch.column(name), at, self._kinds[name])
        if values is None:
            return None
        if not writable:
            values.flags.writeable = False
        return values.copy() if writable and batch.data.num_rows > 1 else values

    def scalar_batch(self, k: int) -> pa.RecordBatch:
        """Record batch `k` of a compact shard, with its scalars alone; the last one is kept."""
        if self._scalars[0] != k:
            self._scalars = k, self._batch("scalars", k)
        return self._scalars[1]

    @cached_property
    def scalar_index(self) -> dict[str, int]:
        """Where each scalar lies in the batches, by the name that rows give it."""
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

    __slots__ = ("_kinds", "_memory", "_values", "data", "index")

    def __init__(
        self, data: pa.RecordBatch, index: dict[str, int], kinds: dict[str, np.dtype[Any]], memory: Memory | None
    ) -> None:
        self.data, self.index, self._kinds, self._memory = data, index, kinds, memory
        self._values: dict[str, Values] = {}

    def values(self, name: str) -> Values:
        """The per-token column `name`."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = Values(self.column(name), self._kinds[name], self._memory)
        return found

    def column(self, name: str) -> pa.Array:
        """The column as Arrow has it."""
        return self.data.column(self.index[name])


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
