"""The numbers of public bug reports and of the field's papers, each beside the value that the usual bug gives."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from loss_recipes import gradient, lengths_mask, padded, recipe, rl

from tracemask import loss
from tracemask.core.errors import LossError

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "cases" / "loss" / "numbers.json").read_text())


def f64(values: Any) -> torch.Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float64)


def normalizer(name: str, length: int) -> Any:
    return {"name": "constant", "length": length} if name == "constant" else name


def close(value: Any, expected: float) -> bool:
    return math.isclose(float(value), expected, rel_tol=1e-9, abs_tol=1e-9 * max(1.0, abs(expected)))


@pytest.mark.parametrize("advantage", [1, -1, 0])
def test_a_sampled_token_moves_the_softmax_by_minus_a_times_one_hot_minus_p(advantage: int) -> None:
    case = CASES["softmax"]
    logits = f64(case["probs"]).log().requires_grad_()
    lp = torch.log_softmax(logits, 0)[case["token"]][None]
    out = loss.from_logprobs(recipe(rl=rl()), lp, advantages=f64([advantage]))
    (moved,) = gradient(out.total, logits)
    assert torch.allclose(moved, f64(case["gradients"][str(advantage)]), atol=1e-12)


@pytest.mark.parametrize("name", ["sequence_mean", "token_mean", "constant"])
def test_three_normalizers_give_three_losses_and_three_token_weights(name: str) -> None:
    case = CASES["three_normalizers"]
    lp = padded(case["logprobs"]).requires_grad_()
    mask, advantages = lengths_mask(case["logprobs"]), f64(case["advantages"])
    out = loss.from_logprobs(
        recipe(rl=rl(normalizer=normalizer(name, case["l_max"]))), lp, mask=mask, advantages=advantages
    )
    assert close(out.total.detach(), case["value"][name])
    (moved,) = gradient(out.total, lp)
    for row, weight in enumerate(case["token_weight"][name]):
        assert close(moved[row, 0].abs(), weight)
    assert moved[0, 3:].eq(0).all()


@pytest.mark.parametrize("name", ["sequence_mean", "token_mean", "constant"])
def test_the_long_wrong_answer_is_pushed_ten_times_less_per_token_under_sequence_mean(name: str) -> None:
    case = CASES["length_bias"]
    lp = torch.full((sum(case["lengths"]),), -0.5, dtype=torch.float64, requires_grad=True)
    bounds = torch.tensor([0, case["lengths"][0], sum(case["lengths"])])
    chosen = recipe(rl=rl(normalizer=normalizer(name, case["l_max"])))
    out = loss.from_logprobs(chosen, lp, cu_seqlens=bounds, advantages=f64(case["advantages"]))
    (moved,) = gradient(out.total, lp)
    assert close(moved[0], case["gradient"][name][0])
    assert close(moved[-1], case["gradient"][name][1])


def test_the_clip_stops_each_sign_on_its_own_side() -> None:
    case = CASES["clip"]
    lp = (f64(case["ratios"]).log() + case["old"]).repeat(2, 1).requires_grad_()
    chosen = recipe(rl=rl("ppo", eps_low=case["low"], eps_high=case["high"]))
    old = torch.full_like(lp, case["old"]).detach()
    out = loss.from_logprobs(chosen, lp, mask=torch.ones_like(old), old=old, advantages=f64([1, -1]))
    assert close(out.total.detach(), case["token_mean"])
    (moved,) = gradient(out.total, lp)
    assert (moved[0] != 0).tolist() == case["moves_positive"]
    assert (moved[1] != 0).tolist() == case["moves_negative"]
    for row, key in enumerate(("positive", "negative")):
        for t, expected in enumerate(case[key]):
            one = torch.zeros_like(old)
            one[row, t] = 1
            alone = loss.from_logprobs(chosen, lp, mask=one, old=old, advantages=f64([1, -1]))
            assert close(alone.total.detach(), expected)


def test_the_constant_normalizer_does_not_see_the_padded_width() -> None:
    case = CASES["constant_padding"]
    chosen = recipe(rl=rl(normalizer=normalizer("constant", case["l_max"])))
    for width, wrong in zip(case["widths"], case["with_width"]):
        rows = [row + [0.0] * (width - len(row)) for row in case["logprobs"]]
        mask = torch.zeros(2, width)
        for i, row in enumerate(case["logprobs"]):
            mask[i, : len(row)] = 1
        out = loss.from_logprobs(chosen, padded(rows), mask=mask, advantages=f64([1, 1]))
        assert close(out.total, case["value"])
        assert not close(out.total, wrong)


def test_a_group_token_mean_is_not_the_batch_token_mean() -> None:
    case = CASES["group_mean"]
    lp, mask = -padded(case["losses"]), lengths_mask(case["losses"])
    for name in ("token_mean", "prompt_mean"):
        chosen = recipe(ce=rl("ce", name))
        out = loss.from_logprobs(chosen, lp, mask=mask, group=torch.tensor([0, 1]))
        assert close(out.total, case[name])


def test_a_masked_truncated_rollout_leaves_numerator_and_denominator() -> None:
    case = CASES["truncated"]
    out = loss.from_logprobs(
        recipe(rl=rl()), padded(case["logprobs"]), mask=padded(case["mask"]), advantages=f64(case["advantages"])
    )
    assert close(out.total, case["token_mean"])
    assert out.components["rl"].denominator == 2


def test_masked_values_enter_neither_sum_nor_gradient() -> None:
    case = CASES["numerator"]
    lp = (-padded(case["losses"])).requires_grad_()
    mask = padded(case["mask"])
    # a masked token's log-prob may be anything, above 0 included
    out = loss.from_logprobs(recipe(ce=rl("ce")), lp, mask=mask)
    assert close(out.total.detach(), case["token_mean"])
    (moved,) = gradient(out.total, lp)
    assert torch.equal(moved, padded(case["gradient"]))


def test_adding_cross_entropy_tokens_does_not_change_the_policy_term() -> None:
    case = CASES["own_denominator"]
    pg, ce = case["pg_tokens"], case["ce_tokens"]
    lp = torch.cat([torch.full((pg,), -1.0), torch.full((ce,), -case["ce_sum"] / ce)]).double()
    is_pg = torch.arange(pg + ce) < pg
    out = loss.from_logprobs(
        recipe(rl=rl(), ce=rl("ce", coef=case["coef"])),
        lp,
        advantages=torch.ones(pg + ce),
        weights={"rl": is_pg, "ce": ~is_pg},
    )
    assert close(out.total, case["loss"])
    assert (out.components["rl"].value, out.components["rl"].denominator) == (pytest.approx(1.0), 3)
    assert (out.components["ce"].value, out.components["ce"].denominator) == (pytest.approx(0.5), 97)


@pytest.mark.parametrize("empty", ["keep", "leave_out"])
def test_a_fully_masked_rollout_stays_in_n_unless_the_recipe_leaves_it_out(empty: str) -> None:
    case = CASES["masked_row"]
    out = loss.from_logprobs(
        recipe(rl=rl(normalizer={"name": "sequence_mean", "empty": empty})),
        padded(case["logprobs"]),
        mask=padded(case["mask"]),
        advantages=f64(case["advantages"]),
    )
    assert close(out.total, case[empty])


def test_the_sequence_ratio_is_the_geometric_mean_over_kept_tokens() -> None:
    case = CASES["gspo"]
    gap = f64(case["log_ratios"])
    out = loss.from_logprobs(
        recipe(rl=rl("gspo", "sequence_mean", eps_low=0.2, eps_high=0.2)),
        gap - 6.0,
        old=torch.full_like(gap, -6.0),
        mask=torch.tensor(case["mask"]),
        advantages=f64([case["advantage"]]),
    )
    assert close(out.total, case["loss"])
    ratio, count = out.metrics["rl/ratio"]
    assert close(ratio / count, case["ratio"])


def test_a_token_that_nobody_sampled_has_no_ratio_once_it_is_masked() -> None:
    case = CASES["placeholder"]
    chosen, one = recipe(rl=rl("importance_sampling")), f64([1])
    kwargs = {"sampler": f64(case["sampler"]), "advantages": one}
    right = loss.from_logprobs(chosen, f64(case["logprobs"]), mask=torch.tensor(case["right"]), **kwargs)
    assert close(right.total, -1.0)
    claimed = loss.from_logprobs(chosen, f64(case["logprobs"]), mask=torch.tensor(case["claimed"]), **kwargs)
    assert close(claimed.total, -(1 + case["ratio"]) / 2)


def test_log_probs_renormalised_over_a_cut_support_bias_the_ratio_by_the_kept_mass() -> None:
    case = CASES["support"]
    probs, kept = case["probs"], sum(case["probs"][i] for i in case["kept"])
    chosen = recipe(rl=rl("importance_sampling"))
    for correction, expected in ((0.0, case["uncorrected"]), (math.log(kept), case["corrected"])):
        sampler = f64([math.log(probs[case["token"]] / kept) + correction])
        out = loss.from_logprobs(chosen, f64([math.log(probs[case["token"]])]), sampler=sampler, advantages=f64([1]))
        assert close(out.metrics["rl/ratio"][0], expected)


def test_truncated_importance_weights_carry_no_gradient_and_keep_the_denominator() -> None:
    case = CASES["tis"]
    lp = f64(case["logprobs"]).requires_grad_()
    chosen = recipe(rl=rl(mismatch={"kind": "tis", "high": case["high"]}))
    out = loss.from_logprobs(chosen, lp, sampler=f64(case["sampler"]), advantages=f64([1]))
    assert close(out.total.detach(), case["token_mean"])
    assert torch.allclose(gradient(out.total, lp)[0], f64(case["gradient"]), atol=1e-12)
    masked = recipe(rl=rl(mismatch={"kind": "icepop", "low": 0.25, "high": case["high"]}))
    out = loss.from_logprobs(masked, lp, sampler=f64(case["sampler"]), advantages=f64([1]))
    assert close(out.total.detach(), case["reject_mean"])
    assert out.components["rl"].denominator == 3
    assert out.metrics["rl/rejected"] == (1, 3)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators_are_those_of_policy_against_reference(estimator: str) -> None:
    case = CASES["kl"]
    lp, ref = f64(case["logprobs"]), f64(case["ref"])
    chosen = recipe(kl=rl("kl", estimator=estimator, compat=estimator == "k1"))
    for t, expected in enumerate(case[estimator]):
        out = loss.from_logprobs(chosen, lp, ref=ref, mask=torch.eye(3)[t])
        assert close(out.total, expected)


def test_the_kl_penalty_is_added_to_the_loss() -> None:
    case = CASES["kl"]
    out = loss.from_logprobs(recipe(kl=rl("kl", coef=case["coef"])), f64(case["logprobs"]), ref=f64(case["ref"]))
    assert close(out.total, case["loss"])


def test_k3_of_nearly_equal_float32_log_probs_keeps_its_digits() -> None:
    case = CASES["k3_small"]
    out = loss.from_logprobs(recipe(kl=rl("kl")), torch.tensor([case["logprob"]]), ref=torch.tensor([case["ref"]]))
    assert out.total.dtype == torch.float32
    assert float(out.total) == pytest.approx(case["k3"], rel=case["relative"])
    assert out.total > 0


def test_k3_of_a_huge_gap_is_finite_counted_and_leaves_the_others_alone() -> None:
    case = CASES["k3_huge"]
    lp = torch.tensor(case["logprobs"], requires_grad=True)
    ref = torch.tensor(case["ref"])
    out = loss.from_logprobs(recipe(kl=rl("kl", "sum")), lp, ref=ref)
    (moved,) = gradient(out.total, lp)
    assert torch.isfinite(moved).all()
    assert torch.isfinite(out.total)
    assert out.metrics["kl/capped"] == (1, 2)
    alone = loss.from_logprobs(recipe(kl=rl("kl", "sum")), lp, ref=ref, mask=torch.tensor([0, 1]))
    assert moved[1] == gradient(alone.total, lp)[0][1]
    assert float(alone.total.detach()) == pytest.approx(case["second"], rel=1e-6)


def test_poison_in_masked_slots_changes_nothing() -> None:
    case = CASES["poison"]
    lp = f64(case["logprobs"]).requires_grad_()
    chosen = recipe(rl=rl("ppo"))
    kwargs = {"old": f64(case["old"]), "mask": torch.tensor(case["mask"]), "advantages": f64([case["advantage"]])}
    out = loss.from_logprobs(chosen, lp, **kwargs)
    (moved,) = gradient(out.total, lp)
    assert close(out.total.detach(), case["token_mean"])
    assert torch.equal(moved, f64(case["gradient"]))
    clean = lp.detach().clone()
    clean[:3] = -1.0
    assert torch.equal(loss.from_logprobs(chosen, clean, **kwargs).total, out.total.detach())


def test_a_non_finite_value_on_a_trained_token_is_refused_by_name() -> None:
    lp = torch.tensor([[-0.5, -math.inf], [-1.0, -1.0]])
    old = torch.tensor([[math.nan, -0.5], [-1.0, -1.0]])
    chosen, ones = recipe(rl=rl("ppo")), torch.ones(2, 2)
    with pytest.raises(LossError, match=r"row 0 token 0: TM404 old log-prob is nan"):
        loss.from_logprobs(chosen, lp, old=old, mask=ones, advantages=torch.ones(2))
    with pytest.raises(LossError, match=r"row 0 token 1: TM404 log-prob is -inf"):
        loss.from_logprobs(chosen, lp, old=old.nan_to_num(-1.0), mask=ones, advantages=torch.ones(2))


def test_the_dual_clip_bounds_a_huge_ratio_with_a_negative_advantage() -> None:
    case = CASES["dual_clip"]
    lp = torch.tensor([case["logprob"]], requires_grad=True)
    old = torch.tensor([case["old"]])
    out = loss.from_logprobs(recipe(rl=rl("ppo", dual_clip=case["c"])), lp, old=old, advantages=torch.tensor([-1.0]))
    assert float(out.total.detach()) == case["value"]
    assert gradient(out.total, lp)[0].item() == 0
    assert out.metrics["rl/capped"] == (1, 1)
    free = loss.from_logprobs(recipe(rl=rl("ppo")), lp, old=old, advantages=torch.tensor([-1.0]))
    assert torch.isfinite(free.total)
    assert 0 < gradient(free.total, lp)[0].item() < math.inf


def test_the_entropy_bonus_has_its_own_sign_and_denominator() -> None:
    case = CASES["entropy"]
    n = case["pg_tokens"]
    out = loss.from_logprobs(
        recipe(rl=rl(), entropy=rl("entropy", coef=case["c"])),
        torch.full((n,), -case["pg_sum"] / n, dtype=torch.float64),
        advantages=f64([1]),
        entropy=f64(case["entropies"]),
        weights={"rl": torch.ones(n), "entropy": torch.tensor(case["mask"])},
    )
    assert close(out.total, case["loss"])


def test_a_padding_sentinel_above_zero_is_ignored_outside_the_mask_and_refused_inside() -> None:
    case = CASES["sentinel"]
    lp = f64(case["logprobs"])
    out = loss.from_logprobs(recipe(ce=rl("ce")), lp, mask=torch.tensor(case["mask"]))
    assert close(out.total, case["mean"])
    with pytest.raises(LossError, match="token 2: TM404 log-prob 1 is above 0"):
        loss.from_logprobs(recipe(ce=rl("ce")), lp)


@pytest.mark.parametrize(("name", "word"), [("old", "old"), ("sampler", "sampler"), ("ref", "reference")])
def test_nobody_else_s_log_prob_on_a_trained_token_is_above_zero_either(name: str, word: str) -> None:
    """A logit or a padding sentinel in a column of log-probs would be a ratio far from 1."""
    chosen = recipe(rl=rl("ppo", mismatch={"kind": "tis"}), kl=rl("kl", coef=0.1))
    lp, mask = torch.full((4,), -1.0), torch.tensor([1, 1, 1, 0])
    given = {other: torch.tensor([-1.0, 5e-5, -1.0, 7.0]) for other in ("old", "sampler", "ref")}
    loss.from_logprobs(chosen, lp, mask=mask, advantages=torch.ones(1), **given)
    given[name] = torch.tensor([-1.0, -1.0, 7.0, -1.0])
    with pytest.raises(LossError, match=f"row 0 token 2: TM404 {word} log-prob 7 is above 0"):
        loss.from_logprobs(chosen, lp, mask=mask, advantages=torch.ones(1), **given)


def test_rounding_above_zero_is_tolerated_and_counted() -> None:
    out = loss.from_logprobs(recipe(ce=rl("ce")), torch.tensor([5e-5, -0.5]))
    assert out.metrics["logprob_positive"] == (1, 2)


def test_zero_advantage_rollouts_leave_rl_and_keep_their_cross_entropy() -> None:
    case = CASES["zero_advantage"]
    rows = [a + o for a, o in zip(case["actions"], case["observations"])]
    acts = [[1.0] * len(a) + [0.0] * len(o) for a, o in zip(case["actions"], case["observations"])]
    obs = [[0.0] * len(a) + [float(x) for x in o] for a, o in zip(case["actions"], case["selected"])]
    out = loss.from_logprobs(
        recipe(rl=rl(zero_advantage="drop"), ce=rl("ce", coef=case["coef"])),
        padded(rows),
        advantages=f64([0, 0]),
        weights={"rl": padded(acts), "ce": padded(obs)},
    )
    assert close(out.total, case["loss"])
    assert out.components["rl"] == (0, 0, 0)
    assert close(out.components["ce"].value, case["ce"])


@pytest.mark.parametrize("name", ["token_mean", "sequence_mean", "constant"])
def test_padded_and_packed_rows_give_one_value(name: str) -> None:
    case = CASES["packing"]
    docs = case["documents"]
    chosen = recipe(rl=rl(normalizer=normalizer(name, case["l_max"])))
    advantages = f64([d["advantage"] for d in docs])
    width = case["pad_to"]
    lp = padded([d["logprobs"] + [0.0] * (width - len(d["logprobs"])) for d in docs])
    mask = padded([d["mask"] + [0] * (width - len(d["mask"])) for d in docs])
    wide = loss.from_logprobs(chosen, lp, mask=mask, advantages=advantages)
    flat = f64([x for d in docs for x in d["logprobs"]])
    bounds = torch.tensor([0, 2, 5, 7])
    flat_mask = torch.tensor([m for d in docs for m in d["mask"]])
    packed = loss.from_logprobs(chosen, flat, mask=flat_mask, cu_seqlens=bounds, advantages=advantages)
    assert close(wide.total, case["value"][name])
    assert close(packed.total, case["value"][name])
