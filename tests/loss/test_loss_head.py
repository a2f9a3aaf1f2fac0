"""The fused LM head equals the plain one, whatever the options, and keeps autograd's promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loss_recipes import random_batch, recipe, rl
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tracemask import loss
from tracemask.core.errors import LossError
from tracemask.loss.batch import Batch
from tracemask.loss.output import LossOutput
from tracemask.recipe import Recipe

S, H, V = 40, 16, 50
F64 = torch.float64

TOKEN = recipe(
    rl=rl("ppo", eps_high=0.28), ce=rl("ce", coef=0.1), kl=rl("kl", coef=0.2), entropy=rl("entropy", coef=0.05)
)
SEQUENCE = recipe(rl=rl("gspo", eps_low=0.2, eps_high=0.2), ce=rl("ce", coef=0.1), entropy=rl("entropy", coef=0.05))
MISMATCH = recipe(
    rl=rl("cispo", high=1.2, mismatch={"kind": "mis", "level": "mean", "low": 0.1, "high": 8.0}),
    kl=rl("kl", coef=0.2, through_ratio=True),
    entropy=rl("entropy", coef=0.05),
)
NAMES = ("rl", "ce", "kl", "entropy")


def tensors(dtype: torch.dtype = F64, *, bias: bool = False, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None]:
    g = torch.Generator().manual_seed(seed)

    def make(*shape: int, scale: float) -> Tensor:
        return (scale * torch.randn(*shape, generator=g, dtype=F64)).to(dtype).requires_grad_()

    return make(S, H, scale=1.0), make(V, H, scale=0.3), make(V, scale=1.0) if bias else None


def grads(out: LossOutput, inputs: tuple[Tensor | None, ...], scale: float = 1.0) -> list[Tensor]:
    return list(torch.autograd.grad(out.total * scale, [x for x in inputs if x is not None]))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "softcap": {"softcap": 2.0},
    "scale": {"logit_scale": 0.7},
    "everything": {"softcap": 2.0, "logit_scale": 1.3, "bias": True, "valid_vocab": 45, "heat": True},
    "valid_vocab": {"valid_vocab": 45},
    "temperature": {"heat": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("chosen", [TOKEN, SEQUENCE, MISMATCH], ids=["token", "sequence", "mismatch"])
def test_the_fused_head_equals_autograd_through_all_logits(chosen: Recipe, name: str) -> None:
    options = dict(OPTIONS[name])
    heat = np.where(np.arange(25) % 3 == 0, 0.7, 1.0) if options.pop("heat", False) else None
    hidden, weight, bias = tensors(bias=options.pop("bias", False))
    batch = random_batch(1, vocab=45, components=NAMES, shared_parents=True, temperature=heat)
    inputs = (hidden, weight, bias)
    fused = loss.from_hidden(chosen, hidden, weight, batch, bias=bias, chunk=7, **options)
    plain = loss.from_hidden(chosen, hidden, weight, batch, bias=bias, head="reference", **options)
    assert torch.allclose(fused.total, plain.total, rtol=1e-13, atol=1e-13)
    assert torch.allclose(fused.logprobs, plain.logprobs, atol=1e-12)
    assert fused.entropy is not None
    assert plain.entropy is not None
    assert torch.allclose(fused.entropy, plain.entropy, atol=1e-12)
    for a, b in zip(grads(fused, inputs), grads(plain, inputs)):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    for c, value in fused.components.items():
        assert value == pytest.approx(plain.components[c], rel=1e-11)


def test_gradcheck_of_the_whole_head_in_float64() -> None:
    hidden, weight, bias = (x[:5, :3] if x.dim() == 2 else x[:5] for x in tensors(bias=True) if x is not None)
    hidden, weight, bias = (x.detach().clone().requires_grad_() for x in (hidden, weight, bias))
    batch = random_batch(2, components=NAMES, shared_parents=True, slots=5, targets=8, vocab=5)
    smooth = recipe(rl=rl("importance_sampling"), kl=rl("kl", coef=0.2), entropy=rl("entropy", coef=0.3))

    def total(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return loss.from_hidden(smooth, h, w, batch, bias=b, chunk=2, softcap=3.0).total

    assert torch.autograd.gradcheck(total, (hidden, weight, bias), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("chosen", [TOKEN, SEQUENCE], ids=["token", "sequence"])
@pytest.mark.parametrize("chunk", [1, 7, 64, "auto"])
def test_the_chunk_size_changes_nothing(chosen: Recipe, chunk: int | str) -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(3, components=NAMES, shared_parents=True)
    one = loss.from_hidden(chosen, hidden, weight, batch, chunk=1000)
    out = loss.from_hidden(chosen, hidden, weight, batch, chunk=chunk)
    assert torch.allclose(out.logprobs, one.logprobs, rtol=0, atol=1e-12)
    for a, b in zip(grads(out, (hidden, weight)), grads(one, (hidden, weight))):
        assert torch.allclose(a, b, rtol=0, atol=1e-13)


def test_log_probs_and_entropies_do_not_depend_on_the_chunk_to_twelve_digits() -> None:
    """Rows 50, vocabulary 1000, chunks 1, 7, 64: the small part of the memory case."""
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.eye(50, dtype=F64), 3 * torch.randn(1000, 50, generator=g, dtype=F64)
    batch = random_batch(0, slots=50, targets=50, vocab=1000, components=("ce",), selected=1.0)
    direct = torch.log_softmax(hidden @ weight.t(), -1)
    for chunk in (1, 7, 64):
        out = loss.from_hidden(recipe(ce=rl("ce")), hidden, weight, batch, chunk=chunk, entropy=True)
        lp = direct[batch.parent_slot, batch.target_id]
        entropy = -(direct.exp() * direct).sum(-1)[batch.parent_slot]
        assert out.entropy is not None
        assert (out.logprobs - lp).abs().max() < 1e-12
        assert (out.entropy - entropy).abs().max() < 1e-12


def test_only_selected_positions_reach_the_vocabulary() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(4, components=NAMES, targets=10)
    seen = set(batch.parent_slot.tolist())
    poisoned = hidden.detach().clone()
    poisoned[[s for s in range(S) if s not in seen]] = float("nan")
    poisoned.requires_grad_()
    out = loss.from_hidden(TOKEN, poisoned, weight, batch)
    clean = loss.from_hidden(TOKEN, hidden, weight, batch)
    assert torch.equal(out.total, clean.total)
    (moved,) = torch.autograd.grad(out.total, poisoned)
    assert all(moved[s].eq(0).all() for s in range(S) if s not in seen)


def test_poison_in_a_target_that_nobody_weighs_changes_not_one_bit() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(4, components=NAMES, weights={c: np.arange(25) % 2 for c in NAMES})
    clean = loss.from_hidden(TOKEN, hidden, weight, batch)
    dirty = hidden.detach().clone()
    dirty[batch.parent_slot[0]] = float("nan")
    dirty[batch.parent_slot[2], 3] = float("inf")
    dirty.requires_grad_()
    out = loss.from_hidden(TOKEN, dirty, weight, batch)
    assert torch.equal(out.total, clean.total)
    assert out.logprobs.isnan().nonzero().flatten().tolist() == [0, 2]
    for a, b in zip(grads(out, (dirty, weight)), grads(clean, (hidden, weight))):
        assert torch.equal(a, b)


def test_a_users_own_term_trains_through_the_head() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(17)
    lp, _ = loss.head_logprobs(hidden, weight, batch)
    share = batch.weights["rl"] / batch.denominator["rl"]
    expected = torch.autograd.grad((share * 3 * lp**2).sum(), (hidden, weight))
    out = loss.from_hidden(recipe(rl=rl("test_loss_terms:squared", scale=3.0)), hidden, weight, batch)
    for a, b in zip(grads(out, (hidden, weight)), expected):
        assert torch.allclose(a, b, atol=1e-12)


def test_several_targets_of_one_parent_use_one_row_of_logits_and_all_count() -> None:
    hidden, weight, _ = tensors()
    arrays = {
        "input_ids": np.zeros(S),
        "target_id": [3, 3, 9],  # the same token twice: a duplicate index must be added, not assigned
        "parent_slot": [5, 5, 5],
        "row": [0, 1, 2],
        "index_in_row": [4, 4, 4],
        "weights": {"rl": [1.0, 2.0, 0.5]},
        "denominator": {"rl": [1.0] * 3},
        "advantages": [1.0, 1.0, -1.0],
    }
    batch = Batch.from_numpy(dtype=F64, **arrays)
    assert batch.vocabulary_rows().slot.tolist() == [5]
    out = loss.from_hidden(recipe(rl=rl()), hidden, weight, batch)
    p = torch.softmax(hidden[5].detach() @ weight.detach().t(), 0)
    dz = -(2.5 * p) * -1
    dz[3] -= 3.0
    dz[9] += 0.5
    (moved,) = torch.autograd.grad(out.total, hidden)
    assert torch.allclose(moved[5], dz @ weight.detach(), atol=1e-13)


@pytest.mark.parametrize("chosen", [TOKEN, SEQUENCE], ids=["token", "sequence"])
def test_gradients_are_right_for_any_grad_output_and_when_used_twice(chosen: Recipe) -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(5, components=NAMES)
    once = grads(loss.from_hidden(chosen, hidden, weight, batch), (hidden, weight))
    out = loss.from_hidden(chosen, hidden, weight, batch)
    (out.total * -2.5).backward(retain_graph=True)
    (out.total * 3.5).backward()
    for x, g in zip((hidden, weight), once):
        assert x.grad is not None
        assert torch.allclose(x.grad, g, rtol=0, atol=1e-14)
    again = loss.from_hidden(chosen, hidden, weight, batch)
    twice = torch.autograd.grad(again.total + again.total, (hidden, weight))
    for a, b in zip(twice, once):
        assert torch.allclose(a, 2 * b, rtol=0, atol=1e-14)


def test_a_second_derivative_is_refused_and_not_silently_zero() -> None:
    hidden, weight, _ = tensors()
    out = loss.from_hidden(TOKEN, hidden, weight, random_batch(5, components=NAMES))
    (first,) = torch.autograd.grad(out.total, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        first.sum().backward()


def test_without_gradients_no_gradient_is_formed_and_the_value_is_the_same() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(6, components=NAMES)
    with_gradient = loss.from_hidden(TOKEN, hidden, weight, batch)
    with torch.no_grad():
        out = loss.from_hidden(TOKEN, hidden, weight, batch)
    assert not out.total.requires_grad
    assert torch.equal(out.total, with_gradient.total.detach())
    frozen = loss.from_hidden(TOKEN, hidden, weight.detach(), batch)
    (moved,) = torch.autograd.grad(frozen.total, hidden)
    assert torch.equal(moved, torch.autograd.grad(with_gradient.total, hidden)[0])


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(7, components=NAMES)

    def step(h: Tensor, w: Tensor) -> Tensor:
        return loss.from_hidden(TOKEN, torch.tanh(h), w, batch).total

    plain = torch.autograd.grad(step(hidden, weight), (hidden, weight))
    total = checkpoint(step, hidden, weight, use_reentrant=reentrant)
    assert isinstance(total, Tensor)
    (total * 1.0).backward()
    for x, g in zip((hidden, weight), plain):
        assert x.grad is not None
        assert torch.allclose(x.grad, g, rtol=0, atol=1e-14)


def test_tied_embeddings_receive_both_gradients() -> None:
    _, weight, _ = tensors()
    ids = torch.arange(S) % V
    batch = random_batch(8, components=NAMES)

    def total(head: str) -> Tensor:
        return loss.from_hidden(TOKEN, torch.tanh(weight[ids]), weight, batch, head=head).total

    fused, plain = (torch.autograd.grad(total(head), weight)[0] for head in ("chunked", "reference"))
    assert torch.allclose(fused, plain, rtol=0, atol=1e-13)


def test_an_empty_micro_batch_has_loss_zero_on_a_live_graph() -> None:
    hidden, weight, bias = tensors(bias=True)
    hidden.data[:] = float("inf")
    arrays = {k: [] for k in ("target_id", "parent_slot", "row", "index_in_row", "advantages", "old_logprob")}
    for chosen in (recipe(rl=rl("ppo")), recipe(rl=rl("gspo"))):
        streams = {"rl": []}
        batch = Batch.from_numpy(dtype=F64, input_ids=np.zeros(S), weights=streams, denominator=streams, **arrays)
        out = loss.from_hidden(chosen, hidden, weight, batch, bias=bias)
        assert out.total.item() == 0
        for x in torch.autograd.grad(out.total, [hidden, weight, bias]):
            assert x.eq(0).all()
        assert out.components["rl"] == (0, 0, 0)


def test_metric_names_do_not_depend_on_the_data() -> None:
    hidden, weight, _ = tensors()
    full = loss.from_hidden(TOKEN, hidden, weight, random_batch(9, components=NAMES))
    none = loss.from_hidden(TOKEN, hidden, weight, random_batch(9, components=NAMES, selected=0.0))
    empty = loss.from_hidden(TOKEN, hidden, weight, random_batch(9, components=NAMES, targets=0))
    assert list(full.metrics) == list(none.metrics) == list(empty.metrics)
    assert list(full.maxima) == list(empty.maxima)
    assert all(pair == (0, 0) for name, pair in none.metrics.items() if not name.endswith("/selected"))


@pytest.mark.parametrize("where", ["hidden", "old", "advantage"])
def test_a_non_finite_value_on_a_trained_token_names_rollout_and_token(where: str) -> None:
    hidden, weight, _ = tensors()
    more: dict[str, Any] = {"names": ("a", "b", "c", "d", "e"), "selected": 1.0}
    values = np.full(25, -1.0)
    values[12] = np.nan
    if where == "old":
        more["old_logprob"] = values
    if where == "advantage":
        more["advantages"] = values
    batch = random_batch(10, components=NAMES, **more)
    if where == "hidden":
        hidden.data[batch.parent_slot[12]] = float("nan")
    with pytest.raises(LossError, match=r"rollout 'c' token 3: TM404"):
        loss.from_hidden(TOKEN, hidden, weight, batch)


def test_a_nan_where_no_component_looks_is_nobodys_business() -> None:
    hidden, weight, _ = tensors()
    weights = {"rl": np.arange(25) % 2, "ce": (np.arange(25) + 1) % 2}
    clean = np.linspace(-1, 1, 25)
    holes = np.where(weights["ce"] == 1, np.nan, clean)
    chosen = recipe(rl=rl(), ce=rl("ce"))
    batches = [random_batch(11, components=("rl", "ce"), weights=weights, advantages=a) for a in (clean, holes)]
    one, two = (loss.from_hidden(chosen, hidden, weight, b) for b in batches)
    assert torch.equal(one.total, two.total)
    assert torch.equal(grads(one, (weight,))[0], grads(two, (weight,))[0])


@pytest.mark.parametrize("target", [V, V + 7, -1])
def test_a_target_outside_the_vocabulary_is_refused(target: int) -> None:
    hidden, weight, _ = tensors()
    ids = np.zeros(25)
    ids[4] = target
    batch = random_batch(12, selected=1.0, target_id=ids)
    for head in ("chunked", "reference"):
        said = rf"row 0 token 5: TM404 log-prob is nan \(token id {target} is outside the head's 50\)"
        with pytest.raises(LossError, match=said):
            loss.from_hidden(recipe(rl=rl()), hidden, weight, batch, head=head)


def test_minus_infinite_logits_of_other_tokens_are_legal() -> None:
    hidden, weight, bias = tensors(bias=True)
    assert bias is not None
    bias.data[40:] = float("-inf")
    batch = random_batch(13, vocab=40, components=NAMES)
    out = loss.from_hidden(TOKEN, hidden, weight, batch, bias=bias)
    cut = loss.from_hidden(TOKEN, hidden, weight, batch, bias=bias, valid_vocab=40)
    assert torch.allclose(out.total, cut.total, atol=1e-13)
    for a, b in zip(grads(out, (hidden, weight)), grads(cut, (hidden, weight))):
        assert torch.allclose(a, b, atol=1e-13)


def test_misfits_are_named() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(14)
    chosen = recipe(rl=rl())
    with pytest.raises(LossError, match=r"TM950 hidden \(40, 16\) and head \(50, 8\) do not fit"):
        loss.from_hidden(chosen, hidden, weight[:, :8], batch)
    with pytest.raises(LossError, match="TM950 39 hidden states for 40 slots"):
        loss.from_hidden(chosen, hidden[:39], weight, batch)
    with pytest.raises(LossError, match="TM950 hidden is torch.float64, the head torch.float32"):
        loss.from_hidden(chosen, hidden, weight.float(), batch)
    for options, said in (
        ({"valid_vocab": 51}, "valid_vocab 51 for a head of 50 rows"),
        ({"bias": torch.zeros(49).double()}, r"bias is torch.float64 \(49,\).*\[50\]"),
        ({"bias": torch.zeros(50)}, "bias is torch.float32.*give torch.float64"),
        ({"chunk": 0}, "chunk 0"),
    ):
        for head in ("chunked", "reference"):
            with pytest.raises(LossError, match=f"TM950 {said}"):
                loss.from_hidden(chosen, hidden, weight, batch, head=head, **options)
    for heat in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LossError, match="row 0 token 3: TM950 temperature"):
            random_batch(14, temperature=np.where(np.arange(25) == 2, heat, 1.0))
    with pytest.raises(LossError, match="TM950 no weights for component 'ce'"):
        loss.from_hidden(recipe(rl=rl(), ce=rl("ce")), hidden, weight, batch)
    with pytest.raises(LossError, match="TM603 the term needs reference log-probs"):
        loss.from_hidden(recipe(rl=rl("kl")), hidden, weight, random_batch(14, ref_logprob=None))
    with pytest.raises(LossError, match="TM604"):
        random_batch(14, parent_slot=np.full(25, -1))
    with pytest.raises(LossError, match="TM950 advantages has 3 entries, expected 25"):
        random_batch(14, advantages=[1, 2, 3])


def test_head_logprobs_serves_a_loss_of_ones_own() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(15, shared_parents=True)
    lp, entropy = loss.head_logprobs(hidden, weight, batch)
    direct = torch.log_softmax(hidden @ weight.t(), -1)
    assert torch.allclose(lp, direct[batch.parent_slot, batch.target_id], atol=1e-12)
    assert torch.allclose(entropy, -(direct.exp() * direct).sum(-1)[batch.parent_slot], atol=1e-12)
    assert batch.advantages is not None
    own = -(batch.advantages * lp * batch.weights["rl"] / batch.denominator["rl"]).sum()
    ours = loss.from_hidden(recipe(rl=rl()), hidden, weight, batch)
    for a, b in zip(torch.autograd.grad(own, (hidden, weight)), grads(ours, (hidden, weight))):
        assert torch.allclose(a, b, atol=1e-13)


def test_counts_after_rejection_are_needed_and_are_those_of_a_log_prob_pass() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(16, selected=1.0)
    chosen = recipe(rl=rl("reinforce", mismatch={"kind": "icepop", "low": 0.5, "high": 2.0}))
    kept = loss.counts_after_rejection(chosen, hidden, weight, batch)["rl"]
    lp, _ = loss.head_logprobs(hidden.detach(), weight.detach(), batch)
    assert batch.old_logprob is not None
    assert batch.sampler_logprob is not None
    ratio = (batch.old_logprob - batch.sampler_logprob).exp()
    assert 0 < kept < 25
    assert kept == int(((ratio >= 0.5) & (ratio <= 2)).sum())
    out = loss.from_hidden(chosen, hidden, weight, batch, counts={"rl": kept})
    assert out.components["rl"].denominator == kept
    nothing = loss.from_hidden(chosen, hidden, weight, batch, counts={"rl": 0})  # every token of the step rejected
    assert torch.isfinite(nothing.total)


def naive_bf16(hidden: Tensor, weight: Tensor, batch: Batch) -> list[Tensor]:
    """The float32-accumulated baseline: bf16 logits, float32 softmax, weight gradient accumulated in float32."""
    h, w = hidden.detach(), weight.detach()
    z = (h @ w.t()).float()
    p = torch.softmax(z, -1)
    assert batch.advantages is not None
    g = -batch.advantages * (batch.weights["rl"] / batch.denominator["rl"]).float()
    dz = torch.zeros_like(z)
    dz.index_put_((batch.parent_slot, batch.target_id), g, accumulate=True)
    per_row = torch.zeros(len(z)).index_add_(0, batch.parent_slot, g)
    dz = (dz - per_row[:, None] * p).to(torch.bfloat16)
    return [dz @ w, dz.float().t() @ h.float()]


def test_bf16_error_is_within_a_fifth_of_the_float32_accumulated_baseline() -> None:
    slots, vocab = 256, 400
    ours, theirs = np.zeros(2), np.zeros(2)
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        hidden = torch.randn(slots, 64, generator=g).bfloat16().requires_grad_()
        weight = (0.3 * torch.randn(vocab, 64, generator=g)).bfloat16().requires_grad_()
        batch = random_batch(seed, slots=slots, targets=200, vocab=vocab, dtype=torch.float32)
        chosen = recipe(rl=rl())
        wide = (hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_())
        truth = grads(loss.from_hidden(chosen, *wide, batch), wide)
        fused = grads(loss.from_hidden(chosen, hidden, weight, batch, chunk=32), (hidden, weight))
        for i, (a, b, t) in enumerate(zip(fused, naive_bf16(hidden, weight, batch), truth)):
            ours[i] += float((a.double() - t).norm())
            theirs[i] += float((b.to(torch.bfloat16).double() - t).norm())
    assert (ours <= 1.2 * theirs).all()


def test_the_weight_gradient_of_bf16_is_accumulated_in_float32() -> None:
    """4096 equal contributions over many chunks: a bf16 accumulator would stall at 256 of them."""
    slots = 4096
    hidden = torch.ones(slots, 4, dtype=torch.bfloat16)
    weight = torch.zeros(8, 4, dtype=torch.bfloat16, requires_grad=True)
    batch = random_batch(
        0,
        slots=slots,
        targets=slots,
        dtype=torch.float32,
        target_id=np.zeros(slots),
        weights={"rl": np.ones(slots)},
        denominator={"rl": np.ones(slots)},
        advantages=np.ones(slots),
    )
    out = loss.from_hidden(recipe(rl=rl()), hidden, weight, batch, chunk=16)
    (moved,) = torch.autograd.grad(out.total, weight)
    assert moved[0, 0].item() == pytest.approx(-slots * 7 / 8, rel=1e-2)


@pytest.mark.parametrize("how", [{"valid_vocab": 0}, {"softcap": 0.0}, {"softcap": -1.0}], ids=str)
def test_a_vocabulary_of_nothing_and_a_soft_cap_that_is_no_cap_are_refused_by_every_path(how: dict[str, float]) -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(16, components=NAMES)
    for call in (
        lambda: loss.from_hidden(TOKEN, hidden, weight, batch, **how),  # type: ignore[arg-type]
        lambda: loss.head_logprobs(hidden, weight, batch, **how),  # type: ignore[arg-type]
    ):
        with pytest.raises(LossError, match=f"TM950 {next(iter(how))}"):
            call()


def test_the_plain_head_refuses_what_the_fused_one_refuses() -> None:
    hidden, weight, _ = tensors()
    batch = random_batch(16, components=NAMES)
    with pytest.raises(LossError, match=r"TM950 hidden \(2, 40, 16\) and head"):
        loss.head_logprobs(torch.stack([hidden, hidden]), weight, batch)
    with pytest.raises(LossError, match="TM950 39 hidden states for 40 slots"):
        loss.head_logprobs(hidden[1:], weight, batch)


def test_a_batch_without_an_array_that_it_needs_is_refused_by_name() -> None:
    with pytest.raises(LossError, match="TM950 the batch lacks .*'parent_slot'.*'target_id'"):
        Batch.from_numpy(input_ids=np.zeros(S), weights={}, denominator={}, row=[], index_in_row=[])
