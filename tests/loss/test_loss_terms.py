"""Every term against a formula written here on its own, by autograd in float64; and the numerics they stand on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tracemask.core.errors import LossError, UsageError
from tracemask.loss.components import TERMS, Component, find_term
from tracemask.loss.numerics import capped_exp, exp_minus_one_minus_x
from tracemask.loss.terms import Level, TermInputs, TermResult, term
from tracemask.recipe.terms import TERMS as RECIPE_TERMS

N = 60
SEQUENCE = torch.arange(N) // 6


def arrays(seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def logs() -> Tensor:
        return -4 * torch.rand(N, generator=g, dtype=torch.float64) - 0.05

    near = logs()
    return {
        "lp": near,
        "old": near + 0.3 * torch.randn(N, generator=g, dtype=torch.float64).clamp(-2, 2),
        "sampler": (near + 0.5 * torch.randn(N, generator=g, dtype=torch.float64)).clamp(max=-0.01),
        "ref": logs(),
        "advantage": torch.randn(N, generator=g, dtype=torch.float64),
        "entropy": 3 * torch.rand(N, generator=g, dtype=torch.float64),
        "keep": torch.rand(N, generator=g) > 0.2,
    }


def inputs(a: dict[str, Tensor]) -> TermInputs:
    rest = {k: v for k, v in a.items() if k != "lp"}
    return TermInputs(sequence=SEQUENCE, sequences=10, **rest)


def clip(r: Tensor, a: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    return -torch.min(r * a, torch.clamp(r, 1 - low, 1 + high) * a)


def independent_dual(a: dict[str, Tensor]) -> Tensor:
    r, adv = (a["lp"] - a["old"]).exp(), a["advantage"]
    usual = clip(r, adv)
    return torch.where(adv < 0, torch.min(-3 * adv, usual), usual)


def independent_delta(a: dict[str, Tensor]) -> Tensor:
    r, adv = (a["lp"] - a["old"]).exp(), a["advantage"]
    return -torch.min(torch.clamp(r, max=1.5) * adv, torch.clamp(r, 0.8, 1.2) * adv)


def independent_gspo(a: dict[str, Tensor]) -> Tensor:
    out = []
    for row in range(10):
        at = row * 6 + torch.arange(6)
        kept = at[a["keep"][at]]
        ratio = (a["lp"][kept] - a["old"][kept]).mean().exp() if len(kept) else torch.tensor(1.0).double()
        token = ratio.detach() * (a["lp"][at] - a["lp"][at].detach()).exp()
        out.append(clip(token, a["advantage"][at], 3e-4, 4e-4))
    return torch.cat(out)


def independent_dppo(a: dict[str, Tensor]) -> Tensor:
    diff = a["lp"].exp() - a["sampler"].exp()
    bad = torch.where(a["advantage"] > 0, diff > 0.2, diff < -0.2)
    ratio = (a["lp"] - a["sampler"]).exp()
    return -(~bad).double() * a["advantage"] * ratio + 1e-3 * (a["lp"] - a["sampler"]) ** 2


def independent_ref_kl(a: dict[str, Tensor]) -> Tensor:
    keep = (a["lp"].exp() - a["sampler"].exp() >= -0.2).double().detach()
    gain = (a["ref"] - a["lp"]).detach()
    return -keep * gain * (a["lp"] - a["sampler"]).exp() + 1e-3 * (a["lp"] - a["sampler"]) ** 2


def independent_sapo(a: dict[str, Tensor]) -> Tensor:
    r = (a["lp"] - a["old"]).exp()
    tau = torch.tensor([1.0 if x > 0 else 1.05 for x in a["advantage"].tolist()], dtype=torch.float64)
    return -a["advantage"] / (1 + torch.exp(-tau * (r - 1))) * 4 / tau


def independent_kl(estimator: str, ratio: bool) -> Callable[[dict[str, Tensor]], Tensor]:
    def formula(a: dict[str, Tensor]) -> Tensor:
        d = a["lp"] - a["ref"]
        k = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[estimator]
        return k * (a["lp"] - a["old"]).exp() if ratio else k

    return formula


FORMULAS: list[tuple[str, str, dict[str, Any], Callable[[dict[str, Tensor]], Tensor]]] = [
    ("reinforce", "reinforce", {}, lambda a: -a["advantage"] * a["lp"]),
    ("importance_sampling", "importance_sampling", {}, lambda a: -(a["lp"] - a["sampler"]).exp() * a["advantage"]),
    ("ppo", "ppo", {}, lambda a: clip((a["lp"] - a["old"]).exp(), a["advantage"])),
    ("grpo", "grpo", {"eps_high": 0.28}, lambda a: clip((a["lp"] - a["old"]).exp(), a["advantage"], 0.2, 0.28)),
    ("dr_grpo", "dr_grpo", {}, lambda a: clip((a["lp"] - a["old"]).exp(), a["advantage"])),
    ("dual clip", "ppo", {"dual_clip": 3.0}, independent_dual),
    ("delta", "ppo", {"delta": 1.5}, independent_delta),
    ("gspo", "gspo", {}, independent_gspo),
    (
        "cispo",
        "cispo",
        {"low": 0.5, "high": 1.2},
        lambda a: -(a["lp"] - a["old"]).exp().clamp(0.5, 1.2).detach() * a["advantage"] * a["lp"],
    ),
    ("sapo", "sapo", {}, independent_sapo),
    ("dppo", "dppo", {}, independent_dppo),
    ("ref_kl", "ref_kl", {}, independent_ref_kl),
    ("ce", "ce", {}, lambda a: -a["lp"]),
    ("k1 compat", "kl", {"estimator": "k1", "compat": True}, independent_kl("k1", False)),
    ("k2", "kl", {"estimator": "k2"}, independent_kl("k2", False)),
    ("k3", "kl", {}, independent_kl("k3", False)),
    ("k1 live", "kl", {"estimator": "k1", "through_ratio": True}, independent_kl("k1", True)),
    ("k2 live", "kl", {"estimator": "k2", "through_ratio": True}, independent_kl("k2", True)),
    ("k3 live", "kl", {"through_ratio": True}, independent_kl("k3", True)),
]


@pytest.mark.parametrize("label,name,options,formula", FORMULAS, ids=[f[0] for f in FORMULAS])
def test_each_term_and_its_derivative_equal_an_independent_formula(
    label: str, name: str, options: dict[str, Any], formula: Callable[[dict[str, Tensor]], Tensor]
) -> None:
    for seed in range(3):
        a = arrays(seed)
        result = TERMS[name](a["lp"], inputs(a), **options)
        live = a | {"lp": a["lp"].clone().requires_grad_()}
        expected = formula(live)
        (slope,) = torch.autograd.grad(expected.sum(), live["lp"])
        assert torch.allclose(result.loss, expected.detach(), rtol=0, atol=1e-12)
        assert torch.allclose(result.slope, slope, rtol=0, atol=1e-12)
        assert result.slope.abs().sum() > 0


DIFFERENTIABLE = [f for f in FORMULAS if f[1] not in ("cispo", "gspo", "ref_kl")]


@pytest.mark.parametrize("label,name,options,formula", DIFFERENTIABLE, ids=[f[0] for f in DIFFERENTIABLE])
def test_closed_form_derivatives_pass_gradcheck(label: str, name: str, options: dict[str, Any], formula: Any) -> None:
    class Closed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, lp: Tensor) -> Tensor:
            result = TERMS[name](lp.detach(), inputs(a), **options)
            ctx.save_for_backward(result.slope)
            return result.loss

        @staticmethod
        def backward(ctx: Any, *out: Tensor) -> Tensor:
            return ctx.saved_tensors[0] * out[0]

    a = arrays(7)
    assert torch.autograd.gradcheck(Closed.apply, (a["lp"].clone().requires_grad_(),), eps=1e-7, atol=1e-6)


def frozen_cispo(lp: Tensor, at: Tensor, a: dict[str, Tensor]) -> Tensor:
    return -(at - a["old"]).exp().clamp(0.5, 1.2) * a["advantage"] * lp


def frozen_ref_kl(lp: Tensor, at: Tensor, a: dict[str, Tensor]) -> Tensor:
    keep = (at.exp() - a["sampler"].exp() >= -0.2).double()
    return -keep * (a["ref"] - at) * (lp - a["sampler"]).exp() + 1e-3 * (lp - a["sampler"]) ** 2


def frozen_gspo(lp: Tensor, at: Tensor, a: dict[str, Tensor]) -> Tensor:
    gap = torch.where(a["keep"], at - a["old"], 0).view(10, 6).sum(1)
    s = (gap / a["keep"].view(10, 6).sum(1).clamp(min=1)).exp()[SEQUENCE]
    return clip(s * (lp - at).exp(), a["advantage"], 0.2, 0.2)


STOPPED = [
    ("cispo", {"low": 0.5, "high": 1.2}, frozen_cispo),
    ("ref_kl", {}, frozen_ref_kl),
    ("gspo", {"eps_low": 0.2, "eps_high": 0.2}, frozen_gspo),
]


@pytest.mark.parametrize("name,options,formula", STOPPED, ids=[f[0] for f in STOPPED])
def test_terms_with_a_stopped_gradient_pass_a_difference_check_with_that_part_held_fixed(
    name: str, options: dict[str, Any], formula: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]
) -> None:
    """Central differences of the formula in its live argument alone: no autograd on either side."""
    for seed in range(3):
        a = arrays(seed)
        result, eps = TERMS[name](a["lp"], inputs(a), **options), 1e-6
        assert torch.allclose(result.loss, formula(a["lp"], a["lp"], a), rtol=0, atol=1e-12)
        moved = formula(a["lp"] + eps, a["lp"], a) - formula(a["lp"] - eps, a["lp"], a)
        assert torch.allclose(result.slope, moved / (2 * eps), rtol=0, atol=1e-8)
        assert result.slope.ne(0).any()


def test_the_entropy_term_is_minus_h_with_slope_minus_one_in_h() -> None:
    a = arrays(0)
    result = TERMS["entropy"](a["lp"], inputs(a))
    assert torch.equal(result.loss, -a["entropy"])
    assert result.entropy_slope is not None
    assert result.entropy_slope.eq(-1).all()
    assert result.slope.eq(0).all()


@pytest.mark.parametrize("level", ["token", "sum", "mean", "max"])
@pytest.mark.parametrize("kind", ["tis", "mis", "icepop"])
def test_mismatch_weights_multiply_a_term_without_a_gradient(kind: str, level: str) -> None:
    a = arrays(3)
    low, high = (None, 1.3) if kind == "tis" else (0.7, 1.3)
    component = Component("rl", TERMS["ppo"], mismatch={"kind": kind, "level": level, "low": low, "high": high})
    result = component(a["lp"], inputs(a), separate_old=True)
    plain = TERMS["ppo"](a["lp"], inputs(a))
    weight = torch.empty(N, dtype=torch.float64)
    gap = a["old"] - a["sampler"]
    for row in range(10):
        at = row * 6 + torch.arange(6)
        kept = gap[at][a["keep"][at]]
        for t in at.tolist():
            one = {"token": gap[t], "max": gap[t], "sum": kept.sum(), "mean": kept.mean()}[level].exp()
            ends = (kept.min().exp(), kept.max().exp()) if level == "max" else (one, one)
            inside = low is None or (ends[0] >= low and ends[1] <= high)
            weight[t] = min(float(one), high) if kind == "tis" else float(one) * bool(inside)
    assert torch.allclose(result.loss, plain.loss * weight, rtol=0, atol=1e-12)
    assert torch.allclose(result.slope, plain.slope * weight, rtol=0, atol=1e-12)
    assert component.level is (Level.TOKEN if level == "token" else Level.SEQUENCE)


def test_without_separate_old_log_probs_a_mismatch_weight_takes_the_current_policy_as_the_old_one() -> None:
    a = arrays(4)
    component = Component("rl", TERMS["ppo"], mismatch={"kind": "tis", "high": 2.0})
    given = inputs(a | {"old": a["sampler"]})
    result = component(a["lp"], given, separate_old=False)
    weight = (a["lp"] - a["sampler"]).exp().clamp(max=2.0)
    assert torch.allclose(result.loss, -weight * a["advantage"], atol=1e-12)
    assert torch.allclose(result.slope, -weight * a["advantage"], atol=1e-12)


def test_the_tables_of_recipe_and_loss_name_the_same_terms_options_needs_and_levels() -> None:
    assert set(TERMS) == set(RECIPE_TERMS)
    for name, spec in RECIPE_TERMS.items():
        ours = TERMS[name]
        fields = {k: f.default for k, f in spec.options.model_fields.items()}
        assert ours.level.value == spec.level, name
        assert set(ours.needs) == set(spec.needs), name
        assert fields.items() <= ours.options.items(), name
        assert set(ours.options) - set(fields) <= {"clamp"}, name


@pytest.mark.parametrize("options", [{"estimator": "k1"}, {"estimator": "k3", "clamp": 10.0}])
def test_an_estimator_without_a_gradient_is_refused_unless_named_compat(options: dict[str, Any]) -> None:
    a = arrays(0)
    with pytest.raises(LossError, match="TM951"):
        TERMS["kl"](a["lp"], inputs(a), **options)
    assert torch.isfinite(TERMS["kl"](a["lp"], inputs(a), compat=True, **options).loss).all()


def test_a_clamped_k3_loses_its_gradient_where_the_penalty_is_largest() -> None:
    lp, ref = torch.tensor([-8.0]), torch.tensor([-4.0])
    given = TermInputs(keep=torch.tensor([True]), sequence=torch.tensor([0]), sequences=1, ref=ref)
    assert TERMS["kl"](lp, given, clamp=10.0, compat=True).slope.item() == 0
    assert TERMS["kl"](lp, given).slope.item() == pytest.approx(1 - math.exp(4), rel=1e-5)


@pytest.mark.parametrize("name", [n for n in TERMS if TERMS[n].needs])
def test_a_missing_array_is_named(name: str) -> None:
    lp = torch.zeros(2)
    given = TermInputs(keep=torch.ones(2, dtype=torch.bool), sequence=torch.zeros(2, dtype=torch.int64), sequences=1)
    with pytest.raises(LossError, match="TM603"):
        TERMS[name](lp, given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mismatch": {"kind": "tiss"}}, "unknown mismatch kind 'tiss'.*did you mean 'tis'"),
        ({"mismatch": {"kind": "tis", "level": "tokens"}}, "unknown mismatch level 'tokens'"),
        ({"options": {"estimator": "k4"}}, "unknown KL estimator 'k4'.*k1, k2, k3"),
    ],
)
def test_a_word_that_no_table_has_is_refused_and_never_read_as_another(options: dict[str, Any], said: str) -> None:
    a = arrays(0)
    component = Component("c", find_term("kl" if "options" in options else "ppo"), **options)
    with pytest.raises(UsageError, match=said):
        component(a["lp"], inputs(a), separate_old=True)


def test_unknown_terms_and_options_name_the_known_ones() -> None:
    with pytest.raises(UsageError, match="did you mean 'ppo'"):
        find_term("ppoo")
    with pytest.raises(UsageError, match="eps_low"):
        TERMS["ppo"].check_options({"clip": 0.2}, where="components.rl")
    with pytest.raises(UsageError, match="cannot import"):
        find_term("no.such.module:term")


def squared(lp: Tensor, given: TermInputs, *, scale: float = 1.0) -> TermResult:
    """A user's own term."""
    return TermResult(scale * lp**2, 2 * scale * lp)


def centred(lp: Tensor, given: TermInputs) -> TermResult:
    mean = given.sequence_mean(lp)
    return TermResult((lp - mean) ** 2, 2 * (lp - mean))


own_sequence_term = term(level=Level.SEQUENCE, needs=("old",))(centred)


def test_a_users_own_term_is_found_by_its_import_path() -> None:
    found = find_term("test_loss_terms:squared")
    assert found.function is squared
    assert found.level is Level.TOKEN
    assert find_term("test_loss_terms:own_sequence_term").level is Level.SEQUENCE


@settings(max_examples=60, derandomize=True)
@given(st.floats(-60, 400))
def test_the_capped_exponential_is_finite_monotone_and_exact_below_the_cap(x: float) -> None:
    value, slope, capped = capped_exp(torch.tensor([x, x + 0.5], dtype=torch.float32))
    assert torch.isfinite(value).all()
    assert value[1] >= value[0]
    assert bool(capped[0]) == (x > 20)
    if x <= 19:
        assert value[0].item() == pytest.approx(math.exp(x), rel=1e-5)
        assert slope[0] == value[0]


@settings(max_examples=100, derandomize=True)
@given(st.floats(-15, 19))
def test_k3_without_cancellation_agrees_with_exact_arithmetic(x: float) -> None:
    import decimal

    with decimal.localcontext(prec=90):
        d = decimal.Decimal(x)
        exact = float(d.exp() - 1 - d)
    value, slope, _ = exp_minus_one_minus_x(torch.tensor([x], dtype=torch.float64))
    assert value.item() == pytest.approx(exact, rel=2e-14, abs=1e-80)
    assert slope.item() == pytest.approx(math.expm1(x), rel=1e-14, abs=1e-300)


def test_both_exponentials_continue_with_a_continuous_slope_at_the_cap() -> None:
    around = torch.tensor([20 - 1e-9, 20 + 1e-9], dtype=torch.float64)
    for function in (capped_exp, exp_minus_one_minus_x):
        value, slope, _ = function(around)
        assert value[1].item() == pytest.approx(value[0].item(), rel=1e-8)
        assert slope[1].item() == pytest.approx(slope[0].item(), rel=1e-8)
        far, steep, _ = function(torch.tensor([30.0], dtype=torch.float64))
        assert steep.item() == pytest.approx(slope[1].item(), rel=1e-8)
        assert far.item() == pytest.approx(value[1].item() + 10 * steep.item(), rel=1e-6)
