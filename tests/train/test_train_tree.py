"""The prefix-tree layout: slots, parents, exits, and what it must not share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracemask.core.errors import TrainError
from tracemask.train.tree import Layout, Sharing, Trie, common_prefix, concat, lay_out

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(np.asarray), min_size=1, max_size=7)


def path_to(layout: Layout, slot: int) -> list[int]:
    """Slots from the root to `slot`, by parents."""
    path = []
    while slot >= 0:
        path.append(slot)
        slot = int(layout.parent[slot])
    return path[::-1]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(ROWS, st.sampled_from(Sharing))
def test_every_row_is_the_path_from_a_root_to_its_last_slot(rows: list[np.ndarray], sharing: Sharing) -> None:
    layout = lay_out(rows, sharing=sharing)
    for row, slots in zip(rows, layout.slots, strict=True):
        assert layout.ids[slots].tolist() == row.tolist()
        assert layout.position[slots].tolist() == list(range(len(row)))
        assert path_to(layout, int(slots[-1])) == slots.tolist()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(ROWS)
def test_a_tree_has_one_slot_for_each_distinct_prefix(rows: list[np.ndarray]) -> None:
    prefixes = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert len(lay_out(rows)) == len(prefixes)
    trie = Trie()
    sizes = [trie.add(row) for row in rows]
    assert sizes == [len(lay_out(rows[: n + 1])) - (len(lay_out(rows[:n])) if n else 0) for n in range(len(rows))]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(ROWS, st.sampled_from(Sharing), st.sampled_from([None, 1, 3]))
def test_a_slot_sees_its_ancestors_and_nothing_else(
    rows: list[np.ndarray], sharing: Sharing, window: int | None
) -> None:
    layout = lay_out(rows, sharing=sharing)
    mask = layout.mask(window=window)
    for slot in range(len(layout)):
        path = path_to(layout, slot)
        assert np.flatnonzero(mask[slot]).tolist() == (path if window is None else path[-window:])


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=3))
def test_trees_side_by_side_share_nothing(groups: list[list[np.ndarray]]) -> None:
    layouts = [lay_out(rows) for rows in groups]
    joined = concat(layouts)
    assert joined.roots[-1] == len(joined) == sum(map(len, layouts))
    assert len(joined.slots) == sum(map(len, groups))
    mask = joined.mask()
    owner = np.repeat(np.arange(len(layouts)), [len(one) for one in layouts])
    assert not mask[owner[:, None] != owner[None, :]].any()
    for slots, row in zip(joined.slots, [row for rows in groups for row in rows], strict=True):
        assert joined.ids[slots].tolist() == row.tolist()
        assert path_to(joined, int(slots[-1])) == slots.tolist()


def test_rows_without_sharing_are_plain_packing() -> None:
    layout = lay_out([np.asarray([5, 9, 17]), np.asarray([5, 9])], sharing=Sharing.ROWS)
    assert layout.position.tolist() == [0, 1, 2, 0, 1]
    assert layout.parent.tolist() == [-1, 0, 1, -1, 3]
    assert layout.exit.tolist() == [3, 3, 3, 5, 5]
    assert layout.roots.tolist() == [0, 3, 5]


def test_a_fork_continues_from_the_last_shared_slot() -> None:
    layout = lay_out([np.asarray([1, 2, 3, 4]), np.asarray([1, 2, 7]), np.asarray([1, 2])])
    assert layout.ids.tolist() == [1, 2, 3, 4, 7]
    assert layout.parent.tolist() == [-1, 0, 1, 2, 1]
    assert layout.exit.tolist() == [5, 5, 4, 4, 5]
    assert layout.position.tolist() == [0, 1, 2, 3, 2]


def test_more_nested_rows_than_the_recursion_limit_are_laid_out() -> None:
    text = np.arange(1200)
    layout = lay_out([text[: end + 1] for end in range(1200)])
    assert len(layout) == 1200
    assert layout.tokens == 1200 * 1201 // 2


def test_an_empty_row_is_refused_by_number() -> None:
    with pytest.raises(TrainError, match=r"row 1: TM904"):
        lay_out([np.asarray([1]), np.asarray([], np.int64)])


@given(st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_the_common_prefix_search_finds_the_first_difference(at: int, start: int) -> None:
    first, second = np.zeros(400, np.int64), np.zeros(400, np.int64)
    if at < 400:
        second[at] = 1
    assert common_prefix(first, second, start=start, stop=400) == (at if at >= start else 400)
