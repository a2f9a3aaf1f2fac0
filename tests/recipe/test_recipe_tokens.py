"""Advantages per token: a critic's, GAE and reward-to-go over policy tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_rows import PROMPT, make_row, reply, tool

from tracemask.core.errors import RecipeError
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import compute
from tracemask.recipe.step import lay_step
from tracemask.recipe.token_advantage import gae, reward_to_go, token_advantage

NUMBERS = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=1, max_size=8)


def recipe_of(estimator: str, **more: Any) -> Recipe:
    return Recipe.load({"advantage": {"estimator": estimator, **more}, "rl": {"term": "ppo"}})


@given(
    rewards=NUMBERS, seed=st.integers(0, 99), gamma=st.sampled_from([1.0, 0.9]), lam=st.sampled_from([0.0, 0.95, 1.0])
)
@settings(max_examples=50, derandomize=True, deadline=None)
def test_gae_is_the_sum_of_discounted_residuals(rewards: list[float], seed: int, gamma: float, lam: float) -> None:
    values = np.random.default_rng(seed).normal(size=len(rewards))
    after = [*values[1:], 0.0]
    residuals = [r + gamma * v_next - v for r, v_next, v in zip(rewards, after, values, strict=True)]
    n = len(rewards)
    expected = [sum((gamma * lam) ** (k - t) * residuals[k] for k in range(t, n)) for t in range(n)]
    np.testing.assert_allclose(gae(np.array(rewards), values, gamma=gamma, lam=lam), expected, rtol=1e-9, atol=1e-12)


@given(rewards=NUMBERS)
@settings(max_examples=30, derandomize=True, deadline=None)
def test_gae_without_discount_is_the_return_minus_the_value(rewards: list[float]) -> None:
    values = np.linspace(-1, 1, len(rewards))
    returns = np.cumsum(rewards[::-1])[::-1]
    np.testing.assert_allclose(gae(np.array(rewards), values, gamma=1.0, lam=1.0), returns - values, atol=1e-12)
    np.testing.assert_allclose(reward_to_go(np.array(rewards), gamma=1.0), returns, atol=1e-12)


def test_observations_are_skipped_as_if_policy_tokens_were_adjacent() -> None:
    value = np.arange(10.0) / 10
    gapped = make_row(0, [PROMPT, reply(2), tool(3), reply(2)], columns={"value": value})
    dense = make_row(0, [PROMPT, reply(4)], columns={"value": value[[0, 1, 2, 3, 4, 8, 9]]})
    recipe = recipe_of("gae", gamma=0.9, lam=0.8)
    found = token_advantage(recipe, gapped, 1.0)
    assert found[[3, 4, 8, 9]].tolist() == token_advantage(recipe, dense, 1.0)[3:].tolist()
    assert not found[[0, 1, 2, 5, 6, 7]].any()


def test_rewards_of_observations_are_paid_to_the_policy_token_before_them() -> None:
    paid = np.array([0, 0, 0, 0, 0, 0, 2.0, 0, 0, 1.0])
    row = make_row(0, [PROMPT, reply(2), tool(3), reply(2)], columns={"reward": paid})
    assert token_advantage(recipe_of("reward_to_go", gamma=0.5), row, 9.0)[[3, 4, 8, 9]].tolist() == [
        1.125,
        2.25,
        0.5,
        1.0,
    ]


def test_the_rollout_s_reward_is_paid_at_its_last_policy_token() -> None:
    row = make_row(0, [PROMPT, reply(2), tool(3)])
    assert token_advantage(recipe_of("reward_to_go", gamma=0.5), row, 4.0)[[3, 4]].tolist() == [2.0, 4.0]


def test_given_advantages_per_token_reach_the_step_unchanged() -> None:
    given_ = np.array([9, 9, 9, 0.5, -0.25, 0.0])
    row = make_row(0, [PROMPT, reply(3)], columns={"advantage": given_})
    recipe = recipe_of("per_token")
    step = lay_step(recipe, [row], compute(recipe, {"trace_id": ["t0"], "group_id": ["g"]}))
    assert step.rows[0].advantage[3:].tolist() == [0.5, -0.25, 0.0]
    assert step.counts == {"rl": 3}
    dropping = Recipe.load({"advantage": {"estimator": "per_token"}, "rl": {"term": "ppo", "zero_advantage": "drop"}})
    assert lay_step(dropping, [row], [0.0]).counts == {"rl": 2}


def test_a_critic_s_column_that_is_missing_is_named() -> None:
    row = make_row(0, [PROMPT, reply(3)])
    with pytest.raises(RecipeError, match="no per-token column 'advantage'"):
        lay_step(recipe_of("per_token"), [row], [0.0])
    with pytest.raises(RecipeError, match="no per-token column 'value'"):
        lay_step(recipe_of("gae"), [row], [1.0])


def test_a_rollout_without_a_reward_leaves_gae_unless_its_tokens_carry_rewards() -> None:
    recipe = recipe_of("reward_to_go")
    scalars = {"trace_id": ["t0"], "group_id": ["g"], "reward": [None]}
    bare = make_row(0, [PROMPT, reply(2)])
    assert lay_step(recipe, [bare], compute(recipe, scalars)).counts == {"rl": 0}
    paid = make_row(0, [PROMPT, reply(2)], columns={"reward": np.array([0, 0, 0, 1.0, 1.0])})
    step = lay_step(recipe, [paid], compute(recipe, scalars))
    assert step.rows[0].advantage[3:].tolist() == [2.0, 1.0]
    assert step.counts == {"rl": 2}


def test_a_filtered_rollout_leaves_whatever_its_tokens_carry() -> None:
    recipe = Recipe.load(
        {"advantage": {"estimator": "per_token"}, "filters": {"truncated": "mask"}, "rl": {"term": "ppo"}}
    )
    row = make_row(0, [PROMPT, reply(2)], columns={"advantage": np.ones(5)})
    found = compute(recipe, {"trace_id": ["t0"], "group_id": ["g"], "truncated": [True]})
    assert lay_step(recipe, [row], found).counts == {"rl": 0}
