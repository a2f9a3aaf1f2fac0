"""Per-token columns of a record batch as numpy: views where that can be. Knows no file and no schema."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


class Values:
    """One per-token column of one record batch: row `i` is `data[offsets[i]:offsets[i + 1]]`; `null` rows have none.

    packed: booleans, eight a byte, the first in the lowest bit. ValueError where offsets point outside the data.
    """

    __slots__ = ("data", "null", "offsets", "packed", "size")

    def __init__(self, offsets: Sequence[int], data: np.ndarray, null: np.ndarray | None, *, packed: bool) -> None:
        self.offsets, self.data, self.null, self.packed = offsets, data, null, packed
        self.size = len(data) << 3 if packed else len(data)

    @classmethod
    def of(cls, array: pa.LargeListArray, kind: np.dtype[Any], memory: Memory | None) -> Values:
        """The values of large lists as a batch that was read has them: they begin where the buffer does."""
        _, offsets, _, data = array.buffers()
        first = array.offset
        whole: Any = memoryview(offsets).cast("q")[first : first + len(array) + 1]  # gives plain integers
        null = None if array.null_count == 0 else np.asarray(array.is_null())
        packed = kind.kind == "b"
        stored = np.dtype(np.uint8) if packed else kind
        if data is None:
            return cls(whole, np.zeros(0, stored), null, packed=packed)
        mapped = None if memory is None else memory.of(data)
        return cls(whole, np.frombuffer(data, stored) if mapped is None else mapped.view(stored), null, packed=packed)

    def row(self, i: int, *, writable: bool = False) -> np.ndarray | None:
        """The values of row `i` as a view (booleans are unpacked into their own memory), or None where null."""
        if self.null is not None and self.null[i]:
            return None
        return self._between(self.offsets[i], self.offsets[i + 1], writable=writable)

    def all(self) -> np.ndarray:
        """The values of every row, concatenated, in one view; booleans unpacked."""
        if len(self.offsets) < 2:
            return self._between(0, 0, writable=False)
        return self._between(self.offsets[0], self.offsets[-1], writable=False)

    def _between(self, start: int, stop: int, *, writable: bool) -> np.ndarray:
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"values {start} to {stop} of {self.size}")
        if self.packed:
            first = start >> 3
            bits = np.unpackbits(self.data[first : (stop + 7) >> 3], count=stop - (first << 3), bitorder="little")
            return bits[start & 7 :].view(np.bool_)
        view = self.data[start:stop]
        if not writable:
            view.setflags(write=False)
        return view


class Memory:
    """The private mapping of a file, as writable bytes."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._bytes = np.frombuffer(mapped, dtype=np.uint8)
        self._start = self._bytes.ctypes.data

    def of(self, data: pa.Buffer) -> np.ndarray | None:
        """The bytes of a buffer that lies in the mapping, else None."""
        start = data.address - self._start
        return self._bytes[start : start + data.size] if 0 <= start <= len(self._bytes) - data.size else None
