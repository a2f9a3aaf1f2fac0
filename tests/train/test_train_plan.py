"""The plan of a step: trees, micro-batches and ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracemask.core.errors import TrainError
from tracemask.store.pack import Overlong
from tracemask.train.config import Packing
from tracemask.train.plan import Rollout, fill, fit, grow, share
from tracemask.train.tree import Sharing

GROUPS = st.lists(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=5), min_size=1, max_size=4
)


def rollouts(lists: list[list[int]], *, start: int = 0) -> list[Rollout]:
    return [Rollout(f"t{start + i}", (start + i,), (np.asarray(one),)) for i, one in enumerate(lists)]


def group_of(lists: list[list[list[int]]]) -> list[list[Rollout]]:
    start, groups = 0, []
    for one in lists:
        groups.append(rollouts(one, start=start))
        start += len(one)
    return groups


@settings(max_examples=100, derandomize=True, deadline=None)
@given(GROUPS, st.sampled_from(Packing), st.integers(9, 30), st.integers(1, 4))
def test_every_row_is_trained_exactly_once_within_the_budget(
    lists: list[list[list[int]]], packing: Packing, budget: int, ranks: int
) -> None:
    groups = group_of(lists)
    trees = [tree for group in groups for tree in grow(group, budget=budget, packing=packing)]
    batches = [batch for mine in share(trees, ranks) for batch in fill(mine, budget=budget)]
    assert sorted(row for batch in batches for row in batch.rows) == list(range(sum(map(len, groups))))
    for batch in batches:
        assert batch.slots <= budget
        assert len(batch.lay_out()) == batch.slots


def test_a_group_over_the_budget_becomes_several_trees_that_repeat_the_prompt() -> None:
    prompt = [7] * 6
    group = rollouts([[*prompt, 1, 1], [*prompt, 2, 2], [*prompt, 3, 3]])
    trees = grow(group, budget=10, packing=Packing.TREE)
    assert [tree.rows for tree in trees] == [(0, 1), (2,)]
    assert [tree.slots for tree in trees] == [10, 8]


def test_auto_lays_rows_side_by_side_where_little_is_shared() -> None:
    little = rollouts([[1, *range(10, 20)], [1, *range(30, 40)]])
    much = rollouts([[*range(10), 1], [*range(10), 2]])
    assert [tree.sharing for tree in grow(little, budget=50, packing=Packing.AUTO)] == [Sharing.ROWS] * 2
    assert [tree.sharing for tree in grow(much, budget=50, packing=Packing.AUTO)] == [Sharing.TREE]


def test_a_row_longer_than_the_budget_is_never_split_silently() -> None:
    documents = rollouts([[0] * 4, [1] * 3, [2] * 5, [3] * 7])
    with pytest.raises(TrainError, match=r"t3: .*7 slots, more than the 6"):
        fit(documents[3], budget=6, packing=Packing.ROWS, overlong=Overlong.ERROR)
    assert fit(documents[3], budget=6, packing=Packing.ROWS, overlong=Overlong.SKIP) is None
    cut = fit(documents[3], budget=6, packing=Packing.ROWS, overlong=Overlong.TRUNCATE)
    assert cut is not None and [len(ids) for ids in cut.ids] == [6]
    trees = [tree for one in documents[:3] for tree in grow([one], budget=6, packing=Packing.ROWS)]
    batches = fill(trees, budget=6)
    assert sorted(batch.slots for batch in batches) == [3, 4, 5]  # every pair of 4, 3, 5 exceeds 6


def test_ranks_share_slots_evenly_with_skewed_lengths() -> None:
    trees = [
        tree
        for one in rollouts([[0] * n for n in (300, 40, 37, 11)])
        for tree in grow([one], budget=400, packing=Packing.ROWS)
    ]
    assert [sum(tree.slots for tree in mine) for mine in share(trees, 2)] == [300, 88]
