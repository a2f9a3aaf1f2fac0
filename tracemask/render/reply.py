"""One reply as the engine returned it. Knows no render and no stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Reply:
    """What the engine returned for one reply: ids[n] int32, logprob[n] float32 (NaN: missing), author[n], columns.

    part, role: uint8[n] of a reply that stands for what no render says; message: its index in the trace.
    """

    ids: np.ndarray
    logprob: np.ndarray
    author: np.ndarray
    columns: dict[str, np.ndarray]
    part: np.ndarray | None = None
    role: np.ndarray | None = None
    message: int = -1

    @property
    def unprinted(self) -> bool:
        """No render says this reply."""
        return self.part is not None
