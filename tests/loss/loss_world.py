"""A tiny packed language model and rollouts of skewed lengths: one optimizer step, cut into micro-batches any way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracemask import loss
from tracemask.loss.batch import Batch
from tracemask.loss.denominators import denominators
from tracemask.loss.output import LossOutput
from tracemask.recipe import Recipe

H, V = 8, 31
LENGTHS = (7, 120, 15, 40, 3, 90, 60, 11)


@dataclass
class Rollout:
    """ids [L], the hidden state at each token [L, H], masks by component [L] (index t speaks of token t), advantage."""

    ids: np.ndarray
    hidden: Tensor
    masks: dict[str, np.ndarray]
    advantage: float
    old: np.ndarray
    denominator: dict[str, np.ndarray] = field(default_factory=dict)


def rollouts(seed: int = 0, lengths: Sequence[int] = LENGTHS) -> list[Rollout]:
    """Policy tokens (30 %) and observations (35 %); the first token of a row is never a target."""
    r = np.random.default_rng(seed)
    out = []
    for n in lengths:
        u = r.random(n)
        action, observed = u < 0.3, (u > 0.3) & (u < 0.65)
        action[-1], observed[-1] = True, False
        action[0] = observed[0] = False
        out.append(
            Rollout(
                r.integers(0, V, n),
                torch.from_numpy(r.normal(size=(n, H))),
                {"rl": action, "ce": observed},
                float(r.normal()),
                -r.uniform(2, 4, n),
            )
        )
    return out


def weight(seed: int = 9) -> Tensor:
    return torch.randn(V, H, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def lay(recipe: Recipe, step: list[Rollout], reduce: Any = None) -> None:
    """Each rollout's denominators, from counts over the whole step."""
    place = torch.from_numpy(np.repeat(np.arange(len(step)), [len(r.ids) for r in step]))
    streams = {
        c: torch.from_numpy(np.concatenate([r.masks[c] for r in step] or [np.zeros(0)])) for c in recipe.components
    }
    below = denominators(recipe, streams, place, len(step), reduce=reduce)
    for i, one in enumerate(step):
        one.denominator = {c: z[place == i].numpy() for c, z in below.items()}


def batch(micro: list[Rollout], *, shift: int = 1) -> tuple[Tensor, Batch]:
    """The rollouts packed end to end: (hidden [S, H], Batch). shift: 1 is right; a canary passes another."""
    start, parts = 0, []
    for row, one in enumerate(micro):
        at = np.flatnonzero(np.any([m != 0 for m in one.masks.values()], axis=0))
        parts.append((one, row, at, start + at - shift))
        start += len(one.ids)

    def join(pick: Any, dtype: Any = np.float64) -> np.ndarray:
        return np.concatenate([np.asarray(pick(*p), dtype) for p in parts] or [np.zeros(0, dtype)])

    names = list(micro[0].masks) if micro else ["rl", "ce"]
    made = Batch.from_numpy(
        dtype=torch.float64,
        input_ids=np.concatenate([r.ids for r in micro] or [np.zeros(2)]),
        target_id=join(lambda one, row, at, parent: one.ids[at], np.int64),
        parent_slot=join(lambda one, row, at, parent: parent, np.int64),
        row=join(lambda one, row, at, parent: np.full(len(at), row), np.int64),
        index_in_row=join(lambda one, row, at, parent: at, np.int64),
        weights={c: join(lambda one, row, at, parent, c=c: one.masks[c][at]) for c in names},
        denominator={c: join(lambda one, row, at, parent, c=c: one.denominator[c][at]) for c in names},
        advantages=join(lambda one, row, at, parent: np.full(len(at), one.advantage)),
        old_logprob=join(lambda one, row, at, parent: one.old[at]),
    )
    return (torch.cat([r.hidden for r in micro]) if micro else torch.zeros(2, H, dtype=torch.float64)), made


def run(
    recipe: Recipe, micros: list[list[Rollout]], w: Tensor, **options: Any
) -> tuple[float, Tensor, list[LossOutput]]:
    """(loss, gradient in w, outputs) summed over micro-batches whose denominators are laid."""
    w.grad, total, outputs = None, 0.0, []
    for micro in micros:
        out = loss.from_hidden(recipe, *(lambda hidden, b: (hidden, w, b))(*batch(micro)), **options)
        out.total.backward()
        total += out.total.item()
        outputs.append(out)
    assert w.grad is not None
    return total, w.grad.clone(), outputs
