"""Bridge to the recipe room: denominators and advantages for arrays that never were a dataset. Counts are integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracemask.core.errors import LossError


def resolve(recipe: Any) -> Any:
    """A recipe object; a name, path or dict is loaded."""
    if isinstance(recipe, str | dict):
        from tracemask.recipe import Recipe

        return Recipe.load(recipe)
    return recipe


def denominators(
    recipe: Any,
    streams: Mapping[str, Tensor],
    rollout: Tensor,
    rollouts: int,
    *,
    group: Tensor | None = None,
    reduce: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, Tensor]:
    """component → denominator per token, float64 [T], from the integer counts of weights ≠ 0."""
    reduce = reduce or (lambda counts: counts)
    place = rollout.cpu().numpy()
    groups = (
        np.zeros(rollouts, np.int64)
        if group is None
        else np.unique(torch.as_tensor(group).cpu().numpy(), return_inverse=True)[1]
    )
    out = {}
    for name, entry in recipe.components.items():
        chosen = (streams[name] != 0).cpu().numpy()
        length = np.bincount(place[chosen], minlength=rollouts).astype(np.int64)
        out[name] = torch.from_numpy(_one(entry.normalizer, length, groups, reduce, group is not None)[place]).to(
            rollout.device
        )
    return out


def _one(normalizer: Any, length: np.ndarray, groups: np.ndarray, reduce: Any, grouped: bool) -> np.ndarray:
    name = getattr(normalizer, "effective", normalizer.name)
    if getattr(normalizer, "count", "selected") != "selected":
        raise LossError(
            "TM950", what="observations cannot be counted from log-probs", fix="use prepare(…) or selected counts"
        )
    leave_out = getattr(normalizer, "empty", "keep") == "leave_out"
    total, rollouts = reduce(
        np.array([length.sum(), (length > 0).sum() if leave_out else len(length)], np.int64)
    ).tolist()
    ones = np.ones(len(length))
    if name == "token_mean":
        return ones * total
    if name == "sequence_mean":
        return rollouts * length.astype(np.float64)
    if name == "constant":
        return ones * rollouts * normalizer.length
    if name == "sum_per_rollout":
        return ones * rollouts
    if name == "prompt_mean":
        if not grouped:
            raise LossError("TM950", what="prompt_mean without groups", fix="pass group=")
        per_group = np.bincount(groups, weights=length)
        return per_group[groups] * int(reduce(np.array([len(np.unique(groups))], np.int64))[0])
    return ones


def advantages_of(recipe: Any, rewards: Any, group: Any) -> np.ndarray:
    """Advantages [n] of rewards [n] in groups [n], by the recipe's estimator; excluded rollouts get 0."""
    from tracemask.recipe.advantage import compute

    scalars = {
        "reward": torch.as_tensor(rewards).tolist(),
        "group_id": [str(g) for g in (torch.as_tensor(group).tolist() if group is not None else range(len(rewards)))],
        "trace_id": [str(i) for i in range(len(rewards))],
    }
    return np.nan_to_num(compute(recipe, scalars).values)
