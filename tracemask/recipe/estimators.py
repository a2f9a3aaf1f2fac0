"""Advantage estimators: rewards of rollouts to one number per rollout. Knows no row and no token.

An estimator gets finite rewards r[n] and returns A[n]; `per_group` ones get one group at a time. A group whose rewards
are all equal, or that has one member, gets exactly 0: decided on the rewards, never on float residue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracemask.core.registry import Table
from tracemask.recipe.model import AdvantageSpec
from tracemask.recipe.rewards import mean


@dataclass(frozen=True, slots=True)
class Members:
    """What an estimator may know of n rollouts beside their rewards: sampled tokens (or None) and agent names."""

    lengths: np.ndarray | None
    agents: list[str]


Estimate = Callable[[np.ndarray, AdvantageSpec, Members], np.ndarray]


def is_uniform(rewards: np.ndarray) -> bool:
    """All rewards equal, one member included."""
    return bool((rewards == rewards[0]).all())


def std(values: np.ndarray, ddof: int) -> float:
    """Standard deviation with n − ddof, order-independent; nan where n ≤ ddof."""
    if len(values) <= ddof:
        return math.nan
    center = mean(values)
    return math.sqrt(math.fsum((values - center) ** 2) / (len(values) - ddof))


def reward(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A = r (REINFORCE without a baseline)."""
    return rewards.copy()


def group_mean(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A = r − baseline: the mean (Dr. GRPO, prime-rl), or Σ L_i r_i / Σ L_i with L_i the sampled tokens."""
    if spec.baseline == "length_weighted" and members.lengths is not None and members.lengths.sum() > 0:
        return rewards - math.fsum(members.lengths * rewards) / math.fsum(members.lengths)
    return rewards - mean(rewards)


def group_mean_std(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A = (r − mean) / (std_ddof + eps) (GRPO)."""
    return (rewards - mean(rewards)) / (std(rewards, spec.ddof) + spec.eps)


def rloo(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A_i = r_i − mean of the others = n/(n−1)·(r_i − mean)."""
    n = len(rewards)
    return (rewards - mean(rewards)) * n / (n - 1)


def maxrl(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A = (r − mean) / mean; 0 where the mean is not positive (arXiv:2602.02710)."""
    center = mean(rewards)
    return (rewards - center) / center if center > 0 else np.zeros_like(rewards)


def ema(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A = r − b[agent], then b ← decay·b + (1 − decay)·r, from b = 0, in the dataset's order (SPIRAL)."""
    baselines: dict[str, float] = {}
    out = np.empty_like(rewards)
    for at, (value, agent) in enumerate(zip(rewards.tolist(), members.agents, strict=True)):
        before = baselines.get(agent, 0.0)
        out[at] = value - before
        baselines[agent] = spec.decay * before + (1.0 - spec.decay) * value
    return out


def batch(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
    """A = (r − mean) / (std_ddof + eps) over all rollouts (REINFORCE++)."""
    return group_mean_std(rewards, spec, members)


def relative(estimate: Estimate) -> Estimate:
    """The estimator with uniform and single groups decided on the rewards: exactly 0."""

    def decided(rewards: np.ndarray, spec: AdvantageSpec, members: Members) -> np.ndarray:
        if is_uniform(rewards):
            return np.zeros_like(rewards)
        return estimate(rewards, spec, members)

    decided.__doc__ = estimate.__doc__
    return decided


PER_GROUP: Table[Estimate] = Table(
    "group estimator",
    group_mean=relative(group_mean),
    group_mean_std=relative(group_mean_std),
    rloo=relative(rloo),
    maxrl=relative(maxrl),
)
OVER_ALL: Table[Estimate] = Table("batch estimator", reward=reward, ema=ema, batch=relative(batch))
