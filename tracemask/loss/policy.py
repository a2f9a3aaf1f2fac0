"""Policy terms, one pure function each with its closed-form derivative in lp. Knows neither weights nor denominators.

lp = log π_θ, o = old (proximal), μ = sampler; r = e^{lp−o}, ρ = e^{lp−μ}; A = advantage; sg = stop-gradient. All [N].
"""

from __future__ import annotations

import torch
from torch import Tensor

from tracemask.loss.numerics import capped_exp
from tracemask.loss.terms import Level, TermInputs, TermResult, term


@term(needs=("advantage",))
def reinforce(lp: Tensor, given: TermInputs) -> TermResult:
    """−A·lp: the score-function surrogate (Williams 1992)."""
    advantage = given.need("advantage")
    return TermResult(-advantage * lp, -advantage)


@term(needs=("advantage", "sampler"))
def importance_sampling(lp: Tensor, given: TermInputs) -> TermResult:
    """−ρ·A, not clipped."""
    advantage = given.need("advantage")
    rho = capped_exp(lp - given.need("sampler"), given.cap)
    return TermResult(-rho.value * advantage, -rho.slope * advantage, stats={"ratio": rho.value, "capped": rho.capped})


@term(needs=("advantage", "old"))
def ppo(
    lp: Tensor,
    given: TermInputs,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    delta: float | None = None,
) -> TermResult:
    """−min(r·A, clip(r, 1−eps_low, 1+eps_high)·A) (Schulman 2017; eps_high .28 is DAPO's clip-higher).

    dual_clip c: where A < 0 the term is at most c·|A|, with no gradient beyond (Ye 2020; usually 3).
    delta > 1 + eps_high: r itself is limited to delta before the minimum (two-sided clipping, INTELLECT-2).
    """
    advantage = given.need("advantage")
    ratio, slope, capped = capped_exp(lp - given.need("old"), given.cap)
    return _clipped(ratio, slope, capped, advantage, eps_low, eps_high, dual_clip, delta)


@term(level=Level.SEQUENCE, needs=("advantage", "old"))
def gspo(lp: Tensor, given: TermInputs, *, eps_low: float = 3e-4, eps_high: float = 4e-4) -> TermResult:
    """PPO's clipped term on the rollout's ratio s = e^{mean(lp−o)} (Zheng 2025), in the token form.

    The mean runs over the kept targets of the rollout. Token form: s_t = sg(s)·e^{lp − sg(lp)}, so that
    d s_t / d lp_t = s and advantages may differ from token to token.
    """
    advantage = given.need("advantage")
    ratio, slope, capped = capped_exp(given.sequence_mean(lp - given.need("old")), given.cap)
    return _clipped(ratio, slope, capped, advantage, eps_low, eps_high, None, None)


def _clipped(
    ratio: Tensor,
    slope: Tensor,
    capped: Tensor,
    advantage: Tensor,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
    delta: float | None,
) -> TermResult:
    """−min(r·A, clip(r)·A) with both optional upper limits; slope is dr/dlp."""
    limited, live = ratio, slope
    if delta is not None:
        limited, live = ratio.clamp(max=delta), torch.where(ratio > delta, 0, slope)
    free, bound = limited * advantage, limited.clamp(1 - eps_low, 1 + eps_high) * advantage
    clipped = bound < free
    objective, gain = torch.where(clipped, bound, free), torch.where(clipped, 0, live * advantage)
    if dual_clip is not None:
        below = (advantage < 0) & (objective < dual_clip * advantage)
        objective, gain = torch.where(below, dual_clip * advantage, objective), torch.where(below, 0, gain)
        clipped = clipped | below
    return TermResult(-objective, -gain, stats={"ratio": ratio, "clipped": clipped, "capped": capped})


@term(needs=("advantage", "old"))
def cispo(lp: Tensor, given: TermInputs, *, low: float = 0.0, high: float = 5.0) -> TermResult:
    """−sg(clip(r, low, high))·A·lp: every token keeps a gradient (MiniMax-M1; bounds are absolute)."""
    advantage = given.need("advantage")
    ratio, _, capped = capped_exp(lp - given.need("old"), given.cap)
    weight = ratio.clamp(low, high)
    stats = {"ratio": ratio, "clipped": weight != ratio, "capped": capped}
    return TermResult(-weight * advantage * lp, -weight * advantage, stats=stats)


@term(needs=("advantage", "old"))
def sapo(lp: Tensor, given: TermInputs, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> TermResult:
    """−A·σ(τ(r−1))·4/τ, τ by the sign of A: a soft gate in place of the clip (SAPO)."""
    advantage = given.need("advantage")
    ratio, slope, capped = capped_exp(lp - given.need("old"), given.cap)
    # not where(…, tau_pos, tau_neg): two Python numbers would be rounded to float32
    tau = torch.full_like(lp, tau_neg).masked_fill_(advantage > 0, tau_pos)
    gate = torch.sigmoid(tau * (ratio - 1))
    # σ(x)·σ(−x), not σ·(1−σ): the difference is 0 in float32 long before its product with the slope is
    bend = gate * torch.sigmoid(-tau * (ratio - 1))
    return TermResult(
        -advantage * gate * 4 / tau, -advantage * 4 * bend * slope, stats={"ratio": ratio, "capped": capped}
    )


@term(needs=("advantage", "sampler"))
def dppo(lp: Tensor, given: TermInputs, *, low: float = 0.2, high: float = 0.2, kappa: float = 1e-3) -> TermResult:
    """−1[keep]·A·ρ + κ(lp−μ)² (prime-rl's default loss).

    Dropped from the first part: A > 0 and p−q > high, or A < 0 and p−q < −low, with p = e^lp, q = e^μ.
    """
    advantage, gap = given.need("advantage"), lp - given.need("sampler")
    rho = capped_exp(gap, given.cap)
    moved = torch.exp(lp) - torch.exp(given.need("sampler"))
    dropped = torch.where(advantage > 0, moved > high, moved < -low) & (advantage != 0)
    loss = torch.where(dropped, 0, -advantage * rho.value) + kappa * gap * gap
    slope = torch.where(dropped, 0, -advantage * rho.slope) + 2 * kappa * gap
    return TermResult(loss, slope, stats={"ratio": rho.value, "masked": dropped, "capped": rho.capped})


@term(needs=("ref", "sampler"))
def ref_kl(lp: Tensor, given: TermInputs, *, low: float = 0.2, kappa: float = 1e-3) -> TermResult:
    """−1[p−q ≥ −low]·sg(ref−lp)·ρ + κ(lp−μ)²: on-policy distillation as prime-rl does it."""
    gap, gain = lp - given.need("sampler"), given.need("ref") - lp
    rho = capped_exp(gap, given.cap)
    dropped = torch.exp(lp) - torch.exp(given.need("sampler")) < -low
    loss = torch.where(dropped, 0, -gain * rho.value) + kappa * gap * gap
    slope = torch.where(dropped, 0, -gain * rho.slope) + 2 * kappa * gap
    return TermResult(loss, slope, stats={"ratio": rho.value, "masked": dropped, "capped": rho.capped})


@term()
def ce(lp: Tensor, given: TermInputs) -> TermResult:
    """−lp: cross-entropy (SFT; ECHO on observations)."""
    return TermResult(-lp, torch.full_like(lp, -1.0))


@term(needs=("entropy",))
def entropy(lp: Tensor, given: TermInputs) -> TermResult:
    """−H of the full distribution at the target's parent; minimising it raises the entropy."""
    full = given.need("entropy")
    return TermResult(-full, torch.zeros_like(lp), entropy_slope=torch.full_like(full, -1.0))
