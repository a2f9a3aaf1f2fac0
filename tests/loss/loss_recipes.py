"""Recipes, batches and finite differences for the loss tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracemask.loss.batch import Batch
from tracemask.recipe import Recipe


def recipe(**components: Any) -> Recipe:
    """A recipe of these components; advantages are given."""
    return Recipe.load({"name": "test", "advantage": {"estimator": "given"}, **components})


def rl(term: str = "reinforce", normalizer: Any = "token_mean", **more: Any) -> dict[str, Any]:
    """One component entry; options by name."""
    known = {key: more.pop(key) for key in ("coef", "mismatch", "zero_advantage") if key in more}
    return {"term": term, "normalizer": normalizer, "options": more, **known}


def padded(rows: list[list[float]], fill: float = 0.0) -> Tensor:
    """Ragged rows as one float64 tensor [B, T]."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=torch.float64)


def lengths_mask(rows: list[list[float]]) -> Tensor:
    """1 where a ragged row has a value."""
    return padded([[1.0] * len(row) for row in rows])


def gradient(total: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(total, inputs))


def random_batch(
    seed: int,
    *,
    slots: int = 40,
    targets: int = 25,
    vocab: int = 50,
    components: tuple[str, ...] = ("rl",),
    dtype: torch.dtype = torch.float64,
    shared_parents: bool = False,
    selected: float = 0.8,
    **more: Any,
) -> Batch:
    """A batch with every array filled, in rows of five targets; parents shuffled, repeated where asked."""
    r = np.random.default_rng(seed)
    parent = r.integers(0, slots, targets) if shared_parents else r.permutation(slots)[:targets]
    base = {
        "input_ids": np.zeros(slots),
        "target_id": r.integers(0, vocab, targets),
        "parent_slot": parent,
        "row": np.arange(targets) // 5,
        "index_in_row": np.arange(targets) % 5 + 1,
        "weights": {c: r.uniform(0.5, 2, targets) * (r.random(targets) < selected) for c in components},
        "denominator": {c: np.full(targets, 7.0 + i) for i, c in enumerate(components)},
        "advantages": r.normal(size=targets),
        "old_logprob": -r.uniform(2, 5, targets),
        "sampler_logprob": -r.uniform(2, 5, targets),
        "ref_logprob": -r.uniform(2, 5, targets),
    }
    return Batch.from_numpy(dtype=dtype, **(base | more))
