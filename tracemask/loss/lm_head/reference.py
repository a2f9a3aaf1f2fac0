"""The plain LM head: all logits at once, by autograd. Reference of the fused one, and the path for custom losses."""

from __future__ import annotations

import torch
from torch import Tensor

from tracemask.loss.batch import Batch, VocabularyRows
from tracemask.loss.lm_head.spec import Logits, accumulation_dtype, aligned


def head_logprobs(
    hidden_SH: Tensor,
    head_weight_VH: Tensor,
    batch: Batch,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    valid_vocab: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(log-probs [N], entropies [N]) of the batch's targets in float32 (float64 for float64), with gradients.

    hidden_SH: [S, H] or [1, S, H]. Only the selected targets' parents reach the vocabulary, but their logits exist in
    full, N·V numbers: for losses that from_hidden does not have, on batches that fit. Raises LossError TM950.
    """
    hidden, weight = aligned(hidden_SH, head_weight_VH, batch.input_ids.shape[0])
    rows = batch.vocabulary_rows()
    target = batch.target_id if rows.order is None else batch.target_id[rows.order]
    logits = Logits(logit_scale, softcap, valid_vocab)
    lp, entropy = row_logprobs(hidden, weight, bias, rows, target, logits)
    if rows.order is None:
        return lp, entropy
    back = torch.argsort(rows.order)
    return lp[back], entropy[back]


def row_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, rows: VocabularyRows, target: Tensor, logits: Logits
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [N] of targets in row order, by autograd. The parent gather is the only shift."""
    vocab = logits.width(weight)
    raw = hidden.index_select(0, rows.slot) @ weight[:vocab].t()
    if bias is not None:
        raw = raw + bias[:vocab]
    z = logits.transform(raw.to(accumulation_dtype(raw.dtype)))
    if rows.temperature is not None:
        z = z / rows.temperature.to(z)[:, None]
    log_p = torch.log_softmax(z, -1)
    # 0·log 0 is 0: an impossible token adds nothing, and no gradient
    finite = torch.where(torch.isfinite(log_p), log_p, 0)
    entropy = -(log_p.exp() * finite).sum(-1)
    inside = (target >= 0) & (target < vocab)
    lp = log_p[rows.owner, target.clamp(0, vocab - 1)]
    return torch.where(inside, lp, float("nan")), entropy[rows.owner]
