"""Compressed per-token columns and plain scalars of an Arrow file, one record batch at a time. Knows no row.

Arrow's reader goes through every field of a batch to give a few of them, which takes as long as unpacking those. Here
the file's own tables say where the few lie. Their layout: Arrow columnar format, "IPC File Format" (Footer, Block,
Message, RecordBatch), in flatbuffers; lz4 is its only compression here.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.store.values import Values

if TYPE_CHECKING:
    import pyarrow as pa

_SHORT, _INT, _LONG, _PAIR, _DOUBLE = Struct("<H"), Struct("<i"), Struct("<q"), Struct("<qq"), Struct("<d")
_BLOCK = Struct("<qi4xq")  # of a record batch: where it begins, bytes of its tables, bytes of its buffers
_BITS = np.dtype(np.uint8)
_TAIL = 10  # bytes after the footer: its length and the closing magic
_FOOTER_BATCHES = 3  # numbers of the fields of flatbuffers tables
_MESSAGE_HEADER = 2
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 1, 2, 3
_SLACK = 64  # bytes that a buffer may be longer than its values


class PackedFile:
    """The record batches of a compressed Arrow file in memory.

    data: the file, which Arrow has opened. kinds: per-token column → numpy type. Whatever damage makes of the tables,
    reading stays in the file and gives ValueError, IndexError or struct.error.
    """

    def __init__(self, data: memoryview, schema: pa.Schema, kinds: Mapping[str, np.dtype[Any]]) -> None:
        import pyarrow as pa

        self.data, self.unpack = data, pa.Codec("lz4").decompress
        self.places: dict[str, tuple[int, int, np.dtype[Any]]] = {}
        self.scalars: dict[str, tuple[int, int, Struct | bool]] = {}  # how numbers lie; True: texts, False: booleans
        plain = {pa.large_string(): True, pa.bool_(): False, pa.int32(): _INT, pa.int64(): _LONG, pa.float64(): _DOUBLE}
        node = buffer = 0
        for field in schema:
            if field.name in kinds:
                self.places[field.name] = node, buffer, kinds[field.name]
            elif field.type in plain:
                self.scalars[field.name] = node, buffer, plain[field.type]
            nodes, buffers = _extent(field.type)
            node, buffer = node + nodes, buffer + buffers
        end = len(data) - _TAIL
        footer = end - _INT.unpack_from(data, end)[0]
        self._blocks = _target(data, _field(data, _target(data, footer), _FOOTER_BATCHES))
        self._count: int = _INT.unpack_from(data, self._blocks)[0]

    def __len__(self) -> int:
        return self._count

    def batch(self, k: int) -> PackedBatch:
        """Record batch `k`; nothing is unpacked yet."""
        start, tables, _ = _BLOCK.unpack_from(self.data, self._blocks + 4 + _BLOCK.size * k)
        return PackedBatch(self, start + 8, start + tables)  # 8: a marker and the length of the tables


class PackedBatch:
    """The columns of one batch, unpacked when they are asked for; those per token are kept. rows: how many it holds."""

    __slots__ = ("_body", "_buffers", "_file", "_nodes", "_values", "rows")

    def __init__(self, file: PackedFile, tables: int, body: int) -> None:
        data = file.data
        header = _target(data, _field(data, _target(data, tables), _MESSAGE_HEADER))
        self.rows: int = _LONG.unpack_from(data, _field(data, header, _BATCH_LENGTH))[0]
        self._nodes = _target(data, _field(data, header, _BATCH_NODES)) + 4
        self._buffers = _target(data, _field(data, header, _BATCH_BUFFERS)) + 4
        codec = _field(data, _target(data, _field(data, header, _BATCH_COMPRESSION)), 0, missing=-1)
        if codec >= 0 and data[codec]:  # 0, or left out: lz4
            raise ValueError("not compressed by lz4")
        self._file, self._body = file, body
        self._values: dict[str, Values] = {}

    def values(self, name: str) -> Values:
        """The per-token column `name`, in memory that is the caller's."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._column(*self._file.places[name])
        return found

    def _column(self, node: int, buffer: int, kind: np.dtype[Any]) -> Values:
        data, nodes = self._file.data, self._nodes + _PAIR.size * node
        rows, missing = _PAIR.unpack_from(data, nodes)
        size, holes = _PAIR.unpack_from(data, nodes + _PAIR.size)
        if rows != self.rows or holes or size < 0:
            raise ValueError(f"a column of {rows} rows, {size} values and {holes} holes in a batch of {self.rows} rows")
        null = None
        if missing:
            valid = np.frombuffer(self._buffer(buffer, (rows + 7) >> 3), np.uint8)
            null = np.unpackbits(valid, bitorder="little")[:rows] == 0
        if rows == 1:  # all of the values are its own: a writer of files leaves out those of other batches
            offsets: Any = (0, 0 if missing else size)
        else:
            offsets = memoryview(self._buffer(buffer + 1, 8 * (rows + 1))).cast("B").cast("q")
        if kind.kind == "b":
            count = (size + 7) >> 3  # what is stored may be longer
            return Values(offsets, np.frombuffer(self._buffer(buffer + 3, count), _BITS, count), null, packed=True)
        stored = self._buffer(buffer + 3, size * kind.itemsize)
        return Values(offsets, np.frombuffer(stored, kind, size), null, packed=False)

    def scalar(self, name: str, at: int) -> Any:
        """The value of row `at` in the plain scalar `name` (see PackedFile.scalars)."""
        node, buffer, kind = self._file.scalars[name]
        rows, missing = _PAIR.unpack_from(self._file.data, self._nodes + _PAIR.size * node)
        if rows != self.rows or not 0 <= at < rows:
            raise ValueError(f"row {at} of {rows} in a batch of {self.rows} rows")
        if missing and not self._bit(buffer, at):
            return None
        if kind is True:
            offsets = self._buffer(buffer + 1, _LONG.size * (rows + 1))
            start, end = _PAIR.unpack_from(offsets, _LONG.size * at)
            size: int = _LONG.unpack_from(offsets, _LONG.size * rows)[0]
            if not 0 <= start <= end <= size:
                raise ValueError(f"a text from byte {start} to {end} of {size}")
            return str(memoryview(self._buffer(buffer + 2, size))[start:end], "utf-8")
        if kind is False:
            return self._bit(buffer + 1, at)
        return kind.unpack_from(self._buffer(buffer + 1, kind.size * rows), kind.size * at)[0]

    def _bit(self, number: int, at: int) -> bool:
        """Bit `at` of buffer `number`."""
        return bool(memoryview(self._buffer(number, (self.rows + 7) >> 3))[at >> 3] >> (at & 7) & 1)

    def _buffer(self, number: int, size: int) -> Any:
        """Buffer `number`, unpacked: `size` bytes or a few more."""
        data = self._file.data
        at, length = _PAIR.unpack_from(data, self._buffers + _PAIR.size * number)
        if not size:
            return b""
        start, stop = self._body + at, self._body + at + length
        stated = _LONG.unpack_from(data, start)[0]  # before it is believed: damage may ask for all memory
        if not (size <= stated <= size + _SLACK and 0 <= start <= stop - 8 <= len(data) - 8):
            raise ValueError(f"a buffer of {stated} bytes where {size} are needed")
        return self._file.unpack(data[start + 8 : stop], stated)


def _extent(kind: pa.DataType) -> tuple[int, int]:
    """How many nodes and buffers a field of this type has in a record batch, children included."""
    children = [_extent(kind.field(i).type) for i in range(kind.num_fields)]
    return 1 + sum(nodes for nodes, _ in children), kind.num_buffers + sum(buffers for _, buffers in children)


def _field(data: memoryview, table: int, number: int, *, missing: int | None = None) -> int:
    """Where field `number` of a flatbuffers table lies; `missing` where the table leaves it out, if that may be."""
    entries = table - _INT.unpack_from(data, table)[0]
    at = 4 + 2 * number
    offset = _SHORT.unpack_from(data, entries + at)[0] if at < _SHORT.unpack_from(data, entries)[0] else 0
    if offset:
        return table + offset
    if missing is None:
        raise ValueError(f"a table without field {number}")
    return missing


def _target(data: memoryview, at: int) -> int:
    """Where the reference at `at` points."""
    return at + _INT.unpack_from(data, at)[0]
