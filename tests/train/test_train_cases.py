"""Small cases from public bug reports, of packing and of ranks: resumed order, ranks without a loss token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_models import rollouts, row_of, write

from tracemask.core.vocab import Author
from tracemask.recipe import Recipe
from tracemask.store.reader import open_dataset
from tracemask.train.distributed import World
from tracemask.train.loader import Loader, Policy
from tracemask.train.sources import MemoryRows

RUNS = [  # steps taken before each stop → the records each run sees
    ([3, 3], [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
    ([5], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),  # exactly on a shard's boundary
    ([3, 2], [[0, 1, 2], [3, 4], [5, 6, 7, 8, 9]]),
]


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten records in two shards."""
    rows = list(rollouts(groups=10, size=1, fork=False))
    for index, row in enumerate(rows):
        row.scalars["group_id"] = None
        row.scalars["trace_id"] = f"record {index}"
    return write(tmp_path_factory.mktemp("ten") / "shards", rows)


@pytest.mark.parametrize(("stops", "expected"), RUNS)
def test_every_resume_goes_on_where_the_last_run_stopped(ten: str, stops: list[int], expected: list[list[int]]) -> None:
    dataset = open_dataset(ten)
    assert len(dataset.shards) == 2
    policy, state, seen = Policy(groups_per_step=1, shuffle=False), None, []
    for stop in [*stops, None]:
        loader = Loader(dataset, Recipe.load("sft"), policy)
        done = 0 if state is None else loader.resume(state)
        last = loader.steps_per_epoch if stop is None else done + stop
        seen.append([loader.rows_of(step)[0][0] for step in range(done, last)])
        state = loader.state(last)
    assert seen == expected


class Ranks:
    """Two ranks in one process: sums what the ranks before it laid. Rank 0 is asked twice, before and after rank 1."""

    def __init__(self, rows: list[Any], recipe: str) -> None:
        self.rows, self.recipe, self.parts = rows, recipe, [None, None]

    def step(self, rank: int) -> Any:
        ranks = self

        class Shared(World):
            def add_int(self, counts: np.ndarray) -> np.ndarray:
                ranks.parts[rank] = counts
                return sum(part for part in ranks.parts if part is not None)

        world = Shared(rank=rank, size=2)
        return Loader(MemoryRows(self.rows), Recipe.load(self.recipe), Policy(packing="rows"), world=world).step(0)


def context_only(index: int, size: int, rng: np.random.Generator) -> Any:
    """A row with tokens and none in the loss."""
    author = np.full(size, Author.ENVIRONMENT, np.uint8)
    facts = {"trace_id": f"context {index}", "branch": 0, "group_id": "g", "reward": 0.0}
    return row_of(index, rng.integers(0, 9, size), author, np.zeros(size, bool), rng, facts)


def test_a_rank_without_loss_tokens_runs_nothing_and_counts_the_other_rank_s(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    facts = {"trace_id": "one", "branch": 0, "group_id": "g", "reward": 1.0}
    sampled = np.r_[False, np.ones(4, bool)]
    author = np.where(sampled, Author.POLICY, Author.TASKSET).astype(np.uint8)
    trained = row_of(0, rng.integers(0, 9, 5), author, sampled, rng, facts)
    ranks = Ranks([context_only(1, 9, rng), trained], "dapo")  # the longer row goes to rank 0
    for rank in (0, 1, 0):
        loaded = ranks.step(rank)
        if rank == 1:
            (work,) = loaded.works
            assert len(work.batch) == 4
            assert work.batch.denominator["rl"].tolist() == [4.0] * 4
    assert loaded.works == []  # rank 0
    assert loaded.counts == {"rl": 4}
    assert loaded.findings == []


def test_a_step_without_any_loss_token_is_a_finding_on_every_rank() -> None:
    rng = np.random.default_rng(0)
    ranks = Ranks([context_only(0, 5, rng), context_only(1, 4, rng)], "dapo")
    for rank in (0, 1, 0):
        loaded = ranks.step(rank)
        assert loaded.works == []
        assert loaded.counts == {"rl": 0}
        assert [one.code for one in loaded.findings] == ["TM601"]


def test_the_reward_shown_is_the_recipe_s_own_column_once_per_rollout() -> None:
    """Not the column called reward, not NaN, and found on whichever row of the rollout carries it."""
    rng, sampled = np.random.default_rng(0), np.r_[False, np.ones(4, bool)]
    author = np.where(sampled, Author.POLICY, Author.TASKSET).astype(np.uint8)
    rows = []
    for trace, score in (("a", None), ("a", 3.0), ("b", float("nan")), ("c", "5")):
        facts = {"trace_id": trace, "branch": len(rows), "group_id": "g", "reward": 100.0, "score": score}
        rows.append(row_of(len(rows), rng.integers(0, 9, 5), author, sampled, rng, facts))
    recipe = Recipe.load({"extends": "dr_grpo", "reward": {"column": "score"}})
    assert Loader(MemoryRows(rows), recipe, Policy()).step(0).facts["reward"] == 4.0
    assert Loader(MemoryRows(rows), Recipe.load("sft"), Policy()).step(0).facts["reward"] == 100.0
