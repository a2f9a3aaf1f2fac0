"""Functions that stay finite where exp does not: capped exponentials and cancellation-free k3. Knows no term."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EXPONENT_CAP = 20.0  # nats; beyond it e^x continues as its tangent


class Exponential(NamedTuple):
    """e^x, its derivative, and where the cap was reached. All of x's shape."""

    value: Tensor
    slope: Tensor
    capped: Tensor


def capped_exp(x: Tensor, cap: float = EXPONENT_CAP) -> Exponential:
    """e^x up to `cap`; beyond it the tangent e^cap·(1 + x − cap): monotone, finite, slope e^cap.

    The argument is limited before the exponential, so that no inf is ever formed.
    """
    capped = x > cap
    power = torch.exp(torch.clamp(x, max=cap))
    return Exponential(torch.where(capped, power * (1 + x - cap), power), power, capped)


def exp_minus_one_minus_x(x: Tensor, cap: float = EXPONENT_CAP) -> Exponential:
    """e^x − 1 − x without cancellation, its derivative e^x − 1, and where the cap was reached.

    Near 0 the difference expm1(x) − x loses all digits in float32, so a series takes over below 1/8.
    Beyond `cap` e^x continues as its tangent.
    """
    capped = x > cap
    limited = torch.clamp(x, max=cap)
    slope = torch.expm1(limited)
    direct = slope - limited
    value = torch.where(x.abs() < 0.125, _series(x.clamp(-0.125, 0.125)), direct)
    return Exponential(torch.where(capped, direct + slope * (x - cap), value), slope, capped)


def _series(x: Tensor) -> Tensor:
    """x²/2! + x³/3! + … up to x¹¹, by Horner's rule; exact to 1e-16 for |x| ≤ 1/8."""
    total = torch.ones_like(x)
    for order in range(11, 2, -1):
        total = 1 + total * x / order
    return total * x * x / 2


def segment_sum(x: Tensor, segment: Tensor, count: int) -> Tensor:
    """Σ of x[N] over each segment id [N] in [0, count): [count], accumulated in float64 where the device has it."""
    wide = x if x.device.type == "mps" else x.double()
    return torch.zeros(count, dtype=wide.dtype, device=x.device).index_add_(0, segment, wide)


def segment_max(x: Tensor, segment: Tensor, count: int) -> Tensor:
    """Largest x[N] of each segment [count]; −inf where a segment is empty."""
    empty = torch.full((count,), float("-inf"), dtype=x.dtype, device=x.device)
    return empty.scatter_reduce_(0, segment, x, "amax", include_self=True)
