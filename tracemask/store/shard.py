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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.damage import damage, damaged, damaging
from tracemask.store.packed import PackedBatch, PackedFile
from tracemask.store.part import Part
from tracemask.store.row import Row
from tracemask.store.schema import (
    SCALAR_ALIASES,
    SPANS,
    TOKEN_COLUMNS,
    Profile,
    is_token_field,
    read_batches,
    read_kinds,
    read_metadata,
)
from tracemask.store.spans import from_spans
from tracemask.store.values import Memory, Values

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_NAMES = {alias: name for name, alias in SCALAR_ALIASES.items()}
_REWARD = {"name", "score", "weight", "source"}


class Scalars(Mapping[str, Any]):
    """The scalars of row `at` of record batch `k` of a shard, read when asked for."""

    __slots__ = ("_at", "_k", "_shard")

    def __init__(self, shard: OpenShard, k: int, at: int) -> None:
        self._shard, self._k, self._at = shard, k, at

    def __getitem__(self, name: str) -> Any:
        return self._shard.scalar_of(self._k, self._at, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard.scalar_index)

    def __len__(self) -> int:
        return len(self._shard.scalar_index)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def plain(name: str, value: Any) -> Any:
    """A stored scalar as a row gives it: rewards by name instead of as a list."""
    if name != "rewards" or not isinstance(value, list):
        return value
    if not all(isinstance(item, dict) and item.keys() >= _REWARD for item in value):
        return value  # another tool's
    return {item["name"]: {key: item[key] for key in ("score", "weight", "source")} for item in value}


class OpenShard:
    """A shard's rows by index. TM508 where the file is cut or damaged, TM501 where it is not one of ours.

    Whatever its bytes are, reading stays in the file. Whether they are those that were written, `manifest.verify` says.
    """

    def __init__(self, source: str | bytes, *, where: str, columns: tuple[str, ...] | None = None) -> None:
        import pyarrow as pa

        self.where = where
        mapped = _map(source, where) if isinstance(source, str) else None
        memory = Memory(mapped) if mapped is not None else None
        self._buffer = pa.py_buffer(source if mapped is None else mapped)
        with damage(where, "not a whole Arrow file"):
            self._reader = pa.ipc.open_file(pa.BufferReader(self._buffer))
            self.schema = self._reader.schema
            self.metadata = read_metadata(self.schema, where=where)
            self._names: list[str] = list(self.schema.names)
            token_names = [name for name, field in zip(self._names, self.schema, strict=True) if is_token_field(field)]
            self._kinds = read_kinds(self.schema, token_names, where=where)
        self.compact = self.metadata.get("profile") == Profile.COMPACT
        self.has_spans = SPANS in self._names
        names = [*token_names, SPANS] if self.has_spans else token_names
        self.stored_columns = tuple(names)
        self.token_columns = tuple(name for name in names if columns is None or name in columns)
        self._plain = tuple(name for name in self.token_columns if name != SPANS)
        self._scalar_names = [name for name in self._names if name not in names]
        self._mapped: list[MappedBatch] = []
        self._last: tuple[int, PackedBatch] | None = None
        self._parts = {"scalars": self._part(self._scalar_names), "spans": self._part([SPANS])}
        with damage(where, "record batches"):
            self._starts = self._packed_starts() if self.compact else self._mapped_starts(memory)
        self.rows = self._starts[-1]

    def _mapped_starts(self, memory: Memory | None) -> Sequence[int]:
        n = self._reader.num_record_batches
        self._mapped = [MappedBatch(self._reader.get_batch(k), self._kinds, memory) for k in range(n)]
        return [0, *accumulate(batch.rows for batch in self._mapped)]

    def _packed_starts(self) -> Sequence[int]:
        n = self._reader.num_record_batches
        self._packed = PackedFile(memoryview(self._buffer), self.schema, self._kinds)
        stated = read_batches(self.schema)
        if len(self._packed) != n or (stated is not None and len(stated) != n):
            raise ValueError(f"{n} where {len(self._packed) if stated is None else len(stated)} are stated")
        return range(n + 1) if stated is None else [0, *accumulate(stated)]

    def _batch(self, k: int) -> Batch:
        if not self.compact:
            return self._mapped[k]
        last = self._last  # another thread may put its own there
        if last is None or last[0] != k:  # one is kept, and its memory taken again
            self._last = None
            last = k, self._packed.batch(k)
            if last[1].rows != self._starts[k + 1] - self._starts[k]:
                raise ValueError(f"{last[1].rows} rows where {self._starts[k + 1] - self._starts[k]} are stated")
            self._last = last
        return last[1]

    def _part(self, names: Sequence[str]) -> Part:
        if self.compact:
            return Part(self.schema, names, buffer=self._buffer)
        return Part(self.schema, names, mapped=lambda k: self._mapped[k].data)

    def row(self, i: int, *, index: int, writable: bool = False) -> Row:
        """Row `i` of this shard, numbered `index` in its dataset."""
        k = bisect.bisect_right(self._starts, i) - 1
        at = i - self._starts[k]
        try:
            return Row(index, self._columns(k, at, writable=writable), Scalars(self, k, at))
        except damaging() as error:
            raise damaged(self.where, f"row {i}", error) from error

    def _columns(self, k: int, at: int, *, writable: bool) -> dict[str, np.ndarray]:
        batch = self._batch(k)
        shared = writable and self.compact and batch.rows > 1
        columns: dict[str, np.ndarray] = {}
        length = -1
        for name in self._plain:
            values = batch.values(name).row(at, writable=writable)
            if values is None:
                if name in TOKEN_COLUMNS:
                    raise ValueError(f"no column {name!r}")
                continue
            columns[name] = values.copy() if shared else values
            if len(values) != length:
                if length >= 0:
                    raise ValueError(f"column {name!r} has {len(values)} values for {length} tokens")
                length = len(values)
        if SPANS in self.token_columns:
            part = self._parts["spans"]
            spans = part.column(k, part.index[SPANS])[at].as_py()
            if spans is not None:
                columns[SPANS] = from_spans(spans, len(columns["token_ids"]))
        if writable and self.compact and not shared:
            self._last = None  # what was unpacked for this row is the caller's now
        return columns

    def scalar_of(self, k: int, at: int, name: str) -> Any:
        """The scalar `name` of row `at` of record batch `k`. KeyError where the shard has no such."""
        stored = self.scalar_index[name]
        try:
            if self.compact:
                batch, column = self._batch(k), SHARD_NAMES.get(name, name)
                if isinstance(batch, PackedBatch) and column in self._packed.scalars:
                    return batch.scalar(column, at)
            return plain(name, self._parts["scalars"].column(k, stored)[at].as_py())
        except damaging() as error:
            raise damaged(self.where, f"scalar {name!r}", error) from error

    @cached_property
    def scalar_index(self) -> dict[str, int]:
        """Where each scalar lies in the batches of its part, by the name that rows give it."""
        return {SCALAR_ALIASES.get(name, name): at for name, at in self._parts["scalars"].index.items()}

    def scalar(self, name: str) -> list[Any]:
        """A whole scalar column; token data is not touched."""
        stored = SHARD_NAMES.get(name, name)
        if stored not in self._scalar_names:
            known = ", ".join(self.scalar_names)
            raise StoreError("TM501", where=self.where, what=f"no scalar {name!r}", fix=f"known: {known}")
        part = self._part([stored])
        out: list[Any] = []
        with damage(self.where, f"scalar {name!r}"):
            for k in range(self._reader.num_record_batches):
                out += part.column(k, part.index[stored]).to_pylist()
            if len(out) != self.rows:
                raise ValueError(f"{len(out)} values in {self.rows} rows")
        return [plain(name, value) for value in out] if name == "rewards" else out

    def batches(self) -> Iterator[Batch]:
        """Every record batch in order; for whole-column work."""
        for k in range(self._reader.num_record_batches):
            with damage(self.where, f"record batch {k}"):
                batch = self._batch(k)
            yield batch

    @property
    def scalar_names(self) -> list[str]:
        """Scalars as rows spell them."""
        return [SCALAR_ALIASES.get(name, name) for name in self._scalar_names]


class Batch(Protocol):
    """The per-token columns of a record batch."""

    rows: int

    def values(self, name: str) -> Values: ...


class MappedBatch:
    """A record batch that is not compressed: its columns become numpy, where they lie, on first use."""

    __slots__ = ("_kinds", "_memory", "_values", "data", "rows")

    def __init__(self, data: pa.RecordBatch, kinds: dict[str, np.dtype[Any]], memory: Memory | None) -> None:
        self.data, self.rows, self._kinds, self._memory = data, data.num_rows, kinds, memory
        self._values: dict[str, Values] = {}

    def values(self, name: str) -> Values:
        """The per-token column `name`."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = Values.of(self.data.column(name), self._kinds[name], self._memory)
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
