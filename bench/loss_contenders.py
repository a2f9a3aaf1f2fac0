"""One step of PPO-clipped policy gradient from hidden states, as several heads do it. Used by loss.py and gpu.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracemask import loss
from tracemask.loss.batch import Batch
from tracemask.recipe import Recipe

RL = {"term": "grpo", "normalizer": "token_mean"}
GRPO = Recipe.load({"name": "bench", "advantage": {"estimator": "given"}, "rl": RL})
CE = Recipe.load({"name": "bench", "ce": {"term": "ce"}})
GSPO = Recipe.load({"name": "bench", "advantage": {"estimator": "given"}, "rl": RL | {"term": "gspo"}})


@dataclass(frozen=True)
class Problem:
    """Hidden states [S, H] of B equal sequences, head [V, H], and a mask that selects a share of the S positions."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    mask: Tensor
    advantages: Tensor
    old: Tensor
    sequences: int
    batch: Batch

    @classmethod
    def make(
        cls, slots: int, width: int, vocab: int, share: float, *, sequences: int, device: str, dtype: torch.dtype
    ) -> Problem:
        """Random, seeded; positions are selected in runs of 16, as turns are."""
        r, g = np.random.default_rng(0), torch.Generator(device).manual_seed(0)
        runs = r.permutation(slots // 16)[: round(share * slots / 16)]
        at = np.sort((runs[:, None] * 16 + np.arange(16)).ravel())
        ids, advantage = r.integers(0, vocab, slots), r.normal(size=sequences)
        row, n = at // (slots // sequences), len(at)
        old = np.full(slots, -np.log(vocab))
        batch = Batch.from_numpy(
            input_ids=ids,
            target_id=ids[at],
            parent_slot=at,
            row=row,
            index_in_row=at,
            weights={"rl": np.ones(n), "ce": np.ones(n)},
            denominator={"rl": np.full(n, n), "ce": np.full(n, n)},
            advantages=advantage[row],
            old_logprob=old[at],
        ).to(device)
        mask = torch.zeros(slots, device=device)
        mask[torch.from_numpy(at).to(device)] = 1

        def leaf(*shape: int, scale: float) -> Tensor:
            return (scale * torch.randn(*shape, generator=g, device=device)).to(dtype).requires_grad_()

        return cls(
            leaf(slots, width, scale=1.0),
            leaf(vocab, width, scale=width**-0.5 / 4),
            torch.from_numpy(ids).to(device),
            mask,
            torch.from_numpy(advantage).float().to(device),
            torch.from_numpy(old).float().to(device),
            sequences,
            batch,
        )

    def per_token(self) -> Tensor:
        """Advantages [S]."""
        return self.advantages.repeat_interleave(len(self.ids) // self.sequences)


def clipped(lp: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """The surrogate's masked mean, by autograd."""
    ratio = (lp - old).exp()
    per_token = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (per_token * mask).sum() / mask.sum()


def naive(p: Problem) -> Tensor:
    """All logits, log_softmax in float32, gather: what most trainers do."""
    z = (p.hidden @ p.weight.t()).float()
    lp = torch.log_softmax(z, -1).gather(1, p.ids[:, None])[:, 0]
    return clipped(lp, p.old, p.per_token(), p.mask)


def ours(p: Problem, recipe: Recipe = GRPO, **options: Any) -> Tensor:
    """tracemask."""
    return loss.from_hidden(recipe, p.hidden, p.weight, p.batch, **options).total


def two_pass(p: Problem) -> Tensor:
    """An 8·T·H·V head: a log-prob pass, then logits again for the gradient, with our own row kernels."""
    return loss.from_hidden(GSPO, p.hidden, p.weight, p.batch).total


def trl(p: Problem) -> Tensor:
    """TRL's chunked head, given only the selected positions (its own compaction)."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    at = p.batch.parent_slot
    picked = p.hidden.index_select(0, at)
    lp, *_ = ChunkedLogProbFunction.apply(picked, p.weight, None, p.ids[at], 1.0, 8192, None, 1.0, ())
    return clipped(lp, p.old[at], p.per_token()[at], torch.ones_like(lp))


def liger(p: Problem) -> Tensor:
    """Liger's chunked GRPO loss: one sequence at a time, every position."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    b = p.sequences
    head = LigerFusedLinearGRPOLoss(beta=0.0, compiled=p.hidden.is_cuda, use_ref_model=False, loss_type="dapo")
    out = head(
        p.hidden.view(b, -1, p.hidden.shape[1]),
        p.weight,
        p.ids.view(b, -1),
        p.mask.view(b, -1),
        p.advantages,
        old_per_token_logps=p.old.view(b, -1),
    )
    return out[0]


CONTENDERS: dict[str, Callable[[Problem], Tensor]] = {"naive": naive, "tracemask": ours, "trl": trl, "liger": liger}


def available() -> dict[str, Callable[[Problem], Tensor]]:
    """The contenders whose packages are installed."""
    from importlib.util import find_spec

    needs = {"trl": "trl", "liger": "liger_kernel"}
    return {name: f for name, f in CONTENDERS.items() if name not in needs or find_spec(needs[name])}


def gradients(contender: Callable[[Problem], Tensor], p: Problem) -> tuple[float, Tensor, Tensor]:
    """(loss, d hidden, d weight)."""
    total = contender(p)
    hidden, weight = torch.autograd.grad(total, (p.hidden, p.weight))
    return float(total.detach()), hidden, weight
