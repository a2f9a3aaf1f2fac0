"""Which rows share a tree, which trees share a micro-batch, which rank takes them. Knows ids and slots, no weights.

Rows of one rollout stay together, because sequence-level terms reduce over them; a tree never crosses a micro-batch.
Every rank computes the same plan from the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracemask.core.errors import TrainError
from tracemask.store.pack import Overlong, pack
from tracemask.train.config import Packing
from tracemask.train.tree import Layout, Sharing, Trie, concat, lay_out

WORTH_SHARING = 0.8  # slots per token below which a tree beats plain packing on a CPU (bench/train.py)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rows of one rollout: `rows` are numbers within the step, `ids` their token ids, `name` for messages."""

    name: str
    rows: tuple[int, ...]
    ids: tuple[np.ndarray, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(one) for one in self.ids)

    def cut(self, length: int) -> Rollout:
        """Every row cut to its first `length` tokens."""
        return replace(self, ids=tuple(one[:length] for one in self.ids))


@dataclass(frozen=True, slots=True)
class Tree:
    """Rollouts laid out together: `slots` in total."""

    rollouts: tuple[Rollout, ...]
    sharing: Sharing
    slots: int

    @property
    def tokens(self) -> int:
        """Tokens of all rows, shared ones once per row."""
        return sum(one.tokens for one in self.rollouts)

    @property
    def rows(self) -> tuple[int, ...]:
        """Row numbers in layout order."""
        return tuple(row for one in self.rollouts for row in one.rows)

    def lay_out(self) -> Layout:
        """The tree's slots."""
        return lay_out([ids for one in self.rollouts for ids in one.ids], sharing=self.sharing)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Trees side by side."""

    trees: tuple[Tree, ...]

    @property
    def slots(self) -> int:
        """Slots of all trees."""
        return sum(tree.slots for tree in self.trees)

    @property
    def rows(self) -> tuple[int, ...]:
        """Row numbers in layout order."""
        return tuple(row for tree in self.trees for row in tree.rows)

    def lay_out(self) -> Layout:
        """The micro-batch's slots."""
        return concat([tree.lay_out() for tree in self.trees])


def size_of(rollout: Rollout, sharing: Sharing) -> int:
    """Slots a rollout takes alone."""
    if sharing is Sharing.ROWS:
        return rollout.tokens
    return _added(Trie(), rollout)


def fit(rollout: Rollout, *, budget: int, packing: Packing, overlong: Overlong) -> Rollout | None:
    """The rollout, cut or None (skip) where it does not fit the budget alone; TM602 where that is an error."""
    sharing = Sharing.ROWS if packing is Packing.ROWS else Sharing.TREE
    size = size_of(rollout, sharing)
    if size <= budget:
        return rollout
    if overlong is Overlong.SKIP:
        return None
    if overlong is Overlong.ERROR:
        raise TrainError(
            "TM602",
            where=rollout.name,
            what=f"the rollout takes {size} slots, more than the {budget} of a micro-batch",
            fix=f"--tokens-per-batch {size}, or --overlong truncate|skip",
        )
    low, high = 1, max(len(ids) for ids in rollout.ids)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size_of(rollout.cut(middle), sharing) <= budget else (low, middle - 1)
    if size_of(rollout.cut(low), sharing) > budget:
        raise TrainError(
            "TM602", where=rollout.name, what=f"{len(rollout.rows)} rows cannot be cut to {budget} slots",
            fix="--tokens-per-batch, larger",
        )  # fmt: skip
    return rollout.cut(low)


def grow(group: Sequence[Rollout], *, budget: int, packing: Packing) -> list[Tree]:
    """Trees of one group: rollouts join while the tree stays within the budget; over it, a new tree begins.

    Without sharing, or where `auto` finds too little of it, each rollout is laid out by itself.
    """
    if packing is Packing.ROWS:
        return [Tree((one,), Sharing.ROWS, one.tokens) for one in group]
    trees: list[Tree] = []
    members: list[Rollout] = []
    trie, slots = Trie(), 0
    for rollout in group:
        more = _added(trie, rollout)
        if members and slots + more > budget:
            trees.append(Tree(tuple(members), Sharing.TREE, slots))
            members, trie, slots = [], Trie(), 0
            more = _added(trie, rollout)
        members.append(rollout)
        slots += more
    if members:
        trees.append(Tree(tuple(members), Sharing.TREE, slots))
    if packing is Packing.TREE:
        return trees
    return [part for tree in trees for part in _worth(tree, budget)]


def _worth(tree: Tree, budget: int) -> list[Tree]:
    if tree.slots <= WORTH_SHARING * tree.tokens or any(one.tokens > budget for one in tree.rollouts):
        return [tree]
    return [Tree((one,), Sharing.ROWS, one.tokens) for one in tree.rollouts]


def _added(trie: Trie, rollout: Rollout) -> int:
    """Slots that the rollout's rows add to the tree, which holds them afterwards."""
    return sum(trie.add(ids) for ids in rollout.ids)


def share(trees: Sequence[Tree], ranks: int) -> list[list[Tree]]:
    """Trees of each rank: largest first to the rank with the fewest slots (lowest rank on a tie), order kept within."""
    load = [0] * ranks
    owner = [0] * len(trees)
    for index in sorted(range(len(trees)), key=lambda one: (-trees[one].slots, one)):
        owner[index] = min(range(ranks), key=lambda rank: (load[rank], rank))
        load[owner[index]] += trees[index].slots
    return [[tree for tree, mine in zip(trees, owner, strict=True) if mine == rank] for rank in range(ranks)]


def fill(trees: Sequence[Tree], *, budget: int) -> list[MicroBatch]:
    """Micro-batches of at most `budget` slots by best fit, largest first; deterministic."""
    packed = pack([tree.slots for tree in trees], budget)
    return [MicroBatch(tuple(trees[index] for index in one)) for one in packed.bins]
