"""Loss and gradient of one micro-batch from hidden states: matches targets to vocabulary rows, drives the LM head.

Denominators are the step's, counted before the forward pass, so that the gradient is the same for any split into
micro-batches and ranks. Knows no term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tracemask.core.registry import Table
from tracemask.loss.batch import Batch, VocabularyRows
from tracemask.loss.components import components_of
from tracemask.loss.layout import misfit
from tracemask.loss.lm_head.spec import Logits, aligned
from tracemask.loss.objective import Objective
from tracemask.loss.output import LossOutput

ROW_KERNELS: Table[Any] = Table(
    "LM head",
    chunked="tracemask.loss.lm_head.torch_rows:KERNELS",
    triton="tracemask.loss.lm_head.triton_kernels:KERNELS",
)


def from_hidden(
    recipe: Any,
    hidden_SH: Tensor,
    head_weight_VH: Tensor,
    batch: Batch,
    *,
    bias: Tensor | None = None,
    counts: Mapping[str, float] | None = None,
    chunk: int | str = "auto",
    head: str = "auto",
    softcap: float | None = None,
    logit_scale: float = 1.0,
    valid_vocab: int | None = None,
    entropy: bool = False,
) -> LossOutput:
    """The loss of one micro-batch from hidden states, through the fused LM head.

    recipe: a Recipe, its name, path or dict, or an object with `components`.
    hidden_SH: [S, H] or [1, S, H], after the final norm.
    head_weight_VH: [V, H], same dtype; a plain tensor, or a DTensor (gathered here, its gradient summed over ranks).
    counts: component → one denominator for all its tokens, in place of the batch's (for after_rejection).
    chunk: logit rows at a time. head: "chunked" (torch), "triton", "auto" (triton on CUDA, else chunked).
    softcap, logit_scale, valid_vocab: as the model's head has them. entropy: report it as a metric too.
    Returns LossOutput; total is this micro-batch's share of the step's loss: add micro-batches up, never average.
    Raises LossError TM404 (not finite on a kept token, by name), TM603 (missing arrays), TM950 (shapes, dtypes).
    """
    logits = Logits(logit_scale, softcap, valid_vocab)
    call = _Call.of(recipe, hidden_SH, head_weight_VH, batch, counts, entropy, logits)
    total, lp, full = call.run(bias, head, chunk)
    with torch.no_grad():
        values, tally = call.objective.report(lp, full)
    metrics, maxima = tally.result()
    shown = None if full is None else call.restored(full)
    return LossOutput(total, values, call.restored(lp), shown, metrics, maxima)


@torch.no_grad()
def counts_after_rejection(
    recipe: Any,
    hidden_SH: Tensor,
    head_weight_VH: Tensor,
    batch: Batch,
    *,
    bias: Tensor | None = None,
    chunk: int | str = "auto",
    head: str = "auto",
    softcap: float | None = None,
    logit_scale: float = 1.0,
    valid_vocab: int | None = None,
) -> dict[str, int]:
    """component → targets of this micro-batch that no mask rejects, by one log-prob pass. Arguments as from_hidden's.

    Sum over the step's micro-batches and ranks, then pass as from_hidden(counts=…).
    """
    recipe_components = tuple(replace(c, after_rejection=False) for c in components_of(recipe))
    logits = Logits(logit_scale, softcap, valid_vocab)
    call = _Call.of(recipe_components, hidden_SH, head_weight_VH, batch, None, False, logits)
    _, lp, full = call.run(bias, head, chunk)
    return call.objective.kept_counts(lp, full)


@dataclass(frozen=True)
class _Call:
    """One use of the head: targets in the order of their vocabulary rows, and the way back."""

    hidden: Tensor
    weight: Tensor
    rows: VocabularyRows
    target: Tensor
    objective: Objective
    logits: Logits

    @classmethod
    def of(
        cls,
        recipe: Any,
        hidden: Tensor,
        weight: Tensor,
        batch: Batch,
        counts: Mapping[str, float] | None,
        entropy: bool,
        logits: Logits,
    ) -> _Call:
        hidden, weight = aligned(hidden, weight, batch.input_ids.shape[0])
        vocab = logits.width(weight)
        rows = batch.vocabulary_rows()
        targets = batch if rows.order is None else batch.take(rows.order)
        target = batch.target_id if rows.order is None else batch.target_id[rows.order]
        components = recipe if isinstance(recipe, tuple) else components_of(recipe)
        objective = Objective(
            components, targets, counts=counts, entropy=entropy, explain=lambda at: _outside(int(target[at]), vocab)
        )
        return cls(hidden, weight, rows, target, objective, logits)

    def run(self, bias: Tensor | None, head: str, chunk: int | str) -> tuple[Tensor, Tensor, Tensor | None]:
        """(total 0-d, lp [N], entropy [N] or None), targets in row order."""
        from tracemask.loss.lm_head.chunked import FusedHead, Head

        if bias is not None and (bias.shape != self.weight.shape[:1] or bias.dtype != self.weight.dtype):
            misfit(f"bias is {bias.dtype} {tuple(bias.shape)}", f"give {self.weight.dtype} [{self.weight.shape[0]}]")
        if isinstance(chunk, int) and chunk < 1:
            misfit(f"chunk {chunk}", 'rows of logits at a time, at least 1, or "auto"')
        name = ("triton" if self.hidden.is_cuda else "chunked") if head == "auto" else head
        if name == "reference":
            total, lp, full = _by_autograd(
                self.hidden, self.weight, bias, self.rows, self.target, self.logits, self.objective
            )
        else:
            fixed = Head(self.rows, self.target, self.logits, ROW_KERNELS[name], chunk)
            grad = torch.is_grad_enabled()
            total, lp, full = FusedHead.apply(self.hidden, self.weight, bias, fixed, self.objective, grad)
        return total, lp, full if self.objective.wants_entropy else None

    def restored(self, values: Tensor) -> Tensor:
        """Row order back to the batch's own order."""
        order = self.rows.order
        return values if order is None else torch.empty_like(values).index_copy_(0, order, values)


def _by_autograd(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, rows: Any, target: Tensor, logits: Any, objective: Objective
) -> tuple[Tensor, Tensor, Tensor]:
    from tracemask.loss.lm_head.reference import row_logprobs
    from tracemask.loss.surrogate import Surrogate

    lp, full = row_logprobs(hidden, weight, bias, rows, target, logits)
    return Surrogate.apply(lp, full, objective), lp.detach(), full.detach()


def _outside(token: int, vocab: int) -> str:
    """Why a target's log-prob is NaN, as far as its id tells."""
    return "" if 0 <= token < vocab else f" (token id {token} is outside the head's {vocab})"
