"""Scoring: log-probs of stored tokens, row by row, whatever shares a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_models import VOCAB, rollouts, row_of, tiny, write

from tracemask.core.errors import TracemaskError
from tracemask.store.reader import open_dataset
from tracemask.train.score import score
from tracemask.train.trainer import dry_run, train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny("llama", norms="own", dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("score") / "shards", rollouts(groups=2))


@pytest.mark.parametrize("which", ["sampled", "all"])
def test_scores_are_the_model_s_log_probs_of_each_row_alone(data: str, model: Path, tmp_path: Path, which: str) -> None:
    from transformers import AutoModelForCausalLM

    found = score(data, model=str(model), out=str(tmp_path / "out"), which=which, tokens_per_batch=60)
    alone: Any = AutoModelForCausalLM.from_pretrained(model).eval()
    before, after = open_dataset(data), open_dataset(str(tmp_path / "out"))
    assert found.rows == len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert one["token_ids"].tolist() == other["token_ids"].tolist()
        ids = torch.from_numpy(one["token_ids"].astype(np.int64))
        with torch.no_grad():
            lp = alone(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy()
        scored = other["score_logprob"]
        expected = np.ones(len(one), bool) if which == "all" else one["sampled"].copy()
        expected[0] = False
        assert np.array_equal(np.isfinite(scored), expected)
        assert np.abs(scored[1:] - lp)[expected[1:]].max() < 2e-5


def test_a_scored_reference_serves_a_recipe_that_needs_one(data: str, model: Path, tmp_path: Path) -> None:
    score(data, model=str(model), out=str(tmp_path / "ref"), as_="ref")
    options = {"data": [str(tmp_path / "ref")], "model": str(model), "recipe": "grpo_kl", "steps": 1, "export": False}
    result = train({**options, "out": str(tmp_path / "run")})
    assert result.metrics["ref/k3"] == pytest.approx(0.0, abs=1e-6)


def test_a_scored_old_policy_is_the_ratio_s_denominator(data: str, model: Path, tmp_path: Path) -> None:
    score(data, model=str(model), out=str(tmp_path / "old"), as_="old")
    options = {"data": [str(tmp_path / "old")], "model": str(model), "recipe": "grpo", "steps": 1, "export": False}
    result = train({**options, "out": str(tmp_path / "run")})
    assert result.metrics["rl/ratio/max"] == pytest.approx(1.0, abs=1e-4)


def test_a_model_of_another_vocabulary_is_refused(data: str, tmp_path: Path) -> None:
    tiny("llama", dtype=torch.float32, vocab_size=VOCAB - 1).save_pretrained(tmp_path / "small")
    with pytest.raises(TracemaskError, match="TM506"):
        score(data, model=str(tmp_path / "small"), out=str(tmp_path / "out"))
    with pytest.raises(TracemaskError, match="TM901"):
        score(data, model=str(tmp_path / "missing"), out=str(tmp_path / "out"))
    options = {"data": [data], "model": str(tmp_path / "small"), "recipe": "grpo", "steps": 1}
    for run in (dry_run, train):
        with pytest.raises(TracemaskError, match="TM506"):
            run({**options, "out": str(tmp_path / "run")})


def test_a_row_without_tokens_has_no_scores(model: Path, tmp_path: Path) -> None:
    rows, nothing = rollouts(groups=1), np.empty(0, np.uint8)
    for group in ("g0", "alone"):
        facts = {"trace_id": f"empty {group}", "group_id": group, "reward": 0.0, "branch": 0}
        rows.append(row_of(len(rows), nothing, nothing, nothing.astype(bool), np.random.default_rng(0), facts))
    found = score(write(tmp_path / "shards", rows), model=str(model), out=str(tmp_path / "out"), which="all")
    assert found.rows == len(rows)
    assert [len(row["score_logprob"]) for row in open_dataset(str(tmp_path / "out"))] == [len(row) for row in rows]
