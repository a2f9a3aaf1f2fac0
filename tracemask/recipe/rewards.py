"""What is subtracted from a reward before its baseline: length penalties, soft overlong. Knows rollouts, no token."""

from __future__ import annotations

import math

import numpy as np

from tracemask.recipe.model import LengthPenalty, Recipe, SoftOverlong
from tracemask.recipe.rollouts import Rollouts, members_of


def shaped(recipe: Recipe, rollouts: Rollouts, valid: np.ndarray) -> np.ndarray:
    """Rewards after penalties, float64[R]; NaN where `valid` bool[R] is False."""
    rewards = np.where(valid, rollouts.reward, np.nan)
    if recipe.reward.soft_overlong is not None:
        rewards = rewards - soft_overlong(recipe.reward.soft_overlong, _quantity(rollouts, "n_sampled"))
    if recipe.reward.length_penalty is not None:
        rewards = _length_penalised(recipe.reward.length_penalty, rewards, rollouts, valid)
    return rewards


def soft_overlong(spec: SoftOverlong, lengths_R: np.ndarray) -> np.ndarray:
    """DAPO's punishment as a penalty ≥ 0, [R]: 0 up to max_length − buffer, `penalty` at max_length and beyond."""
    over = (lengths_R - (spec.max_length - spec.buffer)) / spec.buffer
    return spec.penalty * np.clip(over, 0.0, 1.0)


def _length_penalised(spec: LengthPenalty, rewards: np.ndarray, rollouts: Rollouts, valid: np.ndarray) -> np.ndarray:
    weights = {
        "n_sampled": spec.num_output_tokens_weight,
        "n_input": spec.num_input_tokens_weight,
        "n_turns": spec.num_turns_weight,
    }
    amounts = {name: _quantity(rollouts, name) for name, weight in weights.items() if weight}
    out = rewards.copy()
    for members in members_of(rollouts.group, valid):
        pass_rate = mean(rewards[members])
        for name, amount in amounts.items():
            largest = amount[members].max()
            if largest > 0:
                out[members] -= weights[name] * pass_rate * amount[members] / largest
    return out


def _quantity(rollouts: Rollouts, name: str) -> np.ndarray:
    if name == "n_input":
        return _quantity(rollouts, "n_tokens") - _quantity(rollouts, "n_sampled")
    return rollouts.quantity(name, wanted_by="reward")


def mean(values: np.ndarray) -> float:
    """The mean with one rounding of the sum: it does not depend on the order of the rollouts."""
    return math.fsum(values) / len(values)
