"""Row operations on a buffer of logits as Triton kernels: the GPU path. Contracts as in torch_rows.py; knows no loss.

Matrix products stay with cuBLAS. Each kernel reads the buffer once; the second writes d logits over it. Arithmetic is
float32 whatever the buffer holds. On a CPU they run only under TRITON_INTERPRET=1, which tests use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from tracemask.core.errors import LossError, MissingExtra
from tracemask.loss.lm_head.spec import Logits, RowKernels

try:
    import triton
    import triton.language as tl
except ImportError as error:
    fix = 'pip install triton, or call from_hidden(head="chunked")'
    raise MissingExtra("TM903", what="triton is not installed", fix=fix) from error

STATS_BLOCK = 4096
GRADIENT_BLOCK = 4096


@dataclass
class RowState:
    """normal: log Σ e^z of each row [n]; entropy: [n] or None. Both float32."""

    normal: Tensor
    entropy: Tensor | None


@triton.jit
def _logit(raw, scale, cap, CAPPED: tl.constexpr):
    """softcap·tanh(raw·scale / softcap), with tanh(x) = 2σ(2x) − 1."""
    z = raw.to(tl.float32) * scale
    if CAPPED:
        z = cap * (2 * tl.sigmoid(2 * z / cap) - 1)
    return z


@triton.jit
def _row_stats(
    Z, stride, COOL, NORMAL, ENTROPY, vocab, scale, cap,
    CAPPED: tl.constexpr, HEATED: tl.constexpr, WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row: log Σ e^z, and the entropy, in one sweep with a running maximum."""
    row = tl.program_id(0).to(tl.int64)
    cool = tl.load(COOL + row) if HEATED else 1.0
    top = -1.0e30  # finite, so that a block of −inf does not make NaN of the rescaling
    total = 0.0
    moment = 0.0  # Σ e^{z − top}·(z − top)
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < vocab
        raw = tl.load(Z + row * stride + column, mask=inside, other=0.0)
        z = tl.where(inside, _logit(raw, scale, cap, CAPPED) * cool, -float("inf"))
        highest = tl.maximum(top, tl.max(z, 0))
        decay = tl.exp(top - highest)
        power = tl.exp(z - highest)
        if WANTED:
            pull = power * tl.maximum(z - highest, -1.0e30)  # 0·∞ would be NaN
            moment = decay * (moment + total * (top - highest)) + tl.sum(pull, 0)
        total = total * decay + tl.sum(power, 0)
        top = highest
    tl.store(NORMAL + row, top + tl.log(total))
    if WANTED:
        tl.store(ENTROPY + row, tl.log(total) - moment / total)


@triton.jit
def _gradient(
    Z, stride, COOL, NORMAL, ENTROPY, ROW_SLOPE, BEND, STARTS, TARGET, SLOPE, vocab, scale, cap,
    CAPPED: tl.constexpr, HEATED: tl.constexpr, BENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row and block: the buffer becomes d loss / d raw products. p_target − 1 is formed in float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    place = Z + row * stride + column
    logit = _logit(tl.load(place, mask=inside, other=0.0), scale, cap, CAPPED)
    cool = tl.load(COOL + row) if HEATED else 1.0
    log_p = logit * cool - tl.load(NORMAL + row)
    p = tl.exp(log_p)
    pull = tl.load(ROW_SLOPE + row)
    if BENT:
        surprise = tl.where(p > 0, log_p, 0.0) + tl.load(ENTROPY + row)
        d = -p * (pull + tl.load(BEND + row) * surprise)
    else:
        d = -p * pull
    for k in range(tl.load(STARTS + row), tl.load(STARTS + row + 1)):
        d += tl.where(column == tl.load(TARGET + k), tl.load(SLOPE + k), 0.0)
    d = d * cool * scale
    if CAPPED:
        d = d * (1 - (logit / cap) * (logit / cap))
    tl.store(place, d.to(Z.dtype.element_ty), mask=inside)


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
    """buffer [n, V] raw products (left as they are); owner, target [m] → lp [m] float32, state."""
    _usable(buffer)
    n, vocab = buffer.shape
    normal = torch.empty(n, dtype=torch.float32, device=buffer.device)
    full = torch.empty_like(normal) if entropy else None
    cool = normal if inverse_temperature is None else inverse_temperature
    with _device(buffer):
        _row_stats[(n,)](
            buffer, buffer.stride(0), cool, normal, normal if full is None else full, vocab,
            logits.scale, logits.softcap or 1.0,
            CAPPED=logits.softcap is not None, HEATED=inverse_temperature is not None, WANTED=entropy,
            BLOCK=STATS_BLOCK, num_warps=8,  # pyright: ignore[reportCallIssue]
        )  # fmt: skip
    chosen = logits.transform(buffer[owner, target].float())
    if inverse_temperature is not None:
        chosen = chosen * inverse_temperature[owner]
    return chosen - normal[owner], RowState(normal, full)


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
    """Turn the buffer into d loss / d raw products, in place. slope [m], entropy_slope [n] or None."""
    n, vocab = buffer.shape
    slope = slope.contiguous()
    per_row = torch.zeros(n, dtype=torch.float32, device=buffer.device).index_add_(0, owner, slope)
    starts = torch.searchsorted(owner, torch.arange(n + 1, device=buffer.device))
    bent = entropy_slope is not None and state.entropy is not None
    with _device(buffer):
        _gradient[(n, triton.cdiv(vocab, GRADIENT_BLOCK))](
            buffer, buffer.stride(0), per_row if inverse_temperature is None else inverse_temperature,
            state.normal, state.entropy if bent else per_row, per_row, entropy_slope if bent else per_row,
            starts, target.contiguous(), slope, vocab, logits.scale, logits.softcap or 1.0,
            CAPPED=logits.softcap is not None, HEATED=inverse_temperature is not None, BENT=bent,
            BLOCK=GRADIENT_BLOCK, num_warps=8,  # pyright: ignore[reportCallIssue]
        )  # fmt: skip


def _device(buffer: Tensor) -> torch.cuda.device:
    return torch.cuda.device(buffer.device if buffer.is_cuda else -1)


def _usable(buffer: Tensor) -> None:
    if not buffer.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        fix = 'use head="chunked" on this device'
        raise LossError("TM950", what=f"Triton kernels do not run on {buffer.device.type}", fix=fix)
    if buffer.dtype == torch.float64:
        raise LossError("TM950", what="the Triton head computes in float32", fix='use head="chunked" for float64')


KERNELS = RowKernels(log_probs, gradient_)
