"""Bridge to the recipe room: denominators and advantages of arrays that never were a dataset. Counts stay integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracemask.core.errors import LossError

Reduce = Callable[[np.ndarray], np.ndarray]


def all_reduced(group: Any = None) -> Reduce:
    """A `reduce` hook: the sum of an int64 vector over the ranks of a torch.distributed process group."""

    def reduce(counts: np.ndarray) -> np.ndarray:
        import torch.distributed as dist

        device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
        total = torch.from_numpy(np.ascontiguousarray(counts, np.int64)).to(device)
        dist.all_reduce(total, group=group)
        return total.cpu().numpy()

    return reduce


def denominators(
    recipe: Any,
    streams: Mapping[str, Tensor],
    rollout: Tensor,
    rollouts: int,
    *,
    group: Tensor | None = None,
    observations: Tensor | None = None,
    reduce: Reduce | None = None,
    counts: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Tensor]:
    """component → denominator per token, float64 [T], from the counts of weights ≠ 0 (or of `observations`, bool [T]).

    rollout: int64 [T] in [0, rollouts); every one of them is in N. group: [rollouts], here in one piece.
    reduce: sums an int64 vector over ranks. counts: of the step by component (`counted`), where these arrays are a part
    of it. Tokens of uncounted rollouts get 1, so that 0 / Z is 0.
    """
    from tracemask.recipe.normalize import NORMALIZERS

    place = rollout.cpu().numpy()
    groups = _numbers(group, rollouts)
    out = {}
    for name, entry in recipe.components.items():
        spec = entry.normalizer
        lengths = np.bincount(place[_counted(name, spec, streams[name], observations)], minlength=rollouts)
        own = _counts(lengths, groups)
        tally = _tally(lengths, groups, counts[name] if counts is not None else own if reduce is None else reduce(own))
        if spec.name == "prompt_mean" and group is None:
            raise LossError(
                "TM950", what=f"component {name!r} is normalised per group, and none is given", fix="pass group="
            )
        rule = NORMALIZERS[getattr(spec, "effective", spec.name)]
        each = [max(rule(tally, spec, i, int(groups[i])), 1) for i in range(rollouts)]
        out[name] = torch.from_numpy(np.asarray(each, np.float64)[place]).to(rollout.device)
    return out


def counted(
    recipe: Any, streams: Mapping[str, Tensor], rollout: Tensor, rollouts: int, *, group: Tensor | None = None,
    observations: Tensor | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """component → int64 counts of these arrays, which parts of a step add up to the step's."""
    place, groups = rollout.cpu().numpy(), _numbers(group, rollouts)
    out = {}
    for name, entry in recipe.components.items():
        chosen = place[_counted(name, entry.normalizer, streams[name], observations)]
        out[name] = _counts(np.bincount(chosen, minlength=rollouts), groups)
    return out


def _numbers(group: Tensor | None, rollouts: int) -> np.ndarray:
    """Dense group numbers [rollouts]."""
    if group is None:
        return np.zeros(rollouts, np.int64)
    values = torch.as_tensor(group).cpu().numpy().reshape(-1)
    if len(values) != rollouts:
        raise LossError("TM950", what=f"group has {len(values)} entries for {rollouts} rollouts", fix="one per rollout")
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def _counted(name: str, spec: Any, stream: Tensor, observations: Tensor | None) -> np.ndarray:
    if getattr(spec, "count", "selected") != "all_observations":
        return (stream != 0).cpu().numpy()
    if observations is None:
        what = f"component {name!r} counts all observation tokens, and they are not given"
        raise LossError("TM950", what=what, fix='pass observations=, or count = "selected"')
    return observations.bool().cpu().numpy()


def _counts(lengths: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """int64 [4]: tokens, rollouts, rollouts with a counted token, groups."""
    return np.array([lengths.sum(), len(lengths), (lengths > 0).sum(), len(np.unique(groups))], np.int64)


def _tally(lengths: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> Any:
    """The recipe room's tally of one component: counted tokens per rollout here, and the counts of the whole step."""
    from tracemask.recipe.normalize import Tally

    tokens, rollouts, nonempty, number = counts.tolist()
    per_group = np.bincount(groups, weights=lengths).astype(np.int64) if len(groups) else np.zeros(0, np.int64)
    return Tally(
        tokens=tokens,
        rollouts=rollouts,
        nonempty=nonempty,
        groups=number,
        of_rollout=dict(enumerate(lengths.tolist())),
        of_group=dict(enumerate(per_group.tolist())),
    )


def advantages_of(recipe: Any, rewards: Any, group: Any, *, lengths: Any = None) -> np.ndarray:
    """Advantages [n] of rewards [n] in groups [n], by the recipe's estimator; NaN where a rollout has no reward.

    lengths [n]: sampled tokens of each rollout, for a baseline or penalty that reads them. Raises RecipeError TM603.
    """
    from tracemask.loss.components import resolve
    from tracemask.recipe.advantage import compute

    recipe = resolve(recipe)
    n = len(torch.as_tensor(rewards).reshape(-1))
    scalars: dict[str, Sequence[Any]] = {
        recipe.reward.column: torch.as_tensor(rewards, dtype=torch.float64).reshape(-1).tolist(),
        recipe.group.by or "group_id": [f"group {g}" for g in _numbers(group, n).tolist()],
        "trace_id": [f"rollout {i}" for i in range(n)],
    }
    if group is None:
        del scalars[recipe.group.by or "group_id"]
    if lengths is not None:
        scalars["n_sampled"] = torch.as_tensor(lengths).reshape(-1).tolist()
    return compute(recipe, scalars).values
