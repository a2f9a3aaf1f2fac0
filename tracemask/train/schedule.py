"""Learning-rate factors over optimizer updates. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable

from tracemask.core.registry import Table

Shape = Callable[[float], float]


def constant(progress: float) -> float:
    """1 throughout."""
    return 1.0


def linear(progress: float) -> float:
    """From 1 to 0 in a straight line."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: Table[Shape] = Table("schedule", constant=constant, linear=linear, cosine=cosine)


def factor(name: str, update: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Learning-rate factor of optimizer update `update` (0-based) of `total`; a function of its arguments alone.

    The first `warmup` updates rise linearly to 1; the rest falls along the schedule to `floor`, reached after the last.
    """
    if update < warmup:
        return (update + 1) / (warmup + 1)
    progress = min(1.0, (update - warmup) / max(1, total - warmup))
    return floor + (1.0 - floor) * SCHEDULES[name](progress)
