"""loss.from_logprobs for people with their own trainer: shapes, defaults, refusals, and the metrics beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from loss_recipes import gradient, recipe, rl

from tracemask import loss
from tracemask.core.errors import LossError, RecipeError
from tracemask.loss.metrics import DRIFT_EDGES, means, merged
from tracemask.recipe import Recipe

F64 = torch.float64
LP = torch.tensor([[-0.5, -1.0, -2.0], [-0.3, -0.2, -1.0]], dtype=F64)
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])
A = torch.tensor([1.0, -2.0], dtype=F64)


def test_the_seeds_snippet_runs_as_it_is() -> None:
    """[B, T] log-probs with a mask, REINFORCE, Σ over all masked tokens of −A·lp, over N rollouts."""
    lp = LP.clone().requires_grad_()
    out = loss.from_logprobs(recipe(rl=rl("reinforce", "sum_per_rollout")), lp, mask=MASK, advantages=A)
    by_hand = -(A[:, None] * lp * MASK).sum() / 2
    assert out.total.item() == pytest.approx(by_hand.item(), rel=1e-14)
    assert torch.allclose(gradient(out.total, lp)[0], gradient(by_hand, lp)[0], atol=1e-15)
    assert out.components["rl"].denominator == 2
    assert out.logprobs.shape == lp.shape
    assert not out.logprobs.requires_grad


@pytest.mark.parametrize(
    "name", ["grpo", "dapo", "gspo", "cispo", "sapo", "dppo", "rloo", "maxrl", "grpo_kl", "opd", "sft"]
)
def test_presets_run_by_name_with_rewards_in_groups(name: str) -> None:
    lp = LP.clone().requires_grad_()
    kwargs = {"old": LP - 0.05, "sampler": LP + 0.04, "ref": LP - 0.2, "group": torch.tensor([4, 4])}
    out = loss.from_logprobs(name, lp, mask=MASK, rewards=torch.tensor([1.0, 0.0]), **kwargs)
    (moved,) = gradient(out.total, lp)
    assert torch.isfinite(moved).all()
    assert moved[0, 2] == 0
    assert moved.abs().sum() > 0


def test_rewards_become_the_recipes_advantages() -> None:
    chosen = Recipe.load({"name": "x", "advantage": {"estimator": "group_mean"}, "rl": rl()})
    lp = torch.full((4, 1), -1.0, dtype=F64, requires_grad=True)
    rewards, group = torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1])
    out = loss.from_logprobs(chosen, lp, mask=torch.ones(4, 1), rewards=rewards, group=group)
    assert torch.allclose(gradient(out.total, lp)[0].flatten() * -4, torch.tensor([0.5, -0.5, 0, 0], dtype=F64))


@pytest.mark.parametrize("packed", [False, True])
def test_a_length_weighted_baseline_counts_the_tokens_of_the_mask(packed: bool) -> None:
    """OPO's baseline (arXiv:2505.23585): Σ L_i r_i / Σ L_i."""
    advantage = {"estimator": "group_mean", "baseline": "length_weighted"}
    chosen = Recipe.load({"name": "x", "advantage": advantage, "rl": rl(normalizer="sum")})
    rewards, group = torch.tensor([3.0, 1.0]), torch.tensor([0, 0])
    lp = (LP[MASK.bool()] if packed else LP).clone().requires_grad_()
    where = {"cu_seqlens": torch.tensor([0, 2, 5])} if packed else {"mask": MASK}
    out = loss.from_logprobs(chosen, lp, rewards=rewards, group=group, **where)
    baseline = (2 * 3.0 + 3 * 1.0) / 5
    expected = torch.tensor([baseline - 3] * 2 + [baseline - 1] * 3, dtype=F64)
    (moved,) = gradient(out.total, lp)
    assert torch.allclose(moved if packed else moved[MASK.bool()], expected)
    assert loss.advantages_of(chosen, rewards, group, lengths=[2, 3]) == pytest.approx(-expected[[0, 2]].numpy())
    with pytest.raises(RecipeError, match="TM603.*n_sampled"):  # weights alone do not say what was sampled
        loss.from_logprobs(chosen, LP, rewards=rewards, group=group, weights={"rl": MASK.double()})


def test_a_rollout_without_a_reward_leaves_the_policy_term_and_its_count() -> None:
    chosen = Recipe.load({"name": "x", "advantage": {"estimator": "group_mean"}, "rl": rl()})
    lp = torch.full((3, 1), -1.0, dtype=F64, requires_grad=True)
    rewards = torch.tensor([1.0, math.nan, 0.0])
    out = loss.from_logprobs(chosen, lp, mask=torch.ones(3, 1), rewards=rewards, group=torch.zeros(3))
    assert out.components["rl"].denominator == 2
    assert gradient(out.total, lp)[0].flatten().tolist() == [-0.25, 0, 0.25]


@pytest.mark.parametrize(
    "shape", ["per rollout", "per rollout column", "per token"], ids=["per_rollout", "column", "per_token"]
)
def test_advantages_come_per_rollout_or_per_token(shape: str) -> None:
    given = {"per rollout": A, "per rollout column": A[:, None], "per token": A[:, None].expand(2, 3)}[shape]
    out = loss.from_logprobs(recipe(rl=rl()), LP, mask=MASK, advantages=given)
    assert out.total.item() == pytest.approx(-float((A[:, None] * LP * MASK).sum()) / 5)


def test_a_step_with_nothing_selected_is_zero_on_a_live_graph_and_says_so() -> None:
    lp = LP.clone().requires_grad_()
    out = loss.from_logprobs(recipe(rl=rl("ppo")), lp, mask=torch.zeros(2, 3), old=LP, advantages=A)
    assert out.total.item() == 0
    assert gradient(out.total, lp)[0].eq(0).all()
    assert [f.code for f in out.findings] == ["TM601"]
    assert all(math.isnan(v) for k, v in means(out.metrics).items() if not k.endswith("selected"))


def test_no_tokens_at_all_is_zero_too() -> None:
    lp = torch.zeros(0, requires_grad=True)
    out = loss.from_logprobs(recipe(rl=rl("gspo")), lp, old=torch.zeros(0), advantages=torch.zeros(0))
    assert out.total.item() == 0
    assert gradient(out.total, lp)[0].shape == (0,)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("reinforce", {"advantages": A}, "padding would be trained"),
    ("reinforce", {"mask": MASK[:, :2], "advantages": A}, r"mask has shape \(2, 2\)"),
    ("reinforce", {"mask": MASK}, "TM603 the term needs advantages"),
    ("ppo", {"mask": MASK, "advantages": A}, "TM603 the term needs old"),
    ("reinforce", {"mask": MASK, "advantages": A, "rewards": A}, "both advantages and rewards"),
    ("reinforce", {"mask": MASK, "advantages": A, "cu_seqlens": torch.tensor([0, 6])}, "cu_seqlens with"),
    ("entropy", {"mask": MASK}, "TM603 the term needs the entropy"),
]


@pytest.mark.parametrize("term,kwargs,message", REFUSED, ids=[r[2][:20] for r in REFUSED])
def test_what_cannot_be_done_exactly_is_refused(term: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(LossError, match=message):
        loss.from_logprobs(recipe(rl=rl(term)), LP, **kwargs)


def test_packed_bounds_must_cover_every_token() -> None:
    for bounds in ([0, 3], [1, 6], [0, 4, 2, 6]):
        with pytest.raises(LossError, match="does not cut 6 tokens"):
            loss.from_logprobs(recipe(ce=rl("ce")), LP.flatten(), cu_seqlens=torch.tensor(bounds))


def test_cross_entropy_beside_a_policy_term_needs_a_mask_of_its_own() -> None:
    with pytest.raises(LossError, match="no weights for component 'ce'"):
        loss.from_logprobs(recipe(rl=rl(), ce=rl("ce")), LP, mask=MASK, advantages=A)


def test_the_papers_echo_divides_by_all_observations_and_prime_rls_by_the_selected_ones() -> None:
    """Rollout 1: 3 observations, 2 selected; rollout 2: 1 of 1. nll sums 4.0 and 0.5."""
    lp = torch.tensor([[-0.2, -1.0, -2.0, -3.0], [-0.6, -0.5, 0.0, 0.0]], dtype=F64)
    actions = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]])
    observed = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0]])
    selected = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0]])
    paper = {"name": "sequence_mean", "count": "all_observations", "empty": "leave_out"}
    for normalizer, expected in ((paper, (4.0 / 3 + 0.5 / 1) / 2), ("token_mean", 4.5 / 3)):
        out = loss.from_logprobs(
            recipe(rl=rl(), ce=rl("ce", normalizer, coef=0.1)),
            lp,
            advantages=torch.zeros(2),
            weights={"rl": actions, "ce": selected},
            observations=observed,
        )
        assert out.components["ce"].value == pytest.approx(expected, rel=1e-12)
    with pytest.raises(LossError, match="counts all observation tokens"):
        loss.from_logprobs(recipe(ce=rl("ce", paper)), lp, weights={"ce": selected})


def test_fractional_weights_scale_the_term_and_count_once() -> None:
    out = loss.from_logprobs(recipe(ce=rl("ce")), LP, weights={"ce": MASK * 0.25})
    assert out.components["ce"].denominator == 5
    assert out.total.item() == pytest.approx(-0.25 * float((LP * MASK).sum()) / 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_of_log_probs_gets_a_gradient_of_its_own_type(dtype: torch.dtype) -> None:
    lp = LP.to(dtype).requires_grad_()
    out = loss.from_logprobs(recipe(rl=rl("ppo")), lp, mask=MASK, old=LP.to(dtype), advantages=A)
    assert out.total.dtype == (F64 if dtype == F64 else torch.float32)
    assert gradient(out.total, lp)[0].dtype == dtype


def test_gradients_reach_whatever_produced_log_probs_and_entropy() -> None:
    logits = torch.randn(6, 9, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    log_p = torch.log_softmax(logits, -1)
    lp, entropy = log_p[:, 2], -(log_p.exp() * log_p).sum(-1)
    out = loss.from_logprobs(
        recipe(rl=rl(), entropy=rl("entropy", coef=0.1)), lp, advantages=torch.ones(6), entropy=entropy
    )
    by_hand = -lp.mean() - 0.1 * entropy.mean()
    (expected,) = torch.autograd.grad(by_hand * 3, logits, retain_graph=True)
    assert torch.allclose(gradient(out.total * 3, logits)[0], expected, atol=1e-15)


def test_metrics_are_sums_and_counts_that_add_up_over_rollouts() -> None:
    chosen = recipe(rl=rl("ppo", "sum"))
    lp = LP - 1
    old = lp - torch.tensor([[0.5, 0.0, 0.0], [-0.5, 0.1, 0.0]], dtype=F64)
    whole = loss.from_logprobs(chosen, lp, mask=MASK, old=old, sampler=old, advantages=A)
    parts = [
        loss.from_logprobs(chosen, lp[i], mask=MASK[i], old=old[i], sampler=old[i], advantages=A[i : i + 1])
        for i in range(2)
    ]
    added = merged(part.metrics for part in parts)
    assert added.keys() == whole.metrics.keys()
    for name, pair in whole.metrics.items():
        assert added[name] == pytest.approx(pair, abs=1e-12), name
    assert whole.metrics["rl/clipped_positive"] == (1, 2)
    assert whole.metrics["rl/clipped_negative"] == (1, 3)
    assert whole.metrics["rl/selected"] == (5, 6)
    assert whole.maxima["rl/ratio"] == pytest.approx(math.exp(0.5))
    ratios = torch.tensor([0.5, 0.0, -0.5, 0.1, 0.0], dtype=F64).exp()
    shown = means(whole.metrics)
    assert shown["rl/effective_sample"] == pytest.approx(float(ratios.sum() ** 2 / (5 * (ratios**2).sum())))
    assert shown["sampler/k1"] == pytest.approx(0.1 / 5)
    assert shown["sampler/moved_below_0.5"] == 1
    moved = (lp.exp() - old.exp())[MASK.bool()]
    for edge in DRIFT_EDGES:
        assert whole.metrics[f"sampler/moved_below_{edge:g}"] == (int((moved < edge).sum()), 5)


def test_after_rejection_counts_what_the_masks_keep() -> None:
    from types import SimpleNamespace

    entry = SimpleNamespace(
        term="reinforce",
        coef=1.0,
        options={},
        normalizer=SimpleNamespace(name="token_mean", count="after_rejection"),
        mismatch={"kind": "icepop", "level": "token", "low": 0.5, "high": 2.0},
    )
    sampler = LP - torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.1, -1.0]], dtype=F64)
    out = loss.from_logprobs(SimpleNamespace(components={"rl": entry}), LP, mask=MASK, sampler=sampler, advantages=A)
    assert out.components["rl"].denominator == 3


def a_step() -> dict[str, torch.Tensor]:
    """Six rollouts of several lengths in two groups, float64; the fourth trains nothing."""
    torch.manual_seed(5)
    mask = (torch.arange(9) < torch.tensor([3, 9, 5, 1, 7, 8])[:, None]).int()
    mask[3] = 0
    lp = -torch.rand(6, 9, dtype=F64) - 0.05
    near = {name: (lp + (torch.rand(6, 9, dtype=F64) - 0.5) / 5).clamp(max=0) for name in ("old", "sampler", "ref")}
    return {"lp": lp, "mask": mask, "group": torch.tensor([0, 0, 0, 1, 1, 1]), **near}


@pytest.mark.parametrize(
    "name",
    ["grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo", "dppo", "rloo", "reinforce", "maxrl", "grpo_kl", "grpo_tis",
     "grpo_mis", "reinforce_pp", "sft"],
)  # fmt: skip
@pytest.mark.parametrize("cuts", [[3, 3], [2, 3, 1], [3, 1, 2], [6]])
def test_micro_batches_with_the_steps_counts_add_up_to_the_step(name: str, cuts: list[int]) -> None:
    step = a_step()
    lp, group = step.pop("lp").requires_grad_(), step.pop("group")
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.5])
    whole = loss.from_logprobs(name, lp, rewards=rewards, group=group, **step)
    advantages = torch.as_tensor(loss.advantages_of(name, rewards, group))
    places = torch.arange(6).split(cuts)
    counts = loss.step_counts(name, [{"mask": step["mask"][at], "advantages": advantages[at]} for at in places])
    total, moved = 0.0, torch.zeros_like(lp)
    for at in places:
        given = {key: values[at] for key, values in step.items()}
        part = loss.from_logprobs(name, lp[at], advantages=advantages[at], counts=counts, **given)
        total += float(part.total.detach())
        moved += gradient(part.total, lp)[0]
    assert total == pytest.approx(float(whole.total.detach()), rel=1e-12, abs=1e-14)
    assert torch.allclose(moved, gradient(whole.total, lp)[0], rtol=1e-12, atol=1e-15)
    assert moved.abs().sum() > 0


def test_packed_micro_batches_and_streams_of_their_own_are_counted_like_padded_ones() -> None:
    chosen = recipe(rl=rl(normalizer="sequence_mean"), ce={"term": "ce", "normalizer": "prompt_mean"})
    step = a_step()
    mask, group = step["mask"], step["group"]
    weights = {"rl": mask.double(), "ce": (1 - mask).double()}
    ones = {"advantages": torch.ones(6), "group": group}
    padded = loss.step_counts(chosen, [{"weights": weights, **ones}])
    flat = {key: values.reshape(-1) for key, values in weights.items()}
    bounds = torch.arange(7) * 9
    packed = loss.step_counts(chosen, [{"weights": flat, "cu_seqlens": bounds, **ones}])
    assert {key: values.tolist() for key, values in padded.items()} == {key: v.tolist() for key, v in packed.items()}
    assert padded["rl"].tolist() == [32, 6, 5, 2]
    alone = [{"cu_seqlens": torch.tensor([0, 4, 9]), "advantages": torch.ones(2)}] * 2
    assert loss.step_counts("grpo", alone, reduce=lambda counts: 3 * counts)["rl"].tolist() == [54, 12, 12, 6]


def test_what_a_micro_batch_cannot_know_is_refused() -> None:
    step = a_step()
    part = {"mask": step["mask"][:2], "advantages": torch.ones(2), "group": torch.tensor([0, 1])}
    counts = loss.step_counts("grpo", [part])
    given = {"mask": part["mask"], "old": step["old"][:2]}
    for more, fix in (
        ({"rewards": torch.ones(2)}, "advantages_of"),
        ({"advantages": torch.ones(2), "reduce": lambda c: c}, "step_counts"),
    ):
        with pytest.raises(LossError, match="TM950") as caught:
            loss.from_logprobs("grpo", step["lp"][:2], counts=counts, **given, **more)
        assert fix in caught.value.fix
    grouped = recipe(rl=rl(normalizer="prompt_mean"))
    with pytest.raises(LossError, match="group 0 lies in two micro-batches"):
        loss.step_counts(grouped, [part, part])
    late = recipe(rl=rl(normalizer={"name": "token_mean", "count": "after_rejection"}, mismatch="mis"))
    with pytest.raises(LossError, match="counts what its ratios keep"):
        loss.from_logprobs(late, step["lp"][:2], counts=counts, advantages=torch.ones(2), **given)
    with pytest.raises(LossError, match="without mask"):
        loss.step_counts("grpo", [{"advantages": torch.ones(2)}])
