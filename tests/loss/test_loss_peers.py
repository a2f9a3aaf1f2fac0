"""Parity with TRL's and Liger's own code in float64: loss and gradient to 1e-9. Run by `make test-peers`."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loss_recipes import random_batch, recipe, rl
from torch import Tensor

from tracemask import loss
from tracemask.recipe import Recipe

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

B, T, L_MAX = 5, 9, 16
F64 = torch.float64
Step = dict[str, Tensor]


def step(seed: int = 0) -> Step:
    """A padded batch with ragged masks; log-ratios wide enough that every clip binds somewhere."""
    g = torch.Generator().manual_seed(seed)
    lp = -0.1 - 3 * torch.rand(B, T, generator=g, dtype=F64)
    mask = (torch.arange(T) < torch.tensor([9, 4, 7, 1, 6])[:, None]).double()
    return {
        "lp": lp,
        "old": lp + 0.4 * torch.randn(B, T, generator=g, dtype=F64),
        "ref": lp + 0.3 * torch.randn(B, T, generator=g, dtype=F64),
        "advantages": torch.randn(B, generator=g, dtype=F64),
        "entropy": 2 * torch.rand(B, T, generator=g, dtype=F64),
        "mask": mask,
    }


def ours(chosen: Recipe, s: Step) -> tuple[Tensor, Tensor]:
    lp = s["lp"].clone().requires_grad_()
    kwargs = {name: s[name] for name in ("mask", "old", "ref", "advantages", "entropy")}
    total = loss.from_logprobs(chosen, lp, **kwargs).total
    return total.detach(), torch.autograd.grad(total, lp)[0]


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    assert a[0].item() == pytest.approx(b[0].item(), rel=1e-9, abs=1e-9)
    assert torch.allclose(a[1], b[1], rtol=1e-9, atol=1e-9)


constant = {"name": "constant", "length": L_MAX}
wide = {"eps_low": 0.2, "eps_high": 0.28}
CASES: dict[str, tuple[dict[str, Any], Recipe]] = {
    "grpo": ({"loss_type": "grpo"}, recipe(rl=rl("grpo", "sequence_mean", **wide))),
    "bnpo": ({"loss_type": "bnpo"}, recipe(rl=rl("grpo", "token_mean", **wide))),
    "dapo": ({"loss_type": "dapo"}, recipe(rl=rl("grpo", "token_mean", **wide))),
    "dr_grpo": ({"loss_type": "dr_grpo"}, recipe(rl=rl("dr_grpo", constant, **wide))),
    "delta": ({"loss_type": "grpo", "delta": 1.5}, recipe(rl=rl("grpo", "sequence_mean", delta=1.5, **wide))),
    "sapo": ({"loss_type": "sapo"}, recipe(rl=rl("sapo", "sequence_mean"))),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.2},
        recipe(rl=rl("cispo", "token_mean", high=1.2)),
    ),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        recipe(rl=rl("gspo", "sequence_mean", **wide)),
    ),
    "kl": (
        {"loss_type": "dapo", "beta": 0.3},
        recipe(rl=rl("grpo", "token_mean", **wide), kl=rl("kl", "token_mean", coef=0.3)),
    ),
    "kl through the ratio": (
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True},
        recipe(rl=rl("grpo", "sequence_mean", **wide), kl=rl("kl", "sequence_mean", coef=0.3, through_ratio=True)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_ligers_grpo_losses(name: str) -> None:
    from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

    options, chosen = CASES[name]
    for seed in range(3):
        s = step(seed)
        lp = s["lp"].clone().requires_grad_()
        settings = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "max_completion_length": L_MAX} | options
        total, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
            lp,
            s["mask"],
            s["advantages"],
            s["mask"],
            ref_per_token_logps=s["ref"],
            old_per_token_logps=s["old"],
            **settings,
        )
        same(ours(chosen, s), (total.detach(), torch.autograd.grad(total, lp)[0]))


def trl_loss(s: Step, lp: Tensor, entropy_coef: float = 0.0, **options: Any) -> Tensor:
    """GRPOTrainer._compute_loss itself, on a trainer that holds nothing but these fields."""
    from trl import GRPOTrainer

    settings = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "importance_sampling_level": "token"} | options
    args = SimpleNamespace(
        delta=settings.pop("delta", None),
        use_bias_correction_kl=settings.pop("use_bias_correction_kl", False),
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    self = SimpleNamespace(
        **settings,
        args=args,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=L_MAX,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        _entropy_bonus_enabled=entropy_coef != 0,
        use_adaptive_entropy=False,
        entropy_coef=entropy_coef,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *a, **k: (lp, s["entropy"], None),
    )
    ids = torch.zeros(B, T, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": s["mask"],
        "advantages": s["advantages"],
        "old_per_token_logps": s["old"],
        "ref_per_token_logps": s["ref"],
        "num_items_in_batch": s["mask"].sum(),
    }
    return GRPOTrainer._compute_loss(self, None, inputs)


@pytest.mark.parametrize("name", CASES)
def test_parity_with_trls_grpo_trainer(name: str) -> None:
    options, chosen = CASES[name]
    if name == "sapo":  # TRL picks τ by torch.where of two Python numbers, which rounds 1.05 to float32
        chosen = recipe(rl=rl("sapo", "sequence_mean", tau_neg=float(torch.tensor(1.05))))
    for seed in range(3):
        s = step(seed)
        lp = s["lp"].clone().requires_grad_()
        total = trl_loss(s, lp, **options)
        same(ours(chosen, s), (total.detach(), torch.autograd.grad(total, lp)[0]))


def test_parity_with_trls_entropy_bonus() -> None:
    s = step()
    chosen = recipe(rl=rl("grpo", "sequence_mean", **wide), entropy=rl("entropy", "token_mean", coef=0.05))
    lp = s["lp"].clone().requires_grad_()
    total = trl_loss(s, lp, entropy_coef=0.05, loss_type="grpo")
    same(ours(chosen, s), (total.detach(), torch.autograd.grad(total, lp)[0]))


def test_parity_with_trls_chunked_head() -> None:
    """Log-probs, entropies and both gradients from hidden states, in float32 (its head has no float64)."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 16, generator=g).requires_grad_()
    weight = (0.3 * torch.randn(50, 16, generator=g)).requires_grad_()
    batch = random_batch(0, dtype=torch.float32, components=("rl", "entropy"))
    chosen = recipe(rl=rl(), entropy=rl("entropy", coef=0.2))
    out = loss.from_hidden(chosen, hidden, weight, batch, softcap=3.0, logit_scale=0.7)
    picked = hidden.index_select(0, batch.parent_slot)
    lp, entropy, *_ = ChunkedLogProbFunction.apply(
        picked, weight, None, batch.target_id, 1.0, 16, 3.0, 0.7, ("entropy",)
    )
    assert torch.allclose(out.logprobs, lp, atol=2e-6)
    assert out.entropy is not None
    assert torch.allclose(out.entropy, entropy, atol=2e-6)
    share = {c: (batch.weights[c] / batch.denominator[c]).float() for c in ("rl", "entropy")}
    total = -(batch.advantages * lp * share["rl"]).sum() - 0.2 * (entropy * share["entropy"]).sum()
    for a, b in zip(torch.autograd.grad(out.total, (hidden, weight)), torch.autograd.grad(total, (hidden, weight))):
        assert (a - b).abs().max() <= 2e-6 * b.abs().max()


def test_parity_with_torchs_own_cross_entropy() -> None:
    """CE over a packed batch equals torch's cross_entropy with ignore_index."""
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(40, 16, generator=g, dtype=F64).requires_grad_()
    weight = (0.3 * torch.randn(50, 16, generator=g, dtype=F64)).requires_grad_()
    n = 25
    batch = random_batch(1, weights={"ce": torch.ones(n).numpy()}, denominator={"ce": [float(n)] * n})
    labels = torch.full((40,), -100)
    labels[batch.parent_slot] = batch.target_id
    theirs = torch.nn.functional.cross_entropy(hidden @ weight.t(), labels, ignore_index=-100)
    mine = loss.from_hidden(recipe(ce=rl("ce")), hidden, weight, batch).total
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-12)
    for a, b in zip(torch.autograd.grad(mine, (hidden, weight)), torch.autograd.grad(theirs, (hidden, weight))):
        assert torch.allclose(a, b, atol=1e-12)
