"""Advantages per token: a critic's, GAE, reward-to-go, means over branches. Knows rows, no loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.core.vocab import Author
from tracemask.recipe.model import Recipe
from tracemask.recipe.select import SELECTED_BY, must_fit, sampled_tokens
from tracemask.store.row import Row


def token_advantage(recipe: Recipe, row: Row, reward: float, *, excluded: str = "") -> np.ndarray:
    """float64[T]: the advantage of each policy token, 0 elsewhere.

    per_token reads the column `advantage`. gae and reward_to_go walk over the policy's tokens as if they were adjacent,
    observations skipped; value[t] is the critic's estimate before token t; rewards come from the column that the
    recipe's reward.column names (float[T], summed where observations lie between; a policy token's NaN
    leaves the row out): `reward`, or `call_reward`. Without it `reward` is paid at the row's last policy token.
    excluded: why the rollout has no reward; anything but a missing reward leaves NaN.
    Raises RecipeError TM603 for a missing column, TM101 for one of another length.
    """
    must_fit(row, (*SELECTED_BY, "value", recipe.reward.column, "advantage"))
    policy = policy_tokens(row)
    estimator = recipe.advantage.estimator
    out = np.zeros(len(row))
    given = row.get(recipe.reward.column)
    if excluded and not (excluded == "missing_reward" and (estimator == "per_token" or given is not None)):
        return np.full(len(row), np.nan)
    if estimator == "per_token":
        out[:] = _column(row, "advantage")
        out[np.isnan(out) & ~policy] = 0.0
        return out * recipe.advantage.multiply
    at = np.flatnonzero(policy)
    if not len(at):
        return out
    rewards = _paid(given, at, reward)
    if np.isnan(rewards).any():
        return np.full(len(row), np.nan)
    if estimator == "gae":
        values = _column(row, "value")[at]
        out[at] = gae(rewards, values, gamma=recipe.advantage.gamma, lam=recipe.advantage.lam)
    else:
        out[at] = reward_to_go(rewards, gamma=recipe.advantage.gamma)
    return out * (recipe.advantage.multiply if given is not None else 1.0)


def gae(rewards_T: np.ndarray, values_T: np.ndarray, *, gamma: float, lam: float) -> np.ndarray:
    """A_t = δ_t + γλ A_{t+1}, δ_t = r_t + γ v_{t+1} − v_t, with value 0 after the end (arXiv:1506.02438)."""
    following = np.append(values_T[1:], 0.0)
    return _discounted(rewards_T + gamma * following - values_T, gamma * lam)


def reward_to_go(rewards_T: np.ndarray, *, gamma: float) -> np.ndarray:
    """G_t = Σ_{k ≥ t} γ^(k−t) r_k."""
    return _discounted(rewards_T, gamma)


def policy_tokens(row: Row) -> np.ndarray:
    """bool[T]: tokens the policy wrote, owned by this row or not."""
    author = row.get("author")
    return sampled_tokens(row) if author is None else author == Author.POLICY


def branch_means(rows: Sequence[Row], streams: list[np.ndarray]) -> None:
    """In place: a token shared by several branches of a trace takes the mean of their advantages.

    A row with `fork_row` b and `fork_position` p shares its first p tokens with branch b of the same trace, and with
    whatever b itself shares below p. NaN branches do not count.
    """
    by_branch = {(row.scalars.get("trace_id"), row.scalars.get("branch")): at for at, row in enumerate(rows)}
    sums = [np.where(np.isnan(stream), 0.0, stream) for stream in streams]
    counts = [(~np.isnan(stream)).astype(np.int64) for stream in streams]
    for row, stream in zip(rows, streams, strict=True):
        if not len(row) or np.isnan(stream[0]):
            continue
        at, upto, seen = row, len(row), set()
        while (at.scalars.get("fork_position") or 0) > 0 and at.scalars.get("fork_row") is not None:
            upto = min(upto, int(at.scalars["fork_position"]))
            parent = by_branch.get((row.scalars.get("trace_id"), at.scalars["fork_row"]))
            if parent is None or parent in seen or rows[parent] is row:
                break
            seen.add(parent)
            sums[parent][:upto] += stream[0]
            counts[parent][:upto] += 1
            at = rows[parent]
    for at, (total, count) in enumerate(zip(sums, counts, strict=True)):
        streams[at] = np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _paid(given: np.ndarray | None, at: np.ndarray, reward: float) -> np.ndarray:
    """Reward of each policy token: the column's, with what observations carry paid to the policy token before them."""
    if given is None:
        rewards = np.zeros(len(at))
        rewards[-1] = reward
        return rewards
    rewards = np.array(given, dtype=np.float64)
    rewards[np.isnan(rewards) & ~np.isin(np.arange(len(rewards)), at)] = 0.0
    owner = np.maximum(np.searchsorted(at, np.arange(len(given)), side="right") - 1, 0)
    return np.bincount(owner, weights=rewards, minlength=len(at))


def _discounted(values_T: np.ndarray, factor: float) -> np.ndarray:
    out, running = np.empty(len(values_T)), 0.0
    for at in range(len(values_T) - 1, -1, -1):
        running = values_T[at] + factor * running
        out[at] = running
    return out


def _column(row: Row, name: str) -> np.ndarray:
    column = row.get(name)
    if column is None:
        fix = "let the critic write it, or choose an estimator that needs rewards alone"
        raise RecipeError(
            "TM603", where=f"row {row.index}", what=f"the dataset has no per-token column {name!r}", fix=fix
        )
    return np.asarray(column, dtype=np.float64)
