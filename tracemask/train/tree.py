"""Lay token rows out as prefix trees, each shared token once. Knows token ids and slots; no weight, no model, no torch.

A *slot* is one token of the laid-out micro-batch. Slots run depth first, so a subtree is a contiguous range and every
ancestor lies to the left. Plain packing is the same layout without sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from tracemask.core.errors import TrainError

_GALLOP = 64  # first comparison window of a common-prefix search; doubles until a difference is found


class Sharing(str, Enum):
    """Which tokens may be laid out once."""

    ROWS = "rows"  # none: every row is its own root
    TREE = "tree"  # every common prefix of the rows given


@dataclass(frozen=True, slots=True)
class Layout:
    """Slots of one micro-batch; S slots, R rows. All arrays int64.

    ids[S] token of the slot; position[S] its depth, from 0 at each root; parent[S] the slot whose hidden state
    predicts it (-1 at a root); exit[S] end (exclusive) of the subtree of the slot: slot q sees slot kv exactly when
    kv <= q < exit[kv]. roots[T + 1] boundaries of the T trees. slots: per row, the slots of its tokens in order.
    """

    ids: np.ndarray
    position: np.ndarray
    parent: np.ndarray
    exit: np.ndarray
    roots: np.ndarray
    slots: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Tokens of all rows, shared ones counted once per row."""
        return sum(len(slots) for slots in self.slots)

    def mask(self, *, window: int | None = None) -> np.ndarray:
        """bool[S, S]: may slot q (first axis) attend to slot kv. A window counts depth, never slots."""
        slot = np.arange(len(self))
        seen = (slot[None, :] <= slot[:, None]) & (slot[:, None] < self.exit[None, :])
        if window is not None:
            seen &= self.position[:, None] - self.position[None, :] < window
        return seen


def common_prefix(first: np.ndarray, second: np.ndarray, *, start: int, stop: int) -> int:
    """First index in [start, stop) at which the two differ, or `stop`."""
    step = _GALLOP
    while start < stop:
        end = min(start + step, stop)
        unequal = first[start:end] != second[start:end]
        if unequal.any():
            return start + int(unequal.argmax())
        start, step = end, step * 2
    return stop


@dataclass(slots=True)
class _Segment:
    """A run of slots shared by the same rows: `first[begin:end]` of row `row`, laid at slot `at`."""

    row: int
    begin: int
    end: int
    at: int
    parent: int  # index of the parent segment, -1 at a root


def _fork(members: list[int], depth: int, rows: Sequence[np.ndarray]) -> list[list[int]]:
    """Rows that agree on [0, depth) grouped by their token at `depth`, first come first; shorter rows end here."""
    children: dict[int, list[int]] = {}
    for row in members:
        if len(rows[row]) > depth:
            children.setdefault(int(rows[row][depth]), []).append(row)
    return list(children.values())


def _segments(rows: Sequence[np.ndarray], slots: Sequence[np.ndarray]) -> list[_Segment]:
    """Depth-first segments of the trie over `rows`; fills `slots` on the way. A stack, so depth has no limit."""
    found: list[_Segment] = []
    size = 0
    stack = [(members, 0, -1) for members in reversed(_fork(list(range(len(rows))), 0, rows))]
    while stack:
        members, depth, parent = stack.pop()
        lead = rows[members[0]]
        end = min(len(rows[row]) for row in members)
        for row in members[1:]:
            end = common_prefix(lead, rows[row], start=depth, stop=end)
        for row in members:
            slots[row][depth:end] = np.arange(size, size + end - depth)
        stack.extend((child, end, len(found)) for child in reversed(_fork(members, end, rows)))
        found.append(_Segment(members[0], depth, end, size, parent))
        size += end - depth
    return found


def lay_out(rows: Sequence[np.ndarray], *, sharing: Sharing = Sharing.TREE) -> Layout:
    """The layout of one tree (or, without sharing, of one root per row). rows: integer arrays [L_r], L_r >= 1.

    Deterministic: rows and children keep their order of first appearance. O(tokens). Raises TrainError TM904 on an
    empty row.
    """
    for index, row in enumerate(rows):
        if len(row) == 0:
            raise TrainError("TM904", where=f"row {index}", what="the row has no tokens", fix="drop it before training")
    if sharing is Sharing.ROWS:
        return concat([lay_out([row]) for row in rows])
    slots = tuple(np.empty(len(row), np.int64) for row in rows)
    segments = _segments(rows, slots)
    size = segments[-1].at + segments[-1].end - segments[-1].begin if segments else 0
    ids, position, parent, leave = (np.empty(size, np.int64) for _ in range(4))
    ends = [segment.at + segment.end - segment.begin for segment in segments]
    for index in range(len(segments) - 1, -1, -1):
        above = segments[index].parent
        if above >= 0:
            ends[above] = max(ends[above], ends[index])
    roots = [segment.at for segment in segments if segment.parent < 0]
    for segment, end in zip(segments, ends, strict=True):
        here = slice(segment.at, segment.at + segment.end - segment.begin)
        ids[here] = rows[segment.row][segment.begin : segment.end]
        position[here] = np.arange(segment.begin, segment.end)
        parent[here] = np.arange(here.start - 1, here.stop - 1)
        leave[here] = end
        if segment.parent < 0:
            parent[here.start] = -1
        else:
            above = segments[segment.parent]
            parent[here.start] = above.at + above.end - above.begin - 1
    return Layout(ids, position, parent, leave, np.asarray([*roots, size], np.int64), slots)


def concat(layouts: Sequence[Layout]) -> Layout:
    """Several layouts side by side in one micro-batch: nothing is shared between them. Rows keep their order."""
    offsets = np.cumsum([0, *(len(layout) for layout in layouts)])
    pairs = list(zip(layouts, offsets[:-1], strict=True))

    def join(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    return Layout(
        ids=join([one.ids for one in layouts]),
        position=join([one.position for one in layouts]),
        parent=join([np.where(one.parent < 0, -1, one.parent + at) for one, at in pairs]),
        exit=join([one.exit + at for one, at in pairs]),
        roots=join([*(one.roots[:-1] + at for one, at in pairs), offsets[-1:]]).astype(np.int64),
        slots=tuple(slots + at for one, at in pairs for slots in one.slots),
    )


class Trie:
    """The prefixes of the rows added so far, to know how many slots one more takes before anything is laid out."""

    def __init__(self) -> None:
        self._edges: dict[int, _Edge] = {}

    def add(self, row: np.ndarray) -> int:
        """Adds `row`; the slots it takes: its length less its longest common prefix with any row before. O(tokens)."""
        edges, depth = self._edges, 0
        while depth < len(row):
            token = int(row[depth])
            edge = edges.get(token)
            if edge is None:
                edges[token] = _Edge(row, len(row), {})
                return len(row) - depth
            depth = common_prefix(edge.row, row, start=depth, stop=min(edge.end, len(row)))
            if depth < edge.end:  # the row leaves, or ends, inside: the edge is cut there
                edge.below = {int(edge.row[depth]): _Edge(edge.row, edge.end, edge.below)}
                edge.end = depth
            edges = edge.below
        return 0


@dataclass(slots=True)
class _Edge:
    """Tokens of `row` up to `end`, from where the edge above ends."""

    row: np.ndarray
    end: int
    below: dict[int, _Edge]
