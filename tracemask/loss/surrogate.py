"""Autograd's view of an objective over given log-probs: closed-form derivatives, saved once. Knows no term."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tracemask.loss.objective import Objective


class Surrogate(torch.autograd.Function):
    """(lp [N], entropy [N] or None) → loss, 0-d. Masked targets get gradient exactly 0, whatever lies there."""

    @staticmethod
    def forward(ctx: Any, lp: Tensor, entropy: Tensor | None, objective: Objective) -> Tensor:
        wide = lp if lp.dtype in (torch.float32, torch.float64) else lp.float()
        full = None if entropy is None else entropy.to(wide.dtype)
        objective.prepare(wide, full)
        slope, bend = objective.slopes(0, len(wide), wide, full)
        ctx.save_for_backward(slope, bend)
        ctx.dtypes = (lp.dtype, None if entropy is None else entropy.dtype)
        return objective.value(wide, full).to(wide.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *out: Tensor) -> Any:
        slope, bend = ctx.saved_tensors
        entropy_grad = None if bend is None else (bend * out[0]).to(ctx.dtypes[1])
        return (slope * out[0]).to(ctx.dtypes[0]), entropy_grad, None
