"""Which weight a row's tokens carry, and the runs of tokens that share author and weight. Knows no layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracemask.core.vocab import Author, Part, Role
from tracemask.store.row import Row


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens [start, end) with one author, role, part, message and one weight per component."""

    start: int
    end: int
    author: Author | None
    role: Role | None
    part: Part | None
    message: int
    weights: tuple[tuple[str, float], ...]

    @property
    def in_loss(self) -> bool:
        return any(weight != 0 for _, weight in self.weights)


def stored_weights(row: Row) -> dict[str, np.ndarray]:
    """The weight streams a row carries itself: weight.<component>, else labels or mask, else the sampled flag.

    Returns {name: float32[T]}; {} where nothing says what is trained.
    """
    prefix = "weight."
    streams = {name[len(prefix) :]: column for name, column in row.columns.items() if name.startswith(prefix)}
    if streams:
        return {name: np.asarray(stream, np.float32) for name, stream in sorted(streams.items())}
    if (labels := row.get("labels")) is not None:
        return {"labels": (np.asarray(labels) != -100).astype(np.float32)}
    for name in ("mask", "sampled"):
        if (mask := row.get(name)) is not None:
            return {name: np.asarray(mask).astype(np.float32)}
    return {}


def runs(row: Row, weights: dict[str, np.ndarray], *, by_part: bool = False) -> list[Run]:
    """Maximal runs of equal author and weights (and role, part, message with `by_part`), covering [0, T) once."""
    length = len(row)
    if not length:
        return []
    keys = [name for name in ("author", *(("role", "part", "message") if by_part else ())) if name in row.columns]
    change = np.zeros(length, bool)
    change[0] = True
    for column in (*(np.asarray(row[name]) for name in keys), *weights.values()):
        change[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(change)
    ends = np.append(starts[1:], length)
    return [_run(row, weights, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _run(row: Row, weights: dict[str, np.ndarray], start: int, end: int) -> Run:
    def code(name: str) -> int | None:
        column = row.get(name)
        return None if column is None else int(column[start])

    author, role, part, message = code("author"), code("role"), code("part"), code("message")
    return Run(
        start,
        end,
        None if author is None else Author(author),
        None if role is None else Role(role),
        None if part is None else Part(part),
        -1 if message is None else message,
        tuple((name, float(stream[start])) for name, stream in weights.items()),
    )


def loss_spans(row_runs: list[Run]) -> Iterator[tuple[int, int]]:
    """Half-open token ranges in the loss, adjacent runs joined."""
    start = end = -1
    for run in row_runs:
        if not run.in_loss:
            continue
        if run.start == end:
            end = run.end
            continue
        if end > start >= 0:
            yield start, end
        start, end = run.start, run.end
    if end > start >= 0:
        yield start, end
