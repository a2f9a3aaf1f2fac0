"""Large columns of an Arrow file go to its sink from where the rows hold them. Knows no schema.

Arrow's writer states where a column lies in the file and then hands its buffer on without reading it. So it is given an
array of the right size that was never filled; where that comes out, the parts are written instead, which spares the
copy that would put them together first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracemask.store.sink import Sink


class Splice:
    """What pyarrow needs of a Python file to write into a sink, and the columns that are spliced in."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._parts: dict[int, Sequence[np.ndarray]] = {}  # by the address of what stands in for them

    def stand_in(self, parts: Sequence[np.ndarray], kind: np.dtype[Any]) -> np.ndarray:
        """An array, not to be read, that becomes the parts one after the other where it is written.

        Only for what the writer hands on as it is: not compressed, and too large for it to gather.
        """
        parts = [np.ascontiguousarray(part, dtype=kind) for part in parts]
        whole = np.empty(sum(map(len, parts)), kind)
        self._parts[whole.ctypes.data] = parts
        return whole

    def write(self, data: Any) -> int:
        parts = self._parts.pop(getattr(data, "address", 0), None)
        if parts is None:
            return self._sink.write(data)
        written = self._sink.write(*parts)
        if written != len(data):
            raise RuntimeError(f"{written} bytes of a column where Arrow states {len(data)}")
        return written

    def check(self) -> None:
        """RuntimeError where something that stands in for a column was not seen: Arrow wrote what was never filled."""
        if self._parts:
            raise RuntimeError("Arrow's writer copied a column that it used to hand on")

    def flush(self) -> None:
        """The sink decides when its bytes go on."""

    def close(self) -> None:
        """The sink closes at commit."""

    def writable(self) -> bool:
        return True
