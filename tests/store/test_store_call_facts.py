"""Reward and advantage of a call reach the row and the shard: one on its sampled tokens, one at its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracemask.core.errors import RenderError, StoreError
from tracemask.recipe import Recipe
from tracemask.recipe.step import lay_step
from tracemask.recipe.token_advantage import token_advantage
from tracemask.render.renderer import Renderer
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.export_forms import InLoss, prime_rl
from tracemask.store.reader import open_dataset
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.trace.model import Trace

SMALL = Path(__file__).resolve().parents[2] / "fixtures" / "tokenizers" / "small"
TOKENIZER = Tokenizer.load(SMALL)


def reply(text: str, **facts: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "token_ids": TOKENIZER.encode(text + "<|im_end|>")} | facts


def messages(*replies: dict[str, Any]) -> list[dict[str, Any]]:
    return [message for each in replies for message in ({"role": "user", "content": "go"}, each)]


def row_of(*replies: dict[str, Any], **scalars: Any) -> Row:
    trace = Trace.from_messages(messages(*replies), **scalars)
    (sample,) = Renderer(TOKENIZER).render(trace)
    return of_sample(sample, trace)


def calls(row: Row) -> list[np.ndarray]:
    """Positions of the sampled tokens of each call."""
    return [np.flatnonzero(row["sampled"] & (row["message"] == at)) for at in (1, 3)]


def test_a_call_s_advantage_stands_on_its_tokens_and_its_reward_at_the_last() -> None:
    row = row_of(reply("red sky", advantage=0.5, reward=1.0), reply("blue sea", advantage=-0.25, reward=3.0))
    first, second = calls(row)
    assert set(row["advantage"][first]) == {0.5} and set(row["advantage"][second]) == {-0.25}
    assert np.isnan(row["advantage"][~row["sampled"]]).all()
    assert np.flatnonzero(np.nan_to_num(row["call_reward"])).tolist() == [first[-1], second[-1]]
    assert np.isnan(row["call_reward"]).tolist() == (~row["sampled"]).tolist()
    assert np.nansum(row["call_reward"]) == 4.0
    assert row.scalars["reward"] is None and row.scalars["advantage"] is None


def test_a_call_that_says_nothing_makes_no_column() -> None:
    assert not {"advantage", "call_reward"} & set(row_of(reply("red"), reply("blue")).columns)


@pytest.mark.parametrize(("field", "column"), [("advantage", "advantage"), ("reward", "call_reward")])
def test_a_fact_given_for_the_call_and_for_its_tokens_is_refused(field: str, column: str) -> None:
    twice = reply("red")
    twice |= {field: 1.0, "columns": {column: [1.0] * len(twice["token_ids"])}}
    with pytest.raises(RenderError, match=column) as caught:
        row_of(twice)
    assert caught.value.code == "TM911"


def test_both_survive_a_shard_beside_the_scalars_of_the_rollout(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    record = {"messages": messages(reply("red", advantage=0.5, reward=1.0), reply("blue")), "reward": 7.0}
    log.write_text(json.dumps(record) + "\n" + json.dumps({"messages": messages(reply("red"), reply("sea"))}))
    convert(str(log), str(tmp_path / "out"), render=RenderConfig(str(SMALL)))
    with_facts, without = open_dataset(str(tmp_path / "out"))
    first, _ = calls(with_facts)
    assert np.flatnonzero(with_facts["advantage"] == 0.5).tolist() == first.tolist()
    assert np.flatnonzero(with_facts["call_reward"] == 1.0).tolist() == [first[-1]]
    assert with_facts.scalars["reward"] == 7.0
    assert without.get("advantage") is None and without.get("call_reward") is None


def test_per_token_advantages_are_the_calls_and_a_call_without_one_leaves_the_loss() -> None:
    row = row_of(reply("red sky", advantage=0.5), reply("blue sea"))
    first, _ = calls(row)
    recipe = Recipe.load({"advantage": {"estimator": "per_token"}, "rl": {"term": "ppo"}})
    step = lay_step(recipe, [row], [0.0])
    assert np.flatnonzero(step.rows[0].weights["rl"]).tolist() == first.tolist()
    assert set(step.rows[0].advantage[first]) == {0.5}
    assert not token_advantage(recipe, row, 0.0)[~row["sampled"]].any(), "what nobody sampled has no advantage"


@pytest.mark.parametrize("estimator", ["gae", "reward_to_go"])
def test_rewards_of_calls_are_paid_only_where_the_recipe_names_them(estimator: str) -> None:
    row = row_of(reply("red sky", reward=1.0), reply("blue sea", reward=2.0), reward=7.0)
    row.columns["value"] = np.zeros(len(row))
    first, second = calls(row)
    plain = {"advantage": {"estimator": estimator}, "rl": {"term": "ppo"}}
    assert set(token_advantage(Recipe.load(plain), row, 7.0)[row["sampled"]]) == {7.0}
    named = token_advantage(Recipe.load(plain | {"reward": {"column": "call_reward"}}), row, float("nan"))
    assert set(named[first]) == {3.0} and set(named[second]) == {2.0}


def test_a_call_without_a_reward_leaves_its_row_out_and_is_never_paid_zero() -> None:
    row = row_of(reply("red sky", reward=1.0), reply("blue sea"))
    recipe = {"advantage": {"estimator": "reward_to_go"}, "reward": {"column": "call_reward"}, "rl": {"term": "ppo"}}
    assert np.isnan(token_advantage(Recipe.load(recipe), row, float("nan"))).all()


def test_the_advantage_of_a_token_is_its_calls_or_the_rollout_s_where_no_call_has_one() -> None:
    def exported(*replies: dict[str, Any]) -> set[float]:
        for each in replies:
            each["logprobs"] = [-0.5] * len(each["token_ids"])
        row = row_of(*replies, advantage=2.0)
        found = prime_rl(row, InLoss(row["sampled"]))["advantages"]
        assert not found[~row["sampled"]].any()
        return set(found[row["sampled"]].tolist())

    assert exported(reply("red", advantage=0.5), reply("sea", advantage=0.5)) == {0.5}
    assert exported(reply("red", advantage=0.5), reply("sea", advantage=-1.0)) == {0.5, -1.0}
    assert exported(reply("red", advantage=float("nan")), reply("sea")) == {2.0}
    with pytest.raises(StoreError, match="without an advantage, others have one"):
        exported(reply("red", advantage=0.5), reply("sea"))
