"""The loss terms a component can name: options, needs, formula. Knows no array; the loss room computes them.

Symbols: lp = log π_θ(token), o = old log-prob (proximal policy; default the sampler's), μ = sampler log-prob,
r = exp(lp − o), ρ = exp(lp − μ), A = advantage, sg = no gradient through it. Every term is minimised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracemask.core.registry import Table


class TermOptions(BaseModel):
    """Options of one term. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NoOptions(TermOptions):
    """A term without options."""


class OwnOptions(TermOptions):
    """Options of a user's own term (`module:function`): passed on as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ClipOptions(TermOptions):
    """Two-sided clip of the ratio, 1 − eps_low to 1 + eps_high."""

    eps_low: float = Field(default=0.2, ge=0, lt=1, description="lower clip: the ratio is cut at 1 − eps_low")
    eps_high: float = Field(default=0.2, ge=0, description="upper clip: the ratio is cut at 1 + eps_high")
    dual_clip: float | None = Field(
        default=None, gt=1, description="for A < 0 the term is capped at −dual_clip·A (3 is usual)"
    )
    delta: float | None = Field(
        default=None, gt=1, description="two-sided: the unclipped ratio is cut at delta, above 1 + eps_high, as well"
    )

    @model_validator(mode="after")
    def _outside(self) -> ClipOptions:
        if self.delta is not None and self.delta <= 1 + self.eps_high:
            raise ValueError(f"delta {self.delta:g} is not above 1 + eps_high = {1 + self.eps_high:g}")
        return self


class GspoOptions(TermOptions):
    """Clip of the sequence's geometric-mean ratio."""

    eps_low: float = Field(default=3e-4, ge=0, lt=1)
    eps_high: float = Field(default=4e-4, ge=0)


class CispoOptions(TermOptions):
    """Clip of the detached ratio to [low, high]."""

    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=5.0, gt=0)


class DppoOptions(TermOptions):
    """Binary total-variation trust region on p − q, and the weight of the squared log-ratio."""

    low: float = Field(default=0.2, ge=0, description="for A < 0 the token is dropped when p − q < −low")
    high: float = Field(default=0.2, ge=0, description="for A > 0 the token is dropped when p − q > high")
    kappa: float = Field(default=1e-3, ge=0, description="weight of (lp − μ)²")


class SapoOptions(TermOptions):
    """Temperatures of the sigmoid gate for A > 0 and A ≤ 0."""

    tau_pos: float = Field(default=1.0, gt=0)
    tau_neg: float = Field(default=1.05, gt=0)


class RefKlOptions(TermOptions):
    """One-sided trust region and the weight of the squared log-ratio."""

    low: float = Field(default=0.2, ge=0, description="the token is dropped when p − q < −low")
    kappa: float = Field(default=1e-3, ge=0, description="weight of (lp − μ)²")


class KlOptions(TermOptions):
    """A KL estimator as a loss, and what it is against."""

    estimator: Literal["k1", "k2", "k3"] = "k3"
    against: Literal["ref", "sampler", "old"] = "ref"
    through_ratio: bool = Field(
        False, description="multiply by the live ratio r, so that k1 and k3 get KL(π‖ref)'s gradient"
    )
    clamp: float | None = Field(
        default=None, gt=0, description="cut the estimate at ±clamp, which kills its gradient: compat only"
    )
    compat: bool = Field(False, description="accept plain k1 or a clamp, to reproduce a published run")


@dataclass(frozen=True, slots=True)
class TermSpec:
    """What a term is: `options` model, `needs` (advantage, old, sampler, ref, entropy), `formula`, `source`.

    level: "token" terms read one token; "sequence" terms reduce over a rollout first.
    """

    options: type[TermOptions]
    needs: frozenset[str]
    formula: str
    source: str
    level: Literal["token", "sequence"] = "token"

    @property
    def uses_advantage(self) -> bool:
        """The term multiplies by the advantage: its tokens must be the policy's own."""
        return "advantage" in self.needs


def _spec(options: type[TermOptions], needs: str, formula: str, source: str, **more: Literal["sequence"]) -> TermSpec:
    return TermSpec(options, frozenset(needs.split()), formula, source, **more)


_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

CLIPPED = "−min(r·A, clip(r, 1−eps_low, 1+eps_high)·A)"

TERMS: Table[TermSpec] = Table(
    "loss term",
    reinforce=_spec(NoOptions, "advantage", "−A·lp", "Williams 1992"),
    importance_sampling=_spec(NoOptions, "advantage sampler", "−ρ·A", "Tinker importance_sampling"),
    ppo=_spec(ClipOptions, "advantage old", CLIPPED, "Schulman et al. 2017, arXiv:1707.06347"),
    grpo=_spec(ClipOptions, "advantage old", CLIPPED, "Shao et al. 2024, arXiv:2402.03300"),
    dr_grpo=_spec(ClipOptions, "advantage old", CLIPPED, "Liu et al. 2025, arXiv:2503.20783"),
    gspo=_spec(
        GspoOptions,
        "advantage old",
        "−min(s·A, clip(s, 1−eps_low, 1+eps_high)·A), s = exp(mean over the rollout of lp − o)",
        "Zheng et al. 2025, arXiv:2507.18071",
        level="sequence",
    ),
    cispo=_spec(CispoOptions, "advantage old", "−sg(clip(r, low, high))·A·lp", "MiniMax-M1, arXiv:2506.13585"),
    dppo=_spec(
        DppoOptions, "advantage sampler", "−1[kept]·A·ρ + kappa·(lp − μ)²", "arXiv:2602.04879; prime-rl's default loss"
    ),
    sapo=_spec(SapoOptions, "advantage old", "−A·σ(τ·(r − 1))·4/τ", "Qwen 2025, arXiv:2511.20347"),
    ref_kl=_spec(
        RefKlOptions, "ref sampler", "−1[p − q ≥ −low]·sg(ref − lp)·ρ + kappa·(lp − μ)²", "prime-rl ref_kl (opd)"
    ),
    ce=_spec(NoOptions, "", "−lp", "maximum likelihood"),
    kl=_spec(KlOptions, "", "k1 = −d, k2 = d²/2, k3 = e^d − 1 − d, d = against − lp", "Schulman 2020"),
    entropy=_spec(NoOptions, "entropy", "−H(π_θ)", "Williams & Peng 1991"),
)


def term_spec(name: str) -> TermSpec:
    """The spec of a term; `module:function` is a user's own term, which may use everything but must be given it.

    Raises UsageError TM902 for an unknown name.
    """
    if _OWN.fullmatch(name):
        return _spec(OwnOptions, "", f"{name} (your own function)", name)
    return TERMS[name]


def needs_of(name: str, options: TermOptions) -> frozenset[str]:
    """What the term needs with these options: `kl` needs what it is against, and the old policy for a live ratio."""
    needs = set(term_spec(name).needs)
    if isinstance(options, KlOptions):
        needs.add(options.against)
        if options.through_ratio:
            needs.add("old")
    return frozenset(needs)
