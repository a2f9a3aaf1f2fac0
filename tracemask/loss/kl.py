"""The KL penalty from sampled log-probs: estimators k1, k2, k3, plain or times the live ratio. Knows no weights.

Expected per-token gradients on policy, by exact enumeration (tests/loss/test_enumeration.py):
plain k1: 0. plain k2: KL(π‖q)'s. plain k3 (GRPO's): KL(q‖π)'s. Times the live ratio, k1 and k3: KL(π‖q)'s; k2: neither.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tracemask.core.errors import LossError
from tracemask.core.registry import Table
from tracemask.loss.numerics import Exponential, capped_exp, exp_minus_one_minus_x
from tracemask.loss.terms import TermInputs, TermResult, term


@term()
def kl(
    lp: Tensor,
    given: TermInputs,
    *,
    estimator: str = "k3",
    against: str = "ref",
    through_ratio: bool = False,
    compat: bool = False,
    clamp: float | None = None,
) -> TermResult:
    """The estimator of KL(π‖q) at each sampled token; q is `against`: ref, sampler or old. d = lp − log q.

    k1 = d, k2 = d²/2, k3 = e^{−d} − 1 + d (Schulman 2020). through_ratio multiplies by the live r = e^{lp−o}.
    Plain k1 (expected gradient 0) and a clamp (gradient 0 beyond it) are refused, TM951, unless `compat` says that
    another framework's behaviour is wanted. Raises UsageError TM902 for an unknown estimator.
    """
    if not compat:
        _refuse(estimator, through_ratio, clamp)
    gap = lp - given.need(against)
    value, slope, capped = _ESTIMATORS[estimator](gap, given.cap)
    if clamp is not None:
        slope = torch.where(value.abs() > clamp, 0, slope)
        value = value.clamp(-clamp, clamp)
    stats = {"k1": gap, "capped": capped}
    if through_ratio:
        ratio = capped_exp(lp - given.need("old"), given.cap)
        value, slope = ratio.value * value, ratio.slope * value + ratio.value * slope
        stats["capped"] = capped | ratio.capped
    return TermResult(value, slope, stats=stats)


def _k1(gap: Tensor, cap: float) -> Exponential:
    return Exponential(gap, torch.ones_like(gap), torch.zeros_like(gap, dtype=torch.bool))


def _k2(gap: Tensor, cap: float) -> Exponential:
    return Exponential(gap * gap / 2, gap, torch.zeros_like(gap, dtype=torch.bool))


def k3(gap: Tensor, cap: float) -> Exponential:
    """e^{−gap} − 1 + gap ≥ 0, its derivative in gap, and where the exponent was capped."""
    value, slope, capped = exp_minus_one_minus_x(-gap, cap)
    return Exponential(value, -slope, capped)


_ESTIMATORS: Table[Callable[[Tensor, float], Exponential]] = Table("KL estimator", k1=_k1, k2=_k2, k3=k3)


def _refuse(estimator: str, through_ratio: bool, clamp: float | None) -> None:
    if estimator == "k1" and not through_ratio:
        raise LossError(
            "TM951",
            what="k1 in the loss has expected gradient 0: it adds noise and no penalty",
            fix="use k2 or k3, set through_ratio = true, or compat = true to reproduce another framework",
        )
    if clamp is not None:
        raise LossError(
            "TM951",
            what=f"a clamp at {clamp:g} removes the penalty's gradient exactly where it is largest",
            fix="drop it (exponents are capped with their gradient kept), or set compat = true",
        )
