"""Which weight a row's tokens carry, and the runs of tokens that share author and weight. Knows no layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracemask.check.block import per_token
from tracemask.core.limits import IGNORED
from tracemask.core.vocab import Author, Code, Part, Role
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


CODES: Mapping[str, type[Code]] = {"author": Author, "role": Role, "part": Part}


def misfits(row: Row) -> dict[str, int]:
    """Lengths of the per-token columns that are not as long as the ids: rule TM101 reports them."""
    return {name: len(values) for name, values in row.columns.items() if per_token(name) and len(values) != len(row)}


def whole(row: Row) -> Row:
    """The row without its `misfits`, whose entries speak of nobody knows which token."""
    out = misfits(row)
    if not out:
        return row
    return Row(row.index, {name: values for name, values in row.columns.items() if name not in out}, row.scalars)


def codes(row: Row, name: str) -> np.ndarray:
    """int32[T]: the column `name`; −1 where the row lacks it or a code of author, role or part has no meaning."""
    column = row.get(name)
    if column is None or column.dtype.kind not in "iu":
        return np.full(len(row), -1, np.int32)
    column = column.astype(np.int64)
    known = (column >= 0) & (column < len(CODES[name]) if name in CODES else column < 2**31)
    return np.where(known, column, -1).astype(np.int32)


def stored_weights(row: Row) -> dict[str, np.ndarray]:
    """The weight streams a row carries itself: weight.<component>, else labels or mask, else the sampled flag.

    Returns {name: float32[T]}; {} where nothing says what is trained.
    """
    row = whole(row)
    prefix = "weight."
    streams = {name[len(prefix) :]: column for name, column in row.columns.items() if name.startswith(prefix)}
    if streams:
        return {name: np.asarray(stream, np.float32) for name, stream in sorted(streams.items())}
    if (labels := row.get("labels")) is not None:
        return {"labels": (np.asarray(labels) != IGNORED).astype(np.float32)}
    for name in ("mask", "sampled"):
        if (mask := row.get(name)) is not None:
            return {name: np.asarray(mask).astype(np.float32)}
    return {}


def runs(row: Row, weights: dict[str, np.ndarray], *, by_part: bool = False) -> list[Run]:
    """Maximal runs of equal author and weights (and role, part, message with `by_part`), covering [0, T) once."""
    length = len(row)
    if not length:
        return []
    columns = {name: codes(row, name) for name in ("author", "role", "part", "message")}
    change = np.zeros(length, bool)
    change[0] = True
    for column in (*(columns[name] for name in (columns if by_part else ("author",))), *weights.values()):
        change[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(change)
    ends = np.append(starts[1:], length)
    at = {name: column[starts].tolist() for name, column in columns.items()}
    streams = {name: stream[starts].tolist() for name, stream in weights.items()}
    return [
        Run(
            int(start),
            int(end),
            None if (author := at["author"][k]) < 0 else Author(author),
            None if (role := at["role"][k]) < 0 else Role(role),
            None if (part := at["part"][k]) < 0 else Part(part),
            at["message"][k],
            tuple((name, float(stream[k])) for name, stream in streams.items()),
        )
        for k, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


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
