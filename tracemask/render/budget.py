"""What one render may spend, and where it stands: steps, calls, and the message whose loop iteration is running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracemask.render.fields import Record
from tracemask.render.provenance import make, plain, runs_of
from tracemask.render.tags import At, LimitExceeded

MAX_STEPS = 1_000_000  # loop iterations, calls and list elements of one render
MAX_SOURCE = 1 << 20  # characters of a template


class Progress:
    """State of one render. `message`: index of the message being iterated, -1 outside every message loop."""

    __slots__ = ("message", "steps")

    def __init__(self) -> None:
        self.message = -1
        self.steps = MAX_STEPS

    def enter(self, item: Any) -> None:
        """One iteration of a loop over `item`."""
        if type(item) is Record and item._message >= 0:
            self.message = item._message
        self.steps -= 1
        if self.steps < 0:
            self.refuse()

    def spend(self, steps: int) -> None:
        """Count work that is done outside loops."""
        self.steps -= steps
        if self.steps < 0:
            self.refuse()

    def refuse(self) -> None:
        """Too many steps."""
        raise LimitExceeded(f"more than {MAX_STEPS} steps")


class Buffer(list[str]):
    """Output captured by a set block or macro that loops: what a message's iteration wrote keeps that position.

    Outside such loops the position is settled where the captured text is printed.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._outside = progress.message

    def append(self, piece: str, /) -> None:
        message = self._progress.message
        if message != self._outside:
            runs = [(length, tag if type(tag) is At else At(message, tag)) for length, tag in runs_of(piece)]
            piece = make(plain(piece), runs)
        super().append(piece)

    def extend(self, pieces: Iterable[str], /) -> None:
        for piece in pieces:
            self.append(piece)
