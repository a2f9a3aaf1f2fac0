"""Turns to rows: a turn whose context starts with a whole row extends it, any other forks. Each reply has one owner.

Knows ids and labels; knows no template.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracemask.core.finding import Finding
from tracemask.core.vocab import Fidelity
from tracemask.render.sample import Drift, Fork
from tracemask.render.spoken import Spoken
from tracemask.render.stream import Base, Stream


@dataclass
class Row:
    """One row under construction. tail: (base, tokens) where the row is exactly the first tokens of a base's stream.

    spoke: (message, tokens) of the last reply added: its index in the trace, the row's length after it.
    mixed: (start, what is said) of replies in which not only the policy wrote.
    """

    number: int
    fork: Fork | None = None
    pieces: list[Stream] = field(default_factory=list)
    owned: list[tuple[int, int]] = field(default_factory=list)
    tail: tuple[Base, int] | None = None
    spoke: tuple[int, int] | None = None
    mixed: list[tuple[int, Spoken]] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    fidelities: list[Fidelity] = field(default_factory=list)
    approximate: bool = False
    truncated: bool = False
    stop: str | None = None
    length: int = 0
    _ids: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int32))
    _copied: int = 0
    _last: tuple[Base, int, int] | None = None

    @property
    def ids(self) -> np.ndarray:
        """The row's ids so far (a view)."""
        self._close()
        return self._ids[: self.length]

    def append(self, piece: Stream) -> None:
        """Adds tokens; amortized constant time a token."""
        self._close()
        self._write(piece)
        self.length += len(piece)

    def append_from(self, base: Base, start: int, end: int) -> None:
        """Adds tokens [start, end) of a base's stream; adjoining stretches become one piece."""
        if self._last is not None and self._last[0] is base and self._last[2] == start:
            self._last = (base, self._last[1], end)
        else:
            self._close()
            self._last = (base, start, end)
        self.length += end - start

    def _close(self) -> None:
        if self._last is not None:
            base, start, end = self._last
            self._last = None
            self._write(base.stream.cut(start, end))

    def _write(self, piece: Stream) -> None:
        end = self._copied + len(piece)
        if end > len(self._ids):
            grown = np.zeros(max(end, 2 * len(self._ids)), np.int32)
            grown[: self._copied] = self._ids[: self._copied]
            self._ids = grown
        self._ids[self._copied : end] = piece.ids
        self._copied = end
        self.pieces.append(piece)

    def streams(self) -> list[Stream]:
        """The row's pieces in order."""
        self._close()
        return self.pieces

    def own(self, start: int, end: int) -> None:
        """Tokens [start, end) were sampled here and nowhere before."""
        self.owned.append((start, end))


@dataclass
class Stitcher:
    """The rows of one trace, in creation order."""

    rows: list[Row] = field(default_factory=list)

    def open(self, context: np.ndarray, base: Base | None, start: int) -> tuple[Row, int]:
        """(the row that a turn with this context belongs to, how many context tokens it has already).

        base, start: the context is the first `start` tokens of that base's stream. The longest row that the context
        starts with is extended; else a new row forks from the deepest common prefix.
        """
        if base is not None:
            for row in reversed(self.rows):
                if row.tail is not None and row.tail[0] is base and row.tail[1] <= start:
                    return row, row.tail[1]
        best: Row | None = None
        for row in self.rows:
            if (best is None or row.length > best.length) and _starts_with(context, row.ids):
                best = row
        if best is not None:
            return best, best.length
        return self._fork(context), 0

    def _fork(self, context: np.ndarray) -> Row:
        fork: Fork | None = None
        for row in self.rows:
            shared = common_prefix(context, row.ids)
            if shared and (fork is None or shared > fork.position):
                fork = Fork(row.number, shared)
        row = Row(len(self.rows), fork)
        self.rows.append(row)
        return row


def _starts_with(context: np.ndarray, ids: np.ndarray) -> bool:
    return len(ids) <= len(context) and bool(np.array_equal(context[: len(ids)], ids))


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Length of the longest common prefix of two id arrays."""
    size = min(len(left), len(right))
    different = np.flatnonzero(left[:size] != right[:size])
    return int(different[0]) if len(different) else size
