"""Parity with verl's own code in float64: losses, aggregation, KL penalties, rollout correction, advantages.

verl pins older numpy and transformers than this project uses, so no extra installs it: `pip install --no-deps verl
tensordict omegaconf codetiming hydra-core ray pyvers antlr4-python3-runtime==4.9.3` and `make test-peers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loss_recipes import recipe, rl
from torch import Tensor

from tracemask import loss
from tracemask.recipe import Recipe
from tracemask.store.commit import write_dataset
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.export import export
from tracemask.store.reader import open_dataset
from tracemask.store.row import Row
from tracemask.store.schema import make_metadata
from tracemask.train.batches import prepare

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
core: Any = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed", exc_type=ImportError)

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "fixtures/tokenizers/small"
B, T, L_MAX = 6, 11, 16
F64 = torch.float64
MODES = {
    "token-mean": "token_mean",
    "token-sum": "sum",
    "seq-mean-token-sum": "sum_per_rollout",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": {"name": "constant", "length": L_MAX},
}


def step(seed: int) -> dict[str, Tensor]:
    """Two groups of three rollouts with holes in their masks; ratios wide enough that every clip binds somewhere."""
    g = torch.Generator().manual_seed(seed)
    lp = -0.1 - 3 * torch.rand(B, T, generator=g, dtype=F64)
    mask = (torch.arange(T) < torch.tensor([11, 4, 7, 1, 6, 9])[:, None]) & (torch.rand(B, T, generator=g) < 0.8)
    mask[:, 0] = True
    return {
        "lp": lp,
        "old": lp + 0.4 * torch.randn(B, T, generator=g, dtype=F64),
        "sampler": lp + 0.5 * torch.randn(B, T, generator=g, dtype=F64),
        "ref": lp + 0.3 * torch.randn(B, T, generator=g, dtype=F64),
        "advantages": torch.randn(B, generator=g, dtype=F64),
        "rewards": torch.randint(0, 4, (B,), generator=g).double(),
        "mask": mask.double(),
    }


def actor(**options: Any) -> Any:
    """verl's ActorConfig with what the losses read of it."""
    from verl.workers.config import ActorConfig

    return ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, ppo_micro_batch_size_per_gpu=1,
        global_batch_info={"loss_scale_factor": L_MAX}, **options
    )  # fmt: skip


def ours(chosen: Recipe, s: Mapping[str, Tensor], *given: str) -> tuple[Tensor, Tensor]:
    lp = s["lp"].clone().requires_grad_()
    total = loss.from_logprobs(chosen, lp, **{name: s[name] for name in ("mask", "advantages", *given)}).total
    return total.detach(), torch.autograd.grad(total, lp)[0]


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    assert a[0].item() == pytest.approx(b[0].item(), rel=1e-6, abs=1e-9)  # verl adds 1e-8 to lengths
    assert torch.allclose(a[1], b[1], rtol=1e-6, atol=1e-9)


wide = {"eps_low": 0.2, "eps_high": 0.28}
CLIP = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
LOSSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ppo": ("vanilla", {**CLIP, "clip_ratio_c": 3.0}, {"term": "ppo", "dual_clip": 3.0, **wide}),
    "gspo": ("gspo", CLIP, {"term": "gspo", **wide}),
    "cispo": ("cispo", CLIP, {"term": "cispo", "low": 0.8, "high": 1.28}),
    "sapo": ("sapo", CLIP, {"term": "sapo"}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(name: str, mode: str) -> None:
    theirs, config, term = LOSSES[name]
    fixed = "seq-mean-token-mean" if name == "sapo" else mode  # whatever verl is asked for
    chosen = recipe(rl=rl(normalizer=MODES[fixed], **term))
    for seed in range(3):
        s = step(seed)
        lp = s["lp"].clone().requires_grad_()
        wide_advantages = s["advantages"][:, None].expand(B, T)
        total, _ = core.get_policy_loss_fn(theirs)(
            s["old"], lp, wide_advantages, s["mask"], loss_agg_mode=mode, config=actor(**config)
        )
        same(ours(chosen, s, "old"), (total.detach(), torch.autograd.grad(total, lp)[0]))


@pytest.mark.parametrize("mode", MODES)
def test_reinforce(mode: str) -> None:
    s = step(0)
    lp = s["lp"].clone().requires_grad_()
    total, _ = core.compute_policy_loss_reinforce(
        s["sampler"], lp, s["advantages"][:, None].expand(B, T), s["mask"], loss_agg_mode=mode, config=actor()
    )
    same(ours(recipe(rl=rl(normalizer=MODES[mode])), s), (total.detach(), torch.autograd.grad(total, lp)[0]))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "k3+"])
def test_kl_penalties(kind: str) -> None:
    """verl's "+" takes k2's gradient for the value of another; ours reaches the same by the live ratio, in expectation
    only, so there just the value is compared."""
    s = step(1)
    lp = s["lp"].clone().requires_grad_()
    total = core.agg_loss(core.kl_penalty(lp, s["ref"], kind), s["mask"], "token-mean")
    found = ours(recipe(kl=rl("kl", estimator=kind.rstrip("+"), compat=True)), s, "ref")
    grad = torch.autograd.grad(total, lp)[0] if kind != "k3+" else found[1]
    same(found, (total.detach(), grad))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_sampling(level: str) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    s = step(2)
    weights, _ = compute_rollout_correction_weights(s["old"] - s["sampler"], s["mask"], level, 1.3)
    lp = s["lp"].clone().requires_grad_()
    total, _ = core.get_policy_loss_fn("vanilla")(
        s["old"], lp, s["advantages"][:, None].expand(B, T), s["mask"], loss_agg_mode="token-mean",
        config=actor(**CLIP, clip_ratio_c=1e9), rollout_is_weights=weights
    )  # fmt: skip
    mismatch = {"kind": "tis", "level": "token" if level == "token" else "sum", "high": 1.3}
    chosen = recipe(rl=rl("ppo", mismatch=mismatch, **wide))
    same(ours(chosen, s, "old", "sampler"), (total.detach(), torch.autograd.grad(total, lp)[0]))


@pytest.mark.parametrize("count", ["selected", "after_rejection"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_rejected_ratios(level: str, count: str) -> None:
    """IcePop leaves the denominator as it was; a rejection mask, in verl, takes from it."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask as corrected

    low, high = (0.6, 1.5) if level == "token" else (0.3, 4.0)
    s = step(3)
    lp = s["lp"].clone().requires_grad_()
    if count == "selected":
        found, mask, _ = corrected(s["old"], s["sampler"], s["mask"], level, f"{low}_{high}")
    else:
        modes = {"rollout_rs": "token_k1" if level == "token" else "seq_sum_k1"}
        bounds = {"rollout_rs_threshold": f"{1 / high}_{1 / low}"}  # of the inverse ratio
        found, mask, _ = corrected(s["old"], s["sampler"], s["mask"], level, 1e9, **modes, **bounds)
    weights = found.batch["rollout_is_weights"]
    assert 0 < int((weights * mask == 0).sum() - (s["mask"] == 0).sum()) < int(s["mask"].sum())
    total, _ = core.get_policy_loss_fn("vanilla")(
        s["old"], lp, s["advantages"][:, None].expand(B, T), mask, loss_agg_mode="token-mean",
        config=actor(**CLIP, clip_ratio_c=1e9), rollout_is_weights=weights
    )  # fmt: skip
    mismatch = {"kind": "icepop", "level": "token" if level == "token" else "sum", "low": low, "high": high}
    chosen = recipe(rl=rl("ppo", {"name": "token_mean", "count": count}, mismatch=mismatch, **wide))
    same(ours(chosen, s, "old", "sampler"), (total.detach(), torch.autograd.grad(total, lp)[0]))


ADVANTAGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo": ("grpo", {}, {"estimator": "group_mean_std", "ddof": 1, "eps": 1e-6}),
    "dr_grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}, {"estimator": "group_mean"}),
    "rloo": ("rloo", {}, {"estimator": "rloo"}),
    "opo": ("opo", {}, {"estimator": "group_mean", "baseline": "length_weighted"}),
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages(name: str) -> None:
    theirs, options, spec = ADVANTAGES[name]
    index = np.array(["a", "b", "a", "b", "b", "a"], dtype=object)
    chosen = Recipe.load({"name": "test", "advantage": spec, "rl": rl(normalizer="sum")})
    for seed in range(4):
        s = step(seed)
        rewards = torch.zeros(B, T, dtype=F64)
        rewards[:, 0] = s["rewards"]
        expected, _ = core.get_adv_estimator_fn(theirs)(
            token_level_rewards=rewards, response_mask=s["mask"], index=index, **options
        )
        lp = s["lp"].clone().requires_grad_()
        group = torch.tensor([0, 1, 0, 1, 1, 0])
        total = loss.from_logprobs(chosen, lp, mask=s["mask"], rewards=s["rewards"], group=group).total
        assert torch.allclose(-torch.autograd.grad(total, lp)[0], expected, rtol=1e-5, atol=1e-6)  # its own are float32


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_a_dataset_exported_to_verl_has_there_the_gradient_that_it_has_here(name: str, tmp_path: Path) -> None:
    """On the policy that sampled, each token's slope is −A/Z: verl's from the exported file, ours from the shards."""
    import pyarrow.parquet as pq

    rows = whole_rollouts(tmp_path / "converted")
    assert len(rows) > 20
    write_dataset(str(tmp_path / "shards"), rows, metadata=make_metadata())
    shards = open_dataset(str(tmp_path / "shards"))
    export(shards, str(tmp_path / "verl"), to="verl")
    table = pq.read_table(tmp_path / "verl").to_pylist()
    chosen = Recipe.load({"name": "test", "advantage": ADVANTAGES[name][2], "rl": rl("ppo", "token_mean")})
    found: dict[tuple[int, int], float] = {}
    for batch in prepare(shards, chosen, tokens_per_batch=1 << 20):  # one batch, whose rows are numbered in order
        assert batch.advantages is not None
        slope = -batch.weights["rl"] * batch.advantages / batch.denominator["rl"]
        for row, at, value in zip(batch.row.tolist(), batch.index_in_row.tolist(), slope.tolist(), strict=True):
            found[row, at] = value

    def padded(column: str) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(one[column]).double() for one in table], True)

    theirs, options, _ = ADVANTAGES[name]
    mask, lp = padded("response_mask"), padded("rollout_log_probs").requires_grad_()
    advantages, _ = core.get_adv_estimator_fn(theirs)(
        token_level_rewards=padded("rm_scores"), response_mask=mask, index=[one["uid"] for one in table], **options
    )
    total, _ = core.get_policy_loss_fn("vanilla")(
        lp.detach(), lp, advantages, mask, loss_agg_mode="token-mean", config=actor(**CLIP)
    )
    (moved,) = torch.autograd.grad(total, lp)
    for row, one in enumerate(table):
        start = len(one["prompts"])
        for at, here in enumerate(moved[row].tolist()):
            assert found.get((row, start + at), 0.0) == pytest.approx(here, rel=1e-4, abs=1e-9)
    assert float(moved.abs().sum()) > 0.1


def whole_rollouts(folder: Path) -> list[Row]:
    """Bundled rollouts of one row each, with a reward and every log-prob: what verl's form can say."""
    convert(str(ROOT / "fixtures/rollouts/harbour.jsonl"), str(folder), render=RenderConfig(str(SMALL)))
    rows = list(open_dataset(str(folder)))
    forked = {row.scalars["trace_id"] for row in rows if row.scalars["fork_row"] is not None}
    return [
        row
        for row in rows
        if row.scalars["trace_id"] not in forked
        and row.scalars["reward"] is not None
        and row["sampled"].any()
        and not np.isnan(row["logprob"][row["sampled"]]).any()
    ]
