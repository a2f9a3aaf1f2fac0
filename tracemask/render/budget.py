"""What one render may spend, and where it stands: steps, calls, and the message whose loop iteration is running."""

from __future__ import annotations

from typing import Any

from tracemask.render.provenance import LimitExceeded, Record

MAX_STEPS = 2_000_000  # loop iterations, calls and list elements of one render
MAX_DEPTH = 120  # calls inside calls
MAX_SOURCE = 1 << 20  # characters of a template


class Progress:
    """State of one render. `message`: index of the message being iterated, -1 outside every message loop."""

    __slots__ = ("depth", "message", "steps")

    def __init__(self) -> None:
        self.message = -1
        self.steps = MAX_STEPS
        self.depth = 0

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
