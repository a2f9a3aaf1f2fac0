"""Per-token columns of a record batch as numpy: views where that can be. Knows no file and no schema."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


class Values:
    """One per-token column of one record batch: `flat` values and `offsets`; `null` rows have none.

    array: large lists as a batch that was read has them: their values begin where the buffer does. kind: their type.
    """

    __slots__ = ("flat", "null", "offsets", "packed", "writable")

    def __init__(self, array: pa.LargeListArray, kind: np.dtype[Any], memory: Memory | None) -> None:
        _, offsets, _, data = array.buffers()
        first = array.offset
        self.offsets = memoryview(offsets).cast("q")[first : first + len(array) + 1]  # gives plain integers
        self.null = None if array.null_count == 0 else np.asarray(array.is_null())
        self.packed = kind.kind == "b"
        stored = np.dtype(np.uint8) if self.packed else kind
        if data is None:
            self.flat = self.writable = np.zeros(0, stored)
            return
        mapped = None if memory is None else memory.of(data)
        self.writable = np.frombuffer(data, stored) if mapped is None else mapped.view(stored)
        self.flat = self.writable.view()
        self.flat.flags.writeable = False

    def row(self, i: int, *, writable: bool = False) -> np.ndarray | None:
        """The values of row `i` as a view (booleans are unpacked into their own memory), or None where null."""
        if self.null is not None and self.null[i]:
            return None
        start, stop = self.offsets[i], self.offsets[i + 1]
        if self.packed:
            first = start >> 3
            bits = np.unpackbits(self.flat[first : (stop + 7) >> 3], bitorder="little")
            return bits[start - (first << 3) : stop - (first << 3)].view(np.bool_)
        return (self.writable if writable else self.flat)[start:stop]

    def all(self) -> np.ndarray:
        """The values of every row, concatenated, in one view; booleans unpacked."""
        if len(self.offsets) < 2:
            return self.flat[:0].astype(np.bool_) if self.packed else self.flat[:0]
        start, stop = self.offsets[0], self.offsets[-1]
        if self.packed:
            first = start >> 3
            bits = np.unpackbits(self.flat[first : (stop + 7) >> 3], bitorder="little")
            return bits[start - (first << 3) : stop - (first << 3)].view(np.bool_)
        return self.flat[start:stop]


def one_row(array: pa.LargeListArray, i: int, kind: np.dtype[Any]) -> np.ndarray | None:
    """Row `i` of a column that was unpacked for this reader, or None where null; its memory may be written.

    For one row alone a fraction of what `Values` takes.
    """
    if array.null_count and not array[i].is_valid:
        return None
    _, offsets, _, data = array.buffers()
    start, stop = memoryview(offsets).cast("q")[i : i + 2]
    if data is None:
        return np.zeros(0, kind)
    if kind.kind == "b":
        first = start >> 3
        bits = np.unpackbits(np.frombuffer(data, np.uint8)[first : (stop + 7) >> 3], bitorder="little")
        return bits[start - (first << 3) : stop - (first << 3)].view(np.bool_)
    return np.frombuffer(data, kind)[start:stop]


class Memory:
    """The private mapping of a file, as writable bytes."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._bytes = np.frombuffer(mapped, dtype=np.uint8)
        self._start = self._bytes.ctypes.data

    def of(self, data: pa.Buffer) -> np.ndarray | None:
        """The bytes of a buffer that lies in the mapping, else None."""
        start = data.address - self._start
        return self._bytes[start : start + data.size] if 0 <= start <= len(self._bytes) - data.size else None
