"""What is wrong with a row's mask as a whole: shifted, inverted, running on. Knows no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracemask.check.turns import Votes
from tracemask.core.vocab import Author

if TYPE_CHECKING:
    from tracemask.check.view import View


def shift_of(view: View) -> np.ndarray:
    """shift[R] int8: how far a row's whole mask lies to the right of its turns; 0 where right or undecided."""
    out = np.zeros(len(view.block.rows), dtype=np.int8)
    if view.run.grammar is None or view.mask is None:
        return out
    votes = view.votes
    inside = votes.inside
    moved = inside & (votes.head == votes.tail) & (votes.head != 0)
    settled = inside & ((votes.head == 0) | (votes.tail == 0))
    counts = {d: np.bincount(votes.row[moved & (votes.head == d)], minlength=len(out)) for d in (-2, -1, 1, 2)}
    right = np.bincount(votes.row[settled], minlength=len(out))
    for d, count in counts.items():
        out[(count > right) & (count > 0)] = d
    common = _consensus(votes, counts)
    if common:  # spans at a row's end abstain, unless the other rows have decided
        alone = votes.touches & (votes.head == common)
        rows = np.unique(votes.row[alone])
        out[rows[(out[rows] == 0) & (right[rows] == 0)]] = common
    return out


def _consensus(votes: Votes, counts: dict[int, np.ndarray]) -> int:
    """The shift that nine tenths of ten or more decided spans have; 0 without one."""
    decided = int(votes.inside.sum())
    best = max(counts, key=lambda d: int(counts[d].sum()))
    return best if decided >= 10 and counts[best].sum() >= 0.9 * decided else 0


def inverted(view: View) -> np.ndarray:
    """inverted[R] bool: of the row, or of a document packed in it, nine tenths of the others' tokens are trained and at
    most a tenth of the policy's."""
    out = _inverted(view, view.block.row_of, len(view.block.rows))
    out[view.block.row_of[view.edges[:-1][inverted_documents(view)]]] = True
    return out


def inverted_documents(view: View) -> np.ndarray:
    """inverted[D] bool: the same of the stretches between `view.edges`, each a document or a whole row."""
    lengths = np.diff(view.edges)
    return _inverted(view, np.repeat(np.arange(len(lengths)), lengths), len(lengths))


def _inverted(view: View, part_of: np.ndarray, parts: int) -> np.ndarray:
    """part_of[N]: the part that each token belongs to."""
    if view.author is None or view.mask is None:
        return np.zeros(parts, dtype=bool)
    mine = view.policy & ~view.padding
    others = ~view.policy & view.known & ~view.padding
    count = lambda flags: np.bincount(part_of[flags], minlength=parts)  # noqa: E731
    total, other = count(mine), count(others)
    return (
        (total >= 4)
        & (other >= 4)
        & (count(view.trained & others) >= 0.9 * other)
        & (count(view.trained & mine) <= 0.1 * total)
    )


def runs_on(view: View) -> np.ndarray:
    """runs_on[R] bool: the last trained span reaches the row's end across another speaker's turn."""
    rows = len(view.block.rows)
    out = np.zeros(rows, dtype=bool)
    if view.author is None or view.mask is None or not len(view.block):
        return out
    start, end = view.block.spans(view.mask, view.edges)
    if not len(start):
        return out
    foreign = np.concatenate([[0], np.cumsum(~view.policy & ~view.padding & (view.author != Author.RENDERER))])
    mine = np.concatenate([[0], np.cumsum(view.policy)])
    crosses = view.ends_text(end) & (foreign[end] - foreign[start] >= 1) & (mine[end] - mine[start] >= 1)
    crosses &= (view.policy | view.leading)[start] & ~np.isin(start, view.edges)
    out[view.block.row_of[start[crosses]]] = True
    return out
