"""The reading order is one function of seed, epoch and position, whoever reads and wherever it was interrupted."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from store_rows import dataset, rows

from tracemask.core.errors import StoreError
from tracemask.store.permutation import Permutation
from tracemask.store.reader import Dataset
from tracemask.store.stream import State, Stream


@settings(max_examples=60, deadline=None, derandomize=True)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
def test_a_permutation_visits_every_index_once(n: int, seed: int, epoch: int) -> None:
    found = Permutation(n, seed=seed, epoch=epoch).take(np.arange(n))
    assert sorted(found.tolist()) == list(range(n))


def test_the_order_is_frozen() -> None:
    """These numbers may never change: a resumed run depends on them."""
    assert Permutation(10, seed=0, epoch=0).take(np.arange(10)).tolist() == FROZEN_10
    assert Permutation(10**12, seed=7, epoch=3).take(np.array([0, 1, 10**12 - 1])).tolist() == FROZEN_BIG


FROZEN_10 = [8, 4, 7, 0, 1, 6, 3, 5, 9, 2]
FROZEN_BIG = [909529208021, 91218170362, 903118921191]


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    n = 20_000
    orders = [Permutation(n, seed=s, epoch=e).take(np.arange(n)) for s, e in ((0, 0), (1, 0), (0, 1))]
    for k, left in enumerate(orders):
        assert abs(np.corrcoef(left, np.arange(n))[0, 1]) < 0.03
        assert abs(np.corrcoef(left[1:], left[:-1])[0, 1]) < 0.03
        for right in orders[k + 1 :]:
            assert (left == right).mean() < 0.001


def test_every_position_is_equally_likely_to_go_anywhere() -> None:
    """Chi-square of where position 3 of 16 goes over 4,000 seeds; 99.9 % quantile of 15 degrees of freedom: 37.7."""
    counts = np.bincount([Permutation(16, seed=seed, epoch=0)(3) for seed in range(4000)], minlength=16)
    assert ((counts - 250) ** 2 / 250).sum() < 37.7


def test_positions_outside_are_refused() -> None:
    permutation = Permutation(5, seed=0, epoch=0)
    for position in (-1, 5):
        with pytest.raises(IndexError):
            permutation(position)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """23 rows in 5 groups over several shards."""
    return dataset(tmp_path_factory.mktemp("stream") / "ds", rows(23, groups=5), rows_per_shard=4)


def flat(units: Any) -> list[int]:
    return [index for unit in units for index in unit]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("unit", ["row", "group"])
def test_the_global_order_is_the_same_for_any_number_of_ranks(grouped: Dataset, world: int, unit: str) -> None:
    whole = [step[0] for step in Stream(grouped, seed=3, unit=unit).steps(1)]
    ranks = [list(Stream(grouped, seed=3, unit=unit, rank=rank, world=world)) for rank in range(world)]
    merged = [ranks[p % world][p // world] for p in range(len(whole))]
    assert merged == whole
    assert sorted(flat(whole)) == list(range(23))


def test_a_step_is_the_same_set_of_rows_for_any_number_of_ranks(grouped: Dataset) -> None:
    steps = [flat(step) for step in Stream(grouped, seed=1).steps(6)]
    for world in (2, 3):
        parts = [list(Stream(grouped, seed=1, rank=rank, world=world).steps(6)) for rank in range(world)]
        for k, step in enumerate(steps):
            assert sorted(index for part in parts for index in flat(part[k])) == sorted(step)
    assert [len(step) for step in steps] == [6, 6, 6, 5]


@pytest.mark.parametrize("stops", [[3, 3], [5], [3, 2], [1] * 22, [23]])
@pytest.mark.parametrize("order", ["shuffled", "stored"])
def test_a_stream_resumed_again_and_again_gives_each_row_once(grouped: Dataset, stops: list[int], order: str) -> None:
    expected = flat(Stream(grouped, seed=9, order=order))
    seen: list[int] = []
    state = Stream(grouped, seed=9, order=order).state()
    for stop in stops:
        stream = Stream(grouped, order=order)
        stream.resume(State.from_json(state.to_json()))
        units = iter(stream)
        seen += flat(next(units) for _ in range(stop))
        state = stream.state()
        assert state.consumed == len(seen)
    last = Stream(grouped, order=order)
    last.resume(state)
    seen += flat(last)
    assert seen == expected


def test_a_state_continues_with_another_number_of_ranks(grouped: Dataset) -> None:
    expected = flat(Stream(grouped, seed=4))
    before = [Stream(grouped, seed=4, rank=rank, world=2) for rank in range(2)]
    iterators = [iter(stream) for stream in before]
    seen = [index for _ in range(4) for it in iterators for index in next(it)]
    assert before[0].state() == before[1].state()
    after = [Stream(grouped, rank=rank, world=3) for rank in range(3)]
    for stream in after:
        stream.resume(before[0].state())
    parts = [flat(stream) for stream in after]
    merged = [parts[p % 3][p // 3] for p in range(23 - 8)]
    assert seen + merged == expected


def test_epochs_differ_and_each_is_complete(grouped: Dataset) -> None:
    stream = Stream(grouped, seed=2)
    first = flat(stream)
    assert list(stream) == []
    stream.next_epoch()
    second = flat(stream)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(23))
    assert stream.state().epoch == 1


def test_resume_costs_the_same_at_the_start_and_after_ten_million_rows() -> None:
    class Wide:
        """A dataset of which only length and name are asked for."""

        fingerprint = "wide"

        def __len__(self) -> int:
            return 10_000_000

    stream = Stream(Wide(), seed=1)  # type: ignore[arg-type]
    expected = stream.at(9_999_990, 9_999_993)
    start = time.perf_counter()
    fresh = Stream(Wide(), seed=1)  # type: ignore[arg-type]
    fresh.resume(State("wide", 1, 0, 9_999_990, "row", "shuffled"))
    found = list(islice(fresh, 3))
    assert time.perf_counter() - start < 0.5
    assert found == expected


@pytest.mark.parametrize(
    "change", [{"dataset": "other"}, {"packing": "best-fit-0"}, {"order": "stored"}, {"consumed": 99}]
)
def test_a_state_of_something_else_is_refused(grouped: Dataset, change: dict[str, Any]) -> None:
    stream = Stream(grouped)
    state = {**stream.state().to_json(), **change}
    with pytest.raises(StoreError) as error:
        stream.resume(State.from_json(state))
    assert error.value.code == "TM935"


@pytest.mark.parametrize("name", ["seed", "epoch", "consumed"])
@pytest.mark.parametrize("value", ["5", 1.5, None, True])
def test_a_state_of_other_kinds_of_values_is_refused(grouped: Dataset, name: str, value: Any) -> None:
    with pytest.raises(StoreError, match="TM935"):
        State.from_json({**Stream(grouped).state().to_json(), name: value})


def test_a_step_takes_at_least_one_unit(grouped: Dataset) -> None:
    with pytest.raises(StoreError, match="TM900"):
        next(Stream(grouped).steps(0))


def test_something_that_is_no_state_is_refused() -> None:
    with pytest.raises(StoreError, match="TM935"):
        State.from_json({"epoch": 1})


def test_a_group_is_never_split_over_steps(grouped: Dataset) -> None:
    groups = grouped.scalars(["group_id"])["group_id"]
    for step in Stream(grouped, unit="group").steps(2):
        for unit in step:
            assert len({groups[i] for i in unit}) == 1
            assert len(unit) == groups.count(groups[unit[0]])


def test_an_incomplete_group_waits_or_is_an_error_as_asked(grouped: Dataset) -> None:
    """23 rows over five groups: three of 5, two of 4."""
    waiting = Stream(grouped, unit="group", group_size=5, incomplete="wait")
    assert (len(waiting), waiting.waiting) == (3, ["g3", "g4"])
    assert len(Stream(grouped, unit="group", group_size=5)) == 5
    with pytest.raises(StoreError, match="TM605 group 'g3' has 4 of 5 rollouts"):
        Stream(grouped, unit="group", group_size=5, incomplete="error")
    with pytest.raises(StoreError, match="TM900"):
        Stream(grouped, unit="group", incomplete="wait")
    with pytest.raises(StoreError, match="TM605"):
        Stream(grouped, unit="group", group_size=6, incomplete="wait")


def test_rows_without_a_group_go_with_their_trace(tmp_path: Path) -> None:
    from store_rows import sample, trace

    from tracemask.store.rows import of_sample

    made = [of_sample(sample(f"t{i // 2}", 4, branch=i % 2), trace(f"t{i // 2}")) for i in range(6)]
    units = list(Stream(dataset(tmp_path, made), unit="group", order="stored"))
    assert units == [[0, 1], [2, 3], [4, 5]]


def test_a_torch_loader_reads_the_stream_in_its_order_with_any_number_of_workers(grouped: Dataset) -> None:
    from torch.utils.data import DataLoader

    from tracemask.store.torch_view import Rows

    expected = flat(Stream(grouped, seed=6))
    for workers in (0, 2):
        stream = Stream(grouped, seed=6)
        loader = DataLoader(Rows(grouped), sampler=(unit[0] for unit in stream), batch_size=4, num_workers=workers,
                            collate_fn=list, multiprocessing_context="fork" if workers else None)  # fmt: skip
        batches = list(loader)
        assert [row.index for batch in batches for row in batch] == expected
        np.testing.assert_array_equal(batches[0][0]["token_ids"], grouped.row(expected[0])["token_ids"])
