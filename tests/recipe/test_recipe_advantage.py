"""Advantages from scalar columns: estimators against plain Python, groups, missing rewards, penalties."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracemask.core.errors import RecipeError
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import REASONS, Advantages, compute, for_step

REWARDS = st.sampled_from([0.0, 1.0, 0.1, 0.25, -0.5, 3.7])
DATA = st.lists(st.tuples(REWARDS, st.integers(0, 3)), min_size=1, max_size=12)


def recipe_of(estimator: str, *, more: dict[str, Any] | None = None, **advantage: Any) -> Recipe:
    return Recipe.load({"advantage": {"estimator": estimator, **advantage}, "rl": {"term": "reinforce"}} | (more or {}))


def run(recipe: Recipe, rewards: list[float | None], groups: list[Any], **scalars: Any) -> Advantages:
    return compute(
        recipe, {"trace_id": [f"t{i}" for i in range(len(rewards))], "group_id": groups, "reward": rewards, **scalars}
    )


def naive(estimator: str, rewards: list[float]) -> list[float]:
    """One group, straight from the definitions."""
    n, mean = len(rewards), statistics.fmean(rewards)
    if n == 1 or len(set(rewards)) == 1:
        return [0.0] * n
    if estimator == "group_mean":
        return [r - mean for r in rewards]
    if estimator == "group_mean_std":
        return [(r - mean) / (statistics.stdev(rewards) + 1e-6) for r in rewards]
    if estimator == "rloo":
        return [r - (sum(rewards) - r) / (n - 1) for r in rewards]
    assert estimator == "maxrl"
    return [(r - mean) / mean if mean > 0 else 0.0 for r in rewards]


@pytest.mark.parametrize("estimator", ["group_mean", "group_mean_std", "rloo", "maxrl"])
@given(data=DATA)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_estimators_are_their_definitions(estimator: str, data: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in data], [g for _, g in data]
    found = run(recipe_of(estimator), rewards, groups).values
    members: dict[int, list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        members[group].append(at)
    for at in members.values():
        np.testing.assert_allclose(found[at], naive(estimator, [rewards[i] for i in at]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", ["group_mean", "group_mean_std", "rloo", "maxrl", "batch", "reward"])
@given(data=DATA, order=st.randoms(use_true_random=False))
@settings(max_examples=30, derandomize=True, deadline=None)
def test_values_do_not_depend_on_where_the_rows_lie(estimator: str, data: list[tuple[float, int]], order: Any) -> None:
    rewards, groups = [r for r, _ in data], [g for _, g in data]
    before = run(recipe_of(estimator), rewards, groups).values
    at = list(range(len(data)))
    order.shuffle(at)
    after = run(recipe_of(estimator), [rewards[i] for i in at], [groups[i] for i in at]).values
    assert after.tolist() == before[at].tolist()


@given(data=st.lists(REWARDS, min_size=2, max_size=9))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_uniform_groups_get_exactly_zero(data: list[float]) -> None:
    same = [data[0]] * len(data)
    for estimator in ("group_mean", "group_mean_std", "rloo", "maxrl", "batch"):
        eps = {"eps": 0.0} if estimator in ("group_mean_std", "batch") else {}
        found = run(recipe_of(estimator, **eps), same, ["g"] * len(data))
        assert found.values.tolist() == [0.0] * len(data)
        assert found.counts["uniform_groups"] == 1


def test_a_group_of_one_is_zero_stays_and_is_counted() -> None:
    for estimator in ("group_mean", "group_mean_std", "rloo", "maxrl", "batch"):
        found = run(recipe_of(estimator), [0.7], ["g"])
        assert found.values.tolist() == [0.0]
        assert found.counts["groups_of_one"] == 1
        assert not found.excluded.any()


def test_rows_of_a_trace_count_once_in_their_group() -> None:
    scalars = {"trace_id": ["a", "a", "a", "b"], "group_id": ["g"] * 4, "reward": [1.0, None, 1.0, 0.0]}
    assert compute(recipe_of("group_mean"), scalars).values.tolist() == [0.5, 0.5, 0.5, -0.5]
    by_row = recipe_of("group_mean", more={"group": {"rollout": "row"}})
    assert compute(by_row, scalars | {"reward": [1.0, 1.0, 1.0, 0.0]}).values.tolist() == [0.25, 0.25, 0.25, -0.75]


def test_rows_of_a_trace_with_different_rewards_are_refused() -> None:
    with pytest.raises(RecipeError, match="different rewards") as caught:
        compute(recipe_of("group_mean"), {"trace_id": ["a", "a"], "reward": [1.0, 0.0]})
    assert caught.value.where == "a"


def test_groups_fall_back_to_the_task_and_may_be_named() -> None:
    scalars = {
        "trace_id": [*"abcd"],
        "group_id": ["x", "x", None, None],
        "task_id": [1, 2, 3, 3],
        "reward": [1, 0, 1, 0],
    }
    assert compute(recipe_of("group_mean"), scalars).values.tolist() == [0.5, -0.5, 0.5, -0.5]
    named = recipe_of("group_mean", more={"group": {"by": "task_id"}})
    assert compute(named, scalars).values.tolist() == [0.0, 0.0, 0.5, -0.5]
    with pytest.raises(RecipeError, match="no scalar 'batch'"):
        compute(recipe_of("group_mean", more={"group": {"by": "batch"}}), scalars)


def test_rollouts_without_any_group_are_groups_of_one_and_reported() -> None:
    found = compute(recipe_of("rloo"), {"trace_id": ["a", "b"], "reward": [1.0, 0.0]})
    assert found.values.tolist() == [0.0, 0.0]
    assert [finding.code for finding in found.findings] == ["TM605"]
    assert found.n_groups == 2


def test_a_missing_reward_is_never_zero() -> None:
    for missing in (None, math.nan):
        found = run(recipe_of("group_mean"), [1.0, missing, 0.0, 0.0], ["g"] * 4)
        assert found.values[[0, 2, 3]].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
        assert math.isnan(found.values[1])
        assert REASONS[found.reason[1]] == "missing_reward"
        assert found.counts["missing_reward"] == 1
        assert found.findings[0].code == "TM603"
        assert found.findings[0].place.id == "t1"


def test_missing_rewards_can_be_an_error_and_are_one_where_none_has_any() -> None:
    strict = recipe_of("group_mean", more={"reward": {"missing": "error"}})
    for recipe, rewards in ((strict, [1.0, None]), (recipe_of("group_mean"), [None, None])):
        with pytest.raises(RecipeError, match="have no reward") as caught:
            run(recipe, rewards, ["g", "g"])
        assert caught.value.code == "TM603"


def test_nan_means_missing_in_every_column_of_a_foreign_table() -> None:
    nan = math.nan
    scalars = {"trace_id": [nan, nan], "group_id": [nan, nan], "task_id": ["x", "x"], "truncated": [nan, None]}
    recipe = recipe_of("group_mean", more={"filters": {"truncated": "mask"}})
    found = compute(recipe, scalars | {"reward": [1.0, 0.0], "trainable": [nan, True], "n_sampled": [nan, 3]})
    assert found.values.tolist() == [0.5, -0.5]


def test_a_reward_that_is_no_number_is_named() -> None:
    with pytest.raises(RecipeError, match="reward is 'good', not a number") as caught:
        run(recipe_of("group_mean"), ["good", 1.0], ["g", "g"])  # type: ignore[list-item]
    assert caught.value.where == "t0"


def test_an_infinite_reward_is_refused() -> None:
    with pytest.raises(RecipeError, match="reward is inf"):
        run(recipe_of("group_mean"), [1.0, math.inf], ["g", "g"])


def test_recipes_without_advantages_need_no_reward() -> None:
    found = compute(Recipe.load("sft"), {"trace_id": ["a", "b"]})
    assert found.values.tolist() == [0.0, 0.0]
    assert found.findings == []


def test_untrainable_rollouts_are_in_no_baseline() -> None:
    found = run(recipe_of("group_mean"), [1.0, 0.0, 9.0], ["g"] * 3, trainable=[True, None, False])
    assert found.values[:2].tolist() == [0.5, -0.5]
    assert REASONS[found.reason[2]] == "not_trainable"


def test_a_running_mean_per_agent_is_measured_before_it_moves() -> None:
    recipe = recipe_of("ema", decay=0.5)
    found = run(recipe, [1.0, -1.0, 1.0, -1.0, 0.0], ["g"] * 5, agent=["x", "y", "x", "y", None])
    assert found.values.tolist() == [1.0, -1.0, 0.5, -0.5, 0.0]


def test_batch_whitening_uses_all_rollouts() -> None:
    rewards = [1.0, 0.0, 0.5, 0.25]
    found = run(recipe_of("batch", ddof=0, eps=0.0), rewards, ["a", "a", "b", "b"]).values
    mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
    np.testing.assert_allclose(found, [(r - mean) / std for r in rewards], rtol=1e-12)


def test_a_step_is_whitened_by_its_own_rollouts() -> None:
    scalars = {"trace_id": [*"aabcd"], "group_id": [*"ggghh"], "reward": [1.0, 1.0, 0.0, 0.5, None]}
    for recipe in (recipe_of("batch"), recipe_of("group_mean", whiten="batch")):
        whole = compute(recipe, scalars)
        step = for_step(recipe, scalars, whole, [0, 1, 2])
        alone = compute(recipe, {name: column[:3] for name, column in scalars.items()})
        assert step.values[:3].tolist() == alone.values.tolist() != whole.values[:3].tolist()
        assert step.values[3] == whole.values[3]
        assert math.isnan(for_step(recipe, scalars, whole, [3, 4]).values[4])
    plain = compute(recipe_of("rloo"), scalars)
    assert for_step(recipe_of("rloo"), scalars, plain, [0, 1]) is plain


def test_whitening_after_a_group_baseline_keeps_uniform_groups_at_zero() -> None:
    found = run(recipe_of("group_mean", whiten="batch"), [1.0, 0.0, 0.3, 0.3], ["a", "a", "b", "b"]).values
    assert found[2:].tolist() == [0.0, 0.0]
    spread = statistics.stdev([0.5, -0.5, 0.0, 0.0])
    np.testing.assert_allclose(found[:2], [0.5 / spread, -0.5 / spread], rtol=1e-5)


def test_a_length_weighted_baseline_weighs_by_sampled_tokens() -> None:
    recipe = recipe_of("group_mean", baseline="length_weighted")
    found = run(recipe, [1.0, 0.0], ["g", "g"], n_sampled=[30, 10]).values
    assert found.tolist() == [0.25, -0.75]
    with pytest.raises(RecipeError, match="n_sampled"):
        run(recipe, [1.0, 0.0], ["g", "g"])


def test_given_advantages_are_taken_as_they_are() -> None:
    found = run(recipe_of("given"), [None] * 3, ["g"] * 3, advantage=[0.5, -2.0, None])
    assert found.values[:2].tolist() == [0.5, -2.0]
    assert REASONS[found.reason[2]] == "missing_advantage"


def test_multiply_scales_every_advantage() -> None:
    assert run(recipe_of("group_mean", multiply=0.5), [1.0, 0.0], ["g", "g"]).values.tolist() == [0.25, -0.25]


def test_prime_rl_s_length_penalty_acts_on_the_reward_before_the_baseline() -> None:
    penalty = {"num_output_tokens_weight": 0.25, "num_input_tokens_weight": 0.1, "num_turns_weight": 0.1}
    recipe = recipe_of("group_mean", more={"reward": {"length_penalty": penalty}})
    found = run(recipe, [1.0, 1.0], ["g", "g"], n_sampled=[10, 20], n_tokens=[50, 40], n_turns=[1, 4])
    shaped = [1 - 0.25 * 0.5 - 0.1 * 1.0 - 0.1 * 0.25, 1 - 0.25 * 1.0 - 0.1 * 0.5 - 0.1 * 1.0]
    np.testing.assert_allclose(found.rewards, shaped, rtol=1e-12)
    np.testing.assert_allclose(found.values, [(shaped[0] - shaped[1]) / 2, (shaped[1] - shaped[0]) / 2], rtol=1e-9)


def test_a_penalty_needs_its_quantity_unless_its_weight_is_zero() -> None:
    recipe = recipe_of("group_mean", more={"reward": {"length_penalty": {"num_turns_weight": 0.1}}})
    with pytest.raises(RecipeError, match="n_turns"):
        run(recipe, [1.0, 1.0], ["g", "g"], n_sampled=[1, 2], n_tokens=[3, 4])
    free = recipe_of("group_mean", more={"reward": {"length_penalty": {"num_turns_weight": 0.0}}})
    assert run(free, [1.0, 1.0], ["g", "g"], n_sampled=[1, 2], n_tokens=[3, 4]).values[0] > 0


@pytest.mark.parametrize(("length", "penalty"), [(10, 0.0), (80, 0.0), (90, 0.5), (95, 0.75), (100, 1.0), (400, 1.0)])
def test_soft_overlong_falls_linearly_inside_the_buffer(length: int, penalty: float) -> None:
    recipe = recipe_of("reward", more={"reward": {"soft_overlong": {"max_length": 100, "buffer": 20}}})
    assert run(recipe, [1.0], ["g"], n_sampled=[length]).values.tolist() == [1.0 - penalty]


def test_cut_and_overlong_rollouts_leave_but_stay_in_the_baseline() -> None:
    recipe = recipe_of("group_mean", more={"filters": {"truncated": "mask", "max_tokens": 50}})
    found = run(recipe, [1.0, 0.0, 0.5], ["g"] * 3, truncated=[False, True, None], n_sampled=[10, 10, 60])
    assert found.values[0] == 0.5
    assert [REASONS[code] for code in found.reason] == ["", "truncated", "too_long"]
    assert found.counts["truncated"] == found.counts["too_long"] == 1


def test_incomplete_groups_are_reported_dropped_or_refused() -> None:
    data = ([1.0, 0.0, 1.0], ["a", "a", "b"])
    kept = run(recipe_of("group_mean", more={"group": {"size": 2}}), *data)
    assert [finding.code for finding in kept.findings] == ["TM605"]
    assert not kept.excluded.any()
    dropped = run(recipe_of("group_mean", more={"group": {"size": 2, "incomplete": "drop"}}), *data)
    assert dropped.excluded.tolist() == [False, False, True]
    with pytest.raises(RecipeError, match="fewer than 2") as caught:
        run(recipe_of("group_mean", more={"group": {"size": 2, "incomplete": "error"}}), *data)
    assert caught.value.code == "TM605"


def test_an_empty_dataset_has_no_advantages() -> None:
    assert len(compute(recipe_of("group_mean"), {"trace_id": [], "reward": [], "group_id": []})) == 0
