"""Runs end to end on synthetic shards: gradients, resume, options, refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from train_models import rollouts, write
from train_runs import config, foreign, lines, weights

from tracemask.core.errors import RecipeError, TracemaskError, UsageError
from tracemask.train.batches import prepare
from tracemask.train.build import build
from tracemask.train.config import TrainConfig
from tracemask.train.distributed import World
from tracemask.train.feed import loader_of, steps_of
from tracemask.train.trainer import StepReport, dry_run, train
from tracemask.train.update import accumulate, padded


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("data") / "shards", rollouts())


def by_hand(model: Any, data: str, rows: list[int]) -> tuple[float, list[Tensor]]:
    """DAPO on these rows in plain torch: group mean and std, clipped ratio, mean over all sampled tokens."""
    from tracemask.store.reader import open_dataset

    model.set_attn_implementation("sdpa")
    found = [open_dataset(data).row(row) for row in rows]
    rewards: dict[str, dict[str, float]] = {}
    for row in found:
        rewards.setdefault(row.scalars["group_id"], {})[row.scalars["trace_id"]] = row.scalars["reward"]
    count = sum(int(row["sampled"][1:].sum()) for row in found)
    total = torch.zeros((), dtype=torch.float64)
    for row in found:
        ids = torch.from_numpy(row["token_ids"].astype(np.int64))
        group = np.asarray(list(rewards[row.scalars["group_id"]].values()))
        spread = group.std(ddof=1)
        advantage = 0.0 if spread == 0 else (row.scalars["reward"] - group.mean()) / (spread + 1e-6)
        logits = model(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        lp = logits.gather(1, ids[1:, None])[:, 0]
        keep = torch.from_numpy(row["sampled"][1:].copy())
        old = torch.where(keep, torch.from_numpy(row["logprob"][1:].astype(np.float64)), 0.0)
        ratio = torch.where(keep, lp - old, 0.0).exp()
        term = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        total = total + torch.where(keep, term, 0.0).sum() / count
    return float(total.detach()), list(torch.autograd.grad(total, list(model.parameters())))


def test_the_gradient_of_a_step_equals_plain_torch_in_float64(data: str, tmp_path: Path) -> None:
    settings = config(data, tmp_path, recipe="dapo", dtype="float64")
    loader = loader_of(settings, World())
    policies = build(settings, loader, World())
    pairs = accumulate(policies.module, padded(loader, loader.step(0)), World())
    got = [parameter.grad.clone() for parameter in policies.model.parameters()]
    rows = [row for group in loader.rows_of(0) for row in group]
    value, expected = by_hand(policies.model, data, rows)
    assert abs(pairs["loss/rl"][0] - value) < 1e-12
    scale = max(float(one.abs().max()) for one in expected)
    # the model's own RMSNorm computes in float32: its floor, not ours
    assert max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)) / scale < 1e-6


@pytest.mark.parametrize("changes", [{"packing": "tree"}, {"tokens_per_batch": 70}, {"gradient_checkpointing": True}])
def test_packing_and_micro_batches_leave_the_gradient_alone(data: str, tmp_path: Path, changes: dict[str, Any]) -> None:
    found = []
    for options in ({"packing": "rows", "tokens_per_batch": 4000}, changes):
        settings = config(data, tmp_path, dtype="float64", groups_per_step=4, **options)
        loader = loader_of(settings, World())
        policies = build(settings, loader, World())
        accumulate(policies.module, padded(loader, loader.step(0)), World())
        found.append([parameter.grad for parameter in policies.model.parameters()])
    scale = max(float(one.abs().max()) for one in found[0])
    assert max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) / scale < 1e-6


def test_transformers_loads_the_exported_model(data: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    result = train(config(data, tmp_path, steps=1, export=True))
    assert result.exported is not None
    model = AutoModelForCausalLM.from_pretrained(result.exported)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in weights(tmp_path)
    assert model.config._attn_implementation in ("sdpa", "eager")
    train(config(data, tmp_path / "next", steps=1, init_tiny=False, model=result.exported))


def test_several_updates_share_the_old_log_probs_of_the_batch_start(data: str, tmp_path: Path) -> None:
    result = train(config(data, tmp_path, steps=1, updates_per_batch=3, lr=1e-2))
    assert result.metrics["old_at_start"] == 1.0
    assert result.metrics["rl/ratio"] != 1.0  # the third pass compares with the first
    once = train(config(data, tmp_path / "once", steps=1, old="start"))
    assert once.metrics["rl/ratio/max"] == pytest.approx(1.0, abs=1e-6)


def test_log_probs_that_the_shards_lack_are_read_at_the_start(tmp_path: Path) -> None:
    rows = rollouts(groups=2)
    for row in rows:
        row.columns["logprob"] = np.full(len(row), np.nan, np.float32)
    result = train(config(write(tmp_path / "shards", rows), tmp_path / "out", steps=1))
    assert result.metrics["old_at_start"] == 1.0
    assert result.metrics["rl/ratio/max"] == pytest.approx(1.0, abs=1e-6)


def test_the_reference_is_the_model_as_it_was_at_the_start(data: str, tmp_path: Path) -> None:
    seen: list[float] = []
    train(
        config(data, tmp_path, recipe="grpo_kl", reference="initial", lr=1e-2),
        observer=lambda report: seen.append(report.metrics["ref/k3"]),
    )
    assert seen[0] == pytest.approx(0.0, abs=1e-9)
    assert seen[-1] > 1e-4


def test_a_recipe_with_a_reference_is_refused_without_one(data: str, tmp_path: Path) -> None:
    with pytest.raises(TracemaskError, match="TM603.*reference"):
        train(config(data, tmp_path, recipe="grpo_kl"))


def test_a_step_with_nothing_selected_has_loss_zero_and_moves_nothing(tmp_path: Path) -> None:
    rows = rollouts(groups=2)
    for row in rows:
        row.scalars["reward"] = 1.0
    data = write(tmp_path / "shards", rows)
    recipe = {
        "name": "strict",
        "advantage": {"estimator": "group_mean"},
        "components": {"rl": {"term": "reinforce", "zero_advantage": "drop"}},
    }
    result = train(config(data, tmp_path / "out", recipe=recipe, steps=1, export=True, weight_decay=0.1))
    assert result.metrics["selected/rl"] == 0
    assert result.metrics["grad_norm"] == 0.0
    assert [one.code for one in result.findings] == ["TM601"]
    before = train(config(data, tmp_path / "before", recipe=recipe, steps=1, lr=0.0, export=True))
    assert before.steps == 1
    assert all(torch.equal(one, weights(tmp_path / "before")[name]) for name, one in weights(tmp_path / "out").items())


def test_old_tokens_are_masked_by_the_staleness_limit(tmp_path: Path) -> None:
    rows = rollouts(groups=2, fork=False)
    for at, row in enumerate(rows):
        row.columns["policy_version"] = np.full(len(row), 3 if at % 2 else 7, np.int32)
    data = write(tmp_path / "shards", rows)
    whole = train(config(data, tmp_path / "all", steps=1))
    part = train(config(data, tmp_path / "part", steps=1, policy_version=8, max_staleness=2))
    assert 0 < part.metrics["selected/rl"] < whole.metrics["selected/rl"]


@pytest.mark.parametrize("overlong", ["truncate", "skip"])
def test_long_rollouts_are_cut_or_left_out_and_counted(data: str, tmp_path: Path, overlong: str) -> None:
    with pytest.raises(TracemaskError, match="TM602"):
        train(config(data, tmp_path / "error", tokens_per_batch=30, packing="rows"))
    result = train(config(data, tmp_path / overlong, tokens_per_batch=30, packing="rows", overlong=overlong, steps=2))
    assert "TM602" in [one.code for one in result.findings]


def test_prepared_batches_add_up_to_the_step(data: str, tmp_path: Path) -> None:
    settings = config(data, tmp_path, groups_per_step=4, shuffle=False)
    loader = loader_of(settings, World())
    policies = build(settings, loader, World())
    expected = accumulate(policies.module, padded(loader, loader.step(0)), World())["loss/rl"][0]
    batches = list(prepare(data, "grpo", tokens_per_batch=90))
    assert len(batches) > 1
    for packed in ("rows", "tree"):
        total = 0.0
        for batch in prepare(data, "grpo", tokens_per_batch=150, packing=packed):
            from tracemask.train.attention import Plan
            from tracemask.train.step import Work
            from tracemask.train.tree import Layout

            layout = Layout(
                *(getattr(batch, name).numpy() for name in ("input_ids", "positions", "parent", "exit", "cu_seqlens")),
                (),
            )
            from tracemask.train.attention import plan_of

            plan: Plan = plan_of(layout)
            total += float(policies.module(Work(batch, plan))[0].detach())
        assert total == pytest.approx(expected, abs=1e-6)


def test_the_plan_counts_what_the_run_will_do(data: str, tmp_path: Path) -> None:
    settings = config(data, tmp_path, steps=None, epochs=2.0)
    plan = dry_run(settings)
    assert (plan.rows, plan.rollouts, plan.groups) == (20, 16, 4)
    assert (plan.steps, plan.steps_per_epoch) == (4, 2)
    assert plan.slots < plan.tokens
    assert plan.first_step["rl"]["selected"] > 0
    assert not (tmp_path / "metrics.jsonl").exists()
    assert all(isinstance(text, str) for _, text in plan.lines())


def test_the_plan_s_micro_batches_are_those_of_the_run(data: str, tmp_path: Path) -> None:
    settings = config(data, tmp_path, steps=2)
    plan, _ = dry_run(settings), train(settings)
    assert plan.micro_batches == sum(line["micro_batches"] for line in lines(tmp_path))
    assert plan.slots == sum(line["slots"] for line in lines(tmp_path))


def test_groups_that_teach_nothing_are_said_by_the_dry_run_and_by_the_run(tmp_path: Path) -> None:
    rows = Path(foreign(tmp_path / "rows.jsonl")).read_text().replace('"uid"', '"nothing"')
    (tmp_path / "rows.jsonl").write_text(rows)
    settings = config(str(tmp_path / "rows.jsonl"), tmp_path / "run", steps=2)
    plan, result = dry_run(settings), train(settings)
    said = "TM605 4 rollouts have neither group_id nor task_id: each is a group of one with advantage 0"
    assert plan.findings == [said] and ("finding", said) in plan.lines()
    assert [f"{each.code} {each.message}" for each in result.findings] == [said]


@pytest.mark.parametrize("changes", [{"model": "{}/gone", "init_tiny": False}, {"reference": "{}/gone"}])
def test_a_dry_run_refuses_a_model_that_is_not_there(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in changes.items()}
    settings = config(foreign(tmp_path / "rows.jsonl"), tmp_path / "run", **changes)
    for run in (dry_run, train):
        with pytest.raises(TracemaskError, match="TM901 the model folder does not exist"):
            run(settings)


KL = {"name": "kl", "components": {"kl": {"term": "kl", "select": [{"sampled": True}]}}}


@pytest.mark.parametrize(
    ("last", "changes", "code"),
    [
        ({"loss_mask": None}, {}, "TM603"),
        ({"loss_mask": [0, 1]}, {}, "TM101"),
        ({"loss_mask": [0, 1]}, {"groups_per_step": 2}, "TM101"),
        ({"input_ids": [0.5]}, {}, "TM501"),
        ({"logprobs": None}, {"recipe": "dppo"}, "TM603"),
        ({"logprobs": None}, {"old": "sampler"}, "TM603"),
        ({}, {"old": "shard"}, "TM603"),
        ({}, {"recipe": KL}, "TM603"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(
    tmp_path: Path, last: dict[str, Any], changes: dict[str, Any], code: str
) -> None:
    data = foreign(tmp_path / "rows.jsonl", **last)
    settings = config(data, tmp_path / "run", **{"steps": 2, "groups_per_step": 1, "shuffle": False, **changes})
    said = []
    for run in (dry_run, train):
        with pytest.raises(TracemaskError, match=code) as caught:
            run(settings)
        said.append(str(caught.value))
    assert said[0] == said[1]
    good = {"recipe": "grpo", "old": "auto"}
    assert dry_run(config(foreign(tmp_path / "good.jsonl"), tmp_path, **{**changes, **good})).rows == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "x"}, "either model \\(a folder\\) or init_tiny"),
        ({"columns": {"ids": "x"}, "follow": True, "init_tiny": False, "model": "x"}, "columns are for"),
        ({"epochs": 1.0}, "not both"),
        ({"max_staleness": 1}, "policy_version"),
        ({"updates_per_batch": 2, "old": "sampler"}, "old log-probs"),
        ({"packing": "sideways"}, "packing"),
        ({"learning_rate": 1.0}, "learning_rate"),
        ({"lr": float("inf")}, "lr"),
        ({"betas": (0.9, 1.0)}, "betas"),
    ],
)
def test_options_that_contradict_each_other_are_named(
    data: str, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=f"TM900.*{words}"):
        config(data, tmp_path, **changes)


def test_a_configuration_file_and_flags_on_top(data: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'data = ["{data}"]\ninit_tiny = true\nsteps = 3\nlr = 0.5\n[lora]\nrank = 4\n')
    loaded = TrainConfig.load(file, lr=0.25, steps=None)
    assert (loaded.lr, loaded.steps, loaded.lora.rank if loaded.lora else None) == (0.25, 3, 4)
    with pytest.raises(UsageError, match="TM901"):
        TrainConfig.load(tmp_path / "missing.toml")


def test_rollouts_without_rewards_are_a_coded_error(tmp_path: Path) -> None:
    rows = rollouts(groups=1)
    for row in rows:
        row.scalars["reward"] = None
    with pytest.raises(RecipeError, match="TM603"):
        train(config(write(tmp_path / "shards", rows), tmp_path / "out"))


def test_more_steps_than_one_epoch_see_every_group_again_in_another_order(data: str, tmp_path: Path) -> None:
    loader = loader_of(config(data, tmp_path, groups_per_step=1), World())
    epochs = [[loader.rows_of(epoch * 4 + k)[0][0] for k in range(4)] for epoch in range(3)]
    assert all(sorted(one) == sorted(epochs[0]) for one in epochs)
    assert len({tuple(one) for one in epochs}) > 1


@pytest.mark.parametrize(("epochs", "steps"), [(0.07, 7), (0.071, 8), (1e-9, 1), (2.0, 200)])
def test_a_share_of_an_epoch_is_counted_without_float_residue(tmp_path: Path, epochs: float, steps: int) -> None:
    """0.07 · 100 is 7.000000000000001 in floats."""
    settings = config("unread", tmp_path, steps=None, epochs=epochs)
    assert steps_of(settings, SimpleNamespace(steps_per_epoch=100)) == steps


def test_the_advantages_shown_are_those_trained_on(data: str, tmp_path: Path) -> None:
    """Whitened over the step: their deviation is 1 there, over the dataset it is not."""
    seen: list[StepReport] = []
    whiten = {"estimator": "batch", "ddof": 0, "eps": 0.0}
    train(config(data, tmp_path, recipe={"extends": "reinforce_pp", "advantage": whiten}), observer=_observe(seen))
    assert [one.metrics["advantage_std"] for one in seen] == pytest.approx([1.0] * len(seen))


@pytest.mark.filterwarnings("ignore")  # peft calls what transformers deprecates
def test_lora_trains_adapters_alone_and_its_reference_is_the_base(data: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    options: dict[str, Any] = {"lora": {"rank": 2}, "recipe": "grpo_kl", "reference": "initial", "lr": 1e-2}
    seen: list[float] = []
    settings = config(data, tmp_path, save_every=2, export=True, **options)
    result = train(settings, observer=lambda report: seen.append(report.metrics["ref/k3"]))
    assert seen[0] == pytest.approx(0.0, abs=1e-9)
    assert seen[-1] > 1e-6
    assert result.exported is not None
    names = os.listdir(result.exported)
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    again = train(config(data, tmp_path, save_every=2, **{**options, "steps": 5}))
    assert again.metrics["ref/k3"] > 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("targets", "code"), [(["q_proj", "lm_head"], "TM960"), (["nothing_like_it"], "TM900")])
def test_adapters_that_would_be_left_out_are_refused(data: str, tmp_path: Path, targets: list[str], code: str) -> None:
    """The fused head reads the base weight: adapters on it would be trained by nobody."""
    pytest.importorskip("peft")
    with pytest.raises(TracemaskError, match=f"{code}.*lora.targets|lora.targets.*{code}"):
        train(config(data, tmp_path, lora={"rank": 2, "targets": targets}))


def test_faults_of_a_configuration_are_named_without_pydantic_s_own_words() -> None:
    with pytest.raises(UsageError, match=r"TM900 give either model \(a folder\) or init_tiny"):
        TrainConfig.of({"data": ["x"]})
    with pytest.raises(UsageError, match=r"TM900 stepz: no such option, did you mean 'steps'"):
        TrainConfig.of({"data": ["x"], "init_tiny": True, "stepz": 3})


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_the_same_numbers(data: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(config(data, tmp_path, steps=2, tensorboard=True))
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_sampler_and_a_trainer_meet_in_a_folder(data: str, tmp_path: Path) -> None:
    """Each dataset is one step, whole; a second command goes on with what has come since."""
    start = train(config(data, tmp_path / "start", steps=1, lr=0.0, export=True)).exported
    folder = tmp_path / "shards"
    options: dict[str, Any] = {"init_tiny": False, "model": start, "follow": True, "export_every": 1, "export": True}
    for number in (1, 2):
        write(folder / f"{number:04d}", rollouts(groups=1, seed=number))
    (folder / "0003").mkdir()  # still being written: no manifest
    seen: list[StepReport] = []
    train(config(str(folder), tmp_path / "run", **{**options, "steps": 2}), observer=_observe(seen))
    assert [report.metrics["rollouts"] for report in seen] == [4.0, 4.0]
    assert json.loads((tmp_path / "run" / "model" / "step.json").read_text()) == {"step": 2}
    with pytest.raises(TracemaskError, match="TM904"):
        train(config(str(folder), tmp_path / "run", **{**options, "steps": 3, "follow_timeout": 0.2}))
    write(folder / "0003", rollouts(groups=1, seed=3))
    train(config(str(folder), tmp_path / "run", **{**options, "steps": 3}), observer=_observe(seen))
    assert [report.step for report in seen] == [1, 2, 3]
    write(folder / "0000", rollouts(groups=1, seed=9))  # sorts before what was trained on
    with pytest.raises(TracemaskError, match="TM961"):
        train(config(str(folder), tmp_path / "run", **{**options, "steps": 4}))


def test_counting_after_rejection_divides_by_the_tokens_that_are_left(data: str, tmp_path: Path) -> None:
    """However the step is cut into micro-batches: the count is the step's."""
    rl = {"term": "dppo", "options": {"low": 0.001, "high": 0.001}}
    recipe = {"name": "late", "advantage": {"estimator": "group_mean"}}
    late = {"name": "token_mean", "count": "after_rejection"}
    values = []
    for tokens in (60, 4000):
        for normalizer in ("sum", late):
            components = {"rl": {**rl, "normalizer": normalizer}}
            out = tmp_path / f"{tokens}-{len(values)}"
            settings = config(data, out, recipe={**recipe, "components": components}, tokens_per_batch=tokens, steps=1)
            result = train(settings)
            values.append((result.metrics["loss/rl"], result.metrics))
    for (total, metrics), (mean, _) in (values[:2], values[2:]):
        left = metrics["selected/rl"] * (1 - metrics["rl/masked"])
        assert 0 < left < metrics["selected/rl"]
        assert mean == pytest.approx(total / round(left), rel=1e-5)


def test_another_tool_s_ids_and_labels_train_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "foreign.jsonl"
    with file.open("w") as out:
        for _ in range(6):
            ids = rng.integers(0, 40, 12).tolist()
            out.write(json.dumps({"input_ids": ids, "labels": [-100] * 5 + ids[5:]}) + "\n")
    plain = {"name": "plain", "components": {"ce": {"term": "ce", "normalizer": "token_mean"}}}
    result = train(config(str(file), tmp_path / "run", recipe=plain, steps=1, groups_per_step=6))
    assert result.metrics["selected/ce"] == 6 * 7
    assert result.metrics["loss/ce"] == pytest.approx(np.log(40), rel=0.05)
    with pytest.raises(RecipeError, match="TM603"):  # the sft preset selects by author, which labels do not say
        train(config(str(file), tmp_path / "sft", recipe="sft", steps=1))


def _observe(into: list[StepReport]) -> Callable[[StepReport], None]:
    return into.append


def test_each_component_is_reported_apart(data: str, tmp_path: Path) -> None:
    seen: list[StepReport] = []
    train(config(data, tmp_path, recipe="echo", steps=1), observer=_observe(seen))
    assert {"loss/rl", "loss/ce", "selected/rl", "selected/ce", "reward", "advantage_std"} <= set(seen[0].metrics)
