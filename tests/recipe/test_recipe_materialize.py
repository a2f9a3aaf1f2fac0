"""Materialised shards hold what lay_step lays, and the verbs that show recipes work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_rows import PROMPT, Run, make_row, reply, tool
from typer.testing import CliRunner

from tracemask.core.errors import RecipeError
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import compute
from tracemask.recipe.materialize import materialize
from tracemask.recipe.step import lay_step
from tracemask.store.commit import write_dataset
from tracemask.store.reader import Dataset, open_dataset
from tracemask.store.row import Row
from tracemask.store.schema import make_metadata

REWARDS = [1.0, 0.0, 0.5, 0.25, None]


def rollouts() -> list[Row]:
    """Two groups and five rollouts, one of them in two rows, one without a reward."""
    runs: list[list[Run]] = [
        [PROMPT, reply(3), tool(4), reply(2)],
        [PROMPT, reply(9), tool(2)],
        [PROMPT, reply(5)],
        [PROMPT, reply(2), tool(6), reply(2)],
        [PROMPT, reply(4), tool(1)],
    ]
    rows = []
    for index, (each, reward) in enumerate(zip(runs, REWARDS, strict=True)):
        facts = {"id": f"t{index}/0", "group_id": f"g{index // 2}", "reward": reward, "branch": 0, "truncated": False}
        row = make_row(index, each, **facts)
        row.columns["origin"] = np.zeros(len(row), np.uint8)
        rows.append(row)
    fork = make_row(5, [PROMPT, reply(3), tool(4), reply(7)], trace_id="t0", id="t0/1", group_id="g0", reward=1.0)
    fork.scalars |= {"branch": 1, "fork_row": 0, "fork_position": 10}
    fork.columns |= {"origin": np.zeros(len(fork), np.uint8), "sampled": fork["sampled"] & (np.arange(len(fork)) >= 10)}
    return [*rows, fork]


def written(folder: Path) -> Dataset:
    metadata = make_metadata(tokenizer_sha256="0" * 64, vocab_size=512)
    write_dataset(str(folder), rollouts(), metadata=metadata, rows_per_shard=2)
    return open_dataset(folder)


def assert_as_laid(found: Sequence[Row], recipe: Recipe, dataset: Dataset) -> None:
    advantages = compute(recipe, dict(dataset.scalars()))
    step = lay_step(recipe, [row for row in dataset if row.index in {one.index for one in found}], advantages)
    for row, laid in zip(found, step.rows, strict=True):
        for name in recipe.components:
            assert row[f"weight.{name}"].tolist() == laid.weights[name].tolist()
            assert row[f"denominator.{name}"].tolist() == laid.denominator[name].tolist()
        np.testing.assert_array_equal(row["advantage"], laid.advantage.astype(np.float32))


@pytest.mark.parametrize("name", ["grpo", "echo", "echo_paper", "dr_grpo", "dapo", "sft"])
def test_shards_hold_what_a_step_lays(name: str, tmp_path: Path) -> None:
    dataset, recipe = written(tmp_path / "in"), Recipe.load(name)
    done = materialize(dataset, recipe, str(tmp_path / "out"))
    again = open_dataset(tmp_path / "out")
    assert_as_laid(list(again), recipe, dataset)
    assert done.steps == 1
    assert Recipe.load(again.metadata["recipe"]) == recipe
    for before, after in zip(dataset, again, strict=True):
        assert before["token_ids"].tolist() == after["token_ids"].tolist()
        assert dict(before.scalars) == dict(after.scalars)
    weights = {
        component: sum(np.count_nonzero(row[f"weight.{component}"]) for row in again) for component in done.counts
    }
    assert weights == done.counts


def test_a_step_is_whole_groups(tmp_path: Path) -> None:
    dataset, recipe = written(tmp_path / "in"), Recipe.load({"extends": "echo", "rl": {"normalizer": "prompt_mean"}})
    done = materialize(dataset, recipe, str(tmp_path / "out"), groups_per_step=1)
    rows = list(open_dataset(tmp_path / "out"))
    assert done.steps == 3
    for step in ([0, 1, 5], [2, 3], [4]):
        assert_as_laid([rows[index] for index in step], recipe, dataset)
    assert [finding.code for finding in done.findings] == ["TM603"]


def test_a_batch_is_the_step_that_it_is_in(tmp_path: Path) -> None:
    dataset, recipe = written(tmp_path / "in"), Recipe.load("reinforce_pp")
    materialize(dataset, recipe, str(tmp_path / "out"), groups_per_step=1)
    rows = list(open_dataset(tmp_path / "out"))
    assert rows[0]["advantage"][0] == rows[5]["advantage"][0] == pytest.approx(1.0)
    assert [rows[index]["advantage"][0] for index in (1, 2, 3)] == pytest.approx([-1.0, 1.0, -1.0])
    assert not rows[4]["weight.rl"].any()


def test_a_second_run_writes_the_same_bytes(tmp_path: Path) -> None:
    dataset = written(tmp_path / "in")
    for out in ("a", "b"):
        materialize(dataset, "echo", str(tmp_path / out))
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_branches_that_share_tokens_take_their_mean(tmp_path: Path) -> None:
    rows = rollouts()
    rows[5].scalars["reward"] = 4.0
    write_dataset(str(tmp_path / "in"), rows, metadata=make_metadata(tokenizer_sha256="0" * 64, vocab_size=512))
    dataset = open_dataset(tmp_path / "in")
    recipe = Recipe.load(
        {
            "advantage": {"estimator": "reward", "shared": "mean_of_branches"},
            "group": {"rollout": "row"},
            "rl": {"term": "reinforce"},
        }
    )
    materialize(dataset, recipe, str(tmp_path / "out"))
    again = open_dataset(tmp_path / "out")
    assert_as_laid(list(again), recipe, dataset)
    assert again.row(0)["advantage"].tolist() == [2.5] * 10 + [1.0] * 2


def test_a_recipe_that_the_data_cannot_serve_writes_nothing(tmp_path: Path) -> None:
    dataset = written(tmp_path / "in")
    with pytest.raises(RecipeError, match="no per-token column 'advantage'"):
        materialize(dataset, "ppo", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def invoke(*arguments: str) -> tuple[int, str]:
    from tracemask_cli.main import app

    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_verbs_print_recipes_and_audits(tmp_path: Path) -> None:
    written(tmp_path / "in")
    code, text = invoke("recipe")
    assert code == 0
    assert "dr_grpo" in text
    code, text = invoke("recipe", "echo")
    assert code == 0
    assert text == Recipe.load("echo").explain()
    code, text = invoke("recipe", "echo", "--toml")
    assert code == 0
    (tmp_path / "mine.toml").write_text(text)
    assert Recipe.load(tmp_path / "mine.toml") == Recipe.load("echo")
    code, text = invoke("explain", str(tmp_path / "in"), "--recipe", "echo", "--json")
    found: dict[str, Any] = json.loads(text)
    assert code == 0
    assert found["components"]["ce"]["normalizer"] == "token_mean"
    code, text = invoke("explain", str(tmp_path / "in"), "--recipe", "echo")
    assert "Pushing hardest" in text
    code, text = invoke("materialize", str(tmp_path / "in"), "-r", "echo", "-o", str(tmp_path / "out"), "--json")
    assert code == 0
    assert json.loads(text)["rows"] == 6


def test_the_recipe_verb_translates_a_prime_rl_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[orchestrator.algo]\ntype = "echo"\n[orchestrator.algo.roles.user]\nalpha = 0.05\n')
    code, text = invoke("recipe", str(file), "--toml")
    assert code == 0
    (tmp_path / "ours.toml").write_text(text)
    assert Recipe.load(tmp_path / "ours.toml") == Recipe.load(file)
    assert 'term = "dppo"' in text
