"""Row operations on a buffer of logits in plain torch: the CPU path. Knows no loss, only one chunk of rows.

Work goes block by block, a few rows that fit in cache, in place in the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracemask.loss.lm_head.spec import Logits, RowKernels, accumulation_dtype

BLOCK = 1 << 18  # elements of one block


@dataclass
class RowState:
    """What the derivative needs again. top, total: [n, 1], max and Σ e^{z−max}; entropy: [n] or None.

    spent: the buffer holds e^{z−max} instead of raw products.
    """

    top: Tensor
    total: Tensor
    entropy: Tensor | None
    spent: bool


def log_probs(
    buffer: Tensor,
    owner: Tensor,
    target: Tensor,
    logits: Logits,
    *,
    inverse_temperature: Tensor | None,
    entropy: bool,
    keep: bool,
) -> tuple[Tensor, RowState]:
    """buffer [n, V] raw products, overwritten unless `keep`; owner, target [m] → lp [m], state.

    Log-probs and entropies are formed in float32 (float64 for float64). `keep` is for a derivative in the entropy,
    a soft-cap or half precision, which need the products again.
    """
    n, vocab = buffer.shape
    wide = accumulation_dtype(buffer.dtype)
    spent = not keep and logits.plain and buffer.dtype == wide
    chosen = _scaled(logits.transform(buffer[owner, target].to(wide)), inverse_temperature, owner)
    top, total = buffer.new_empty((n, 1), dtype=wide), buffer.new_empty((n, 1), dtype=wide)
    full = buffer.new_empty(n, dtype=wide) if entropy else None
    step = max(1, BLOCK // vocab)
    scratch = None if spent and not entropy else buffer.new_empty((min(step, n), vocab), dtype=wide)
    for s in range(0, n, step):
        e = min(s + step, n)
        z = buffer[s:e] if spent else _products(buffer[s:e], scratch, logits)
        if inverse_temperature is not None:
            z.mul_(inverse_temperature[s:e, None])
        torch.amax(z, 1, keepdim=True, out=top[s:e])
        z.sub_(top[s:e])
        if full is None:
            torch.sum(z.exp_(), 1, keepdim=True, out=total[s:e])
        else:
            full[s:e] = _entropy_(z, scratch if spent else None, total[s:e])
    lp = chosen - top[owner, 0] - total[owner, 0].log()
    return lp, RowState(top, total, full, spent)


def _products(block: Tensor, scratch: Tensor | None, logits: Logits) -> Tensor:
    assert scratch is not None
    z = scratch[: block.shape[0]]
    z.copy_(block)
    return logits.transform_(z)


def _entropy_(z: Tensor, scratch: Tensor | None, total: Tensor) -> Tensor:
    """Entropy [n] of rows z = logits − max; leaves e^z in z and its sum in total."""
    power = torch.exp(z) if scratch is None else torch.exp(z, out=scratch[: z.shape[0]])
    torch.sum(power, 1, keepdim=True, out=total)
    # −∞ logits have weight 0 and must not enter as 0·∞
    mean = torch.linalg.vecdot(power, z.clamp_(min=-1e30)) / total[:, 0]
    z.copy_(power)
    return total[:, 0].log() - mean


def gradient_(
    buffer: Tensor,
    state: RowState,
    owner: Tensor,
    target: Tensor,
    logits: Logits,
    *,
    inverse_temperature: Tensor | None,
    slope: Tensor,
    entropy_slope: Tensor | None,
) -> None:
    """Turn the buffer into d loss / d raw products, in place.

    slope [m]: d loss / d lp of each target. entropy_slope [n]: d loss / d H of each row, or None.
    dz = Σ_targets slope·(e_target − p) − entropy_slope·p·(log p + H), times 1/temperature and the soft-cap's slope.
    """
    n, vocab = buffer.shape
    per_row = torch.zeros(n, dtype=slope.dtype, device=slope.device).index_add_(0, owner, slope)
    if state.spent:
        share = -per_row[:, None] / state.total
        if inverse_temperature is not None:
            share, slope = share * inverse_temperature[:, None], slope * inverse_temperature[owner]
        step = max(1, BLOCK // vocab)
        for s in range(0, n, step):
            buffer[s : s + step].mul_(share[s : s + step])
        buffer.index_put_((owner, target), slope, accumulate=True)
        return
    _from_products_(buffer, state, owner, target, logits, inverse_temperature, slope, per_row, entropy_slope)


def _from_products_(
    buffer: Tensor,
    state: RowState,
    owner: Tensor,
    target: Tensor,
    logits: Logits,
    inverse_temperature: Tensor | None,
    slope: Tensor,
    per_row: Tensor,
    entropy_slope: Tensor | None,
) -> None:
    n, vocab = buffer.shape
    step = max(1, BLOCK // vocab)
    scratch = state.top.new_empty((min(step, n), vocab))
    normal = state.top + state.total.log()
    bounds = torch.searchsorted(owner, torch.arange(0, n + step, step, device=owner.device)).tolist()
    for block, s in enumerate(range(0, n, step)):
        e = min(s + step, n)
        z = _products(buffer[s:e], scratch, logits)
        bend = None if logits.plain else logits.slope_(z.clone())
        if inverse_temperature is not None:
            z.mul_(inverse_temperature[s:e, None])
        z.sub_(normal[s:e])  # log p
        pull = -per_row[s:e, None]
        if entropy_slope is not None and state.entropy is not None:
            pull = pull - entropy_slope[s:e, None] * (z.clamp(min=-1e30) + state.entropy[s:e, None])
        z.exp_().mul_(pull)
        a, b = bounds[block], bounds[block + 1]
        z.index_put_((owner[a:b] - s, target[a:b]), slope[a:b], accumulate=True)
        if inverse_temperature is not None:
            z.mul_(inverse_temperature[s:e, None])
        if bend is not None:
            z.mul_(bend)
        buffer[s:e].copy_(z)


def _scaled(values: Tensor, inverse_temperature: Tensor | None, owner: Tensor) -> Tensor:
    return values if inverse_temperature is None else values * inverse_temperature[owner]


KERNELS = RowKernels(log_probs, gradient_)
