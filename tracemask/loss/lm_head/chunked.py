"""The fused LM head: log-probs and gradients of selected targets, a chunk of vocabulary rows at a time.

One pass forms logits, asks the objective for derivatives and turns the buffer into d logits in place; the full matrix
of logits never exists. Sequence-level objectives take one log-prob pass first. Knows no term and no recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tracemask.loss.batch import VocabularyRows
from tracemask.loss.lm_head.spec import Logits, accumulation_dtype, chunk_rows

_BLOCK = 8192  # rows of the head's gradient that change their dtype at a time


class Objective(Protocol):
    """What the head asks of the loss. lp, entropy (None if unwanted): [hi − lo] of targets lo..hi in row order.

    idle: bool [N], targets that no component weighs.
    """

    idle: Tensor
    needs_every_logprob: bool
    wants_entropy: bool
    trains_entropy: bool

    def prepare(self, lp: Tensor, entropy: Tensor | None) -> None:
        """Sees all log-probs before the first derivative is asked for (needs_every_logprob)."""
        ...

    def slopes(self, lo: int, hi: int, lp: Tensor, entropy: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """d loss / d lp and d loss / d entropy (or None) of targets lo..hi."""
        ...

    def value(self, lp: Tensor, entropy: Tensor | None) -> Tensor:
        """The loss of this micro-batch, 0-d, from all log-probs."""
        ...


@dataclass(frozen=True)
class Head:
    """Fixed facts of one call: rows of logits, target ids in row order, how logits are made, the row kernels."""

    rows: VocabularyRows
    target: Tensor
    logits: Logits
    kernels: Any
    chunk: int | str = "auto"


class Chunk(NamedTuple):
    """Rows lo..hi and targets a..b (half-open) of the head."""

    lo: int
    hi: int
    a: int
    b: int


class _Pass:
    """One walk over the vocabulary rows: owns the logits buffer and the per-target results."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head, objective: Objective) -> None:
        vocab = head.logits.width(weight)
        self.hidden, self.weight = hidden, weight[:vocab]
        self.bias = None if bias is None else bias[:vocab]
        self.head, self.objective, self.vocab = head, objective, vocab
        wide, count = accumulation_dtype(hidden.dtype), head.target.shape[0]
        self.size = chunk_rows(head.chunk, head.rows.slot.shape[0], vocab, hidden)
        self.lp = torch.empty(count, dtype=wide, device=hidden.device)
        self.entropy = torch.empty_like(self.lp) if objective.wants_entropy else None
        # out-of-range ids are looked up safely and reported as NaN, which the engine names
        self.target = head.target.clamp(0, vocab - 1)
        self.outside = (head.target < 0) | (head.target >= vocab)
        # a row of logits that nobody weighs may hold anything: it must not reach the weight's gradient as 0·NaN
        rows = head.rows.slot.shape[0]
        busy = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
        self.idle = busy.index_add_(0, head.rows.owner, (~objective.idle).long()) == 0
        heat = head.rows.temperature
        self.cool = None if heat is None else heat.to(device=hidden.device, dtype=wide).reciprocal()
        self.keep = objective.trains_entropy or not head.logits.plain or hidden.dtype != wide

    def chunks(self) -> Iterator[Chunk]:
        starts, total = self.head.rows.starts, self.head.rows.slot.shape[0]
        for lo in range(0, total, self.size):
            hi = min(lo + self.size, total)
            yield Chunk(lo, hi, int(starts[lo]), int(starts[hi]))

    def forward(self, c: Chunk, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Logits of the chunk into buffer; its log-probs into self.lp. Returns (x, z, owner, row state)."""
        x = self.hidden.index_select(0, self.head.rows.slot[c.lo : c.hi])
        poison = self.idle[c.lo : c.hi, None] & ~torch.isfinite(x)
        x = x.masked_fill_(poison, 0)
        z = buffer[: c.hi - c.lo]
        if self.bias is None:
            torch.mm(x, self.weight.t(), out=z)
        else:
            torch.addmm(self.bias, x, self.weight.t(), out=z)
        owner = self.head.rows.owner[c.a : c.b] - c.lo
        cool = None if self.cool is None else self.cool[c.lo : c.hi]
        lp, state = self.head.kernels.log_probs(
            z,
            owner,
            self.target[c.a : c.b],
            self.head.logits,
            inverse_temperature=cool,
            entropy=self.entropy is not None,
            keep=self.keep,
        )
        unknown = self.outside[c.a : c.b] | poison.any(1)[owner]
        self.lp[c.a : c.b] = torch.where(unknown, float("nan"), lp)
        if self.entropy is not None:
            self.entropy[c.a : c.b] = state.entropy[owner]
        return x, z, owner, state

    def backward_(self, c: Chunk, z: Tensor, owner: Tensor, state: Any) -> None:
        """Turn the chunk's buffer into d loss / d products."""
        full = None if self.entropy is None else self.entropy[c.a : c.b]
        slope, bend = self.objective.slopes(c.a, c.b, self.lp[c.a : c.b], full)
        per_row = None
        if bend is not None:
            per_row = torch.zeros(c.hi - c.lo, dtype=self.lp.dtype, device=z.device).index_add_(0, owner, bend)
        self.head.kernels.gradient_(
            z,
            state,
            owner,
            self.target[c.a : c.b],
            self.head.logits,
            inverse_temperature=None if self.cool is None else self.cool[c.lo : c.hi],
            slope=slope.to(self.lp.dtype),
            entropy_slope=per_row,
        )

    def buffer(self) -> Tensor:
        return self.hidden.new_empty((self.size, self.vocab))


class FusedHead(torch.autograd.Function):
    """(hidden [S, H], weight [V, H], bias [V] or None) → loss (0-d), lp [N], entropy [N] (both without gradient)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head, objective: Objective, grad: bool
    ) -> Any:
        walk = _Pass(hidden, weight, bias, head, objective)
        wanted = tuple(grad and needed for needed in ctx.needs_input_grad[:3])
        if objective.needs_every_logprob or not any(wanted):
            buffer = walk.buffer()
            for c in walk.chunks():
                walk.forward(c, buffer)
            objective.prepare(walk.lp, walk.entropy)
            del buffer
        saved = _gradients(walk, hidden, weight, bias, wanted) if any(wanted) else (None, None, None)
        ctx.save_for_backward(*saved)
        ctx.slot, ctx.slots, ctx.dtypes = head.rows.slot, hidden.shape[0], (hidden.dtype, weight.dtype)
        loss = objective.value(walk.lp, walk.entropy).to(walk.lp.dtype)
        full = walk.lp.new_empty(0) if walk.entropy is None else walk.entropy
        ctx.mark_non_differentiable(walk.lp, full)
        ctx.set_materialize_grads(False)
        return loss, walk.lp, full

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out: Tensor | None, *_: Any) -> Any:
        rows, weight, bias = ctx.saved_tensors
        if out is None:
            return None, None, None, None, None, None
        hidden_grad = None
        if rows is not None:
            # out of place: the saved tensors serve again when the graph is kept
            hidden_grad = rows.new_zeros((ctx.slots, rows.shape[1])).index_add_(0, ctx.slot, rows * out.to(rows.dtype))
        weight_grad, bias_grad = (None if one is None else _scaled(one, out, ctx.dtypes[1]) for one in (weight, bias))
        return hidden_grad, weight_grad, bias_grad, None, None, None


def _scaled(total: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """total · factor in `dtype`, block by block: the product in total's own would be gigabytes more of a large head."""
    scaled = torch.empty_like(total, dtype=dtype)
    for block, into in zip(total.split(_BLOCK), scaled.split(_BLOCK), strict=True):
        torch.mul(block, factor, out=into)
    return scaled


def _gradients(
    walk: _Pass, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, ...]
) -> tuple[Any, ...]:
    """Walk once: d hidden rows [U, H] in hidden's dtype, d weight [V, H] and d bias [V] in float32 (float64)."""
    wide, rows = walk.lp.dtype, walk.head.rows.slot.shape[0]
    d_rows = hidden.new_empty((rows, hidden.shape[1])) if wanted[0] else None
    d_weight = torch.empty(weight.shape, dtype=wide, device=weight.device) if wanted[1] else None
    d_bias = torch.zeros(weight.shape[0], dtype=wide, device=weight.device) if wanted[2] and bias is not None else None
    if d_weight is not None:
        d_weight[walk.vocab if rows else 0 :].zero_()  # the first chunk overwrites the others
    buffer = walk.buffer()
    for c in walk.chunks():
        x, z, owner, state = walk.forward(c, buffer)
        walk.backward_(c, z, owner, state)
        if d_rows is not None:
            torch.mm(z, walk.weight, out=d_rows[c.lo : c.hi])
        if d_weight is not None:
            add_outer_(d_weight[: walk.vocab], z, x, beta=0 if c.lo == 0 else 1)
        if d_bias is not None:
            d_bias[: walk.vocab].add_(z.sum(0, dtype=wide))
    return d_rows, d_weight, d_bias


# Before 2.10 addmm wants its first argument in the factors' dtype; then blocks are widened one by one, exact but slow.
_MIXED_PRODUCT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def add_outer_(total: Tensor, z: Tensor, x: Tensor, *, beta: int) -> Tensor:
    """total [V, H] = beta·total + zᵀ·x with z [n, V], x [n, H], accumulated in total's dtype (float32 for halves)."""
    if z.dtype == total.dtype:
        return total.addmm_(z.t(), x, beta=beta)
    if z.is_cuda and _MIXED_PRODUCT:
        return torch.addmm(total, z.t(), x, beta=beta, out_dtype=total.dtype, out=total)  # pyright: ignore[reportCallIssue]
    wide = x.to(total.dtype)
    for block, part in zip(total.split(_BLOCK), z.split(_BLOCK, 1), strict=True):
        block.addmm_(part.t().to(total.dtype), wide, beta=beta)
    return total
