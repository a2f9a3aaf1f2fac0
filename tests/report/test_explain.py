"""`explain`: the length bias of every normalizer, in numbers and in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tracemask.core.vocab import Author, Part, Role
from tracemask.recipe import Recipe
from tracemask.recipe.load import preset_names
from tracemask.recipe.normalize import NORMALIZERS
from tracemask.recipe.step import lay_step
from tracemask.report.explain import Explanation, explain
from tracemask.store.row import Row


def rollout(index: int, policy: int, *, tool: int = 0, **scalars: Any) -> Row:
    """Three prompt tokens, `tool` tokens of tool output inside the policy's tokens."""
    runs = [(Author.TASKSET, Role.USER, Part.CONTENT, 3), (Author.POLICY, Role.ASSISTANT, Part.CONTENT, policy - 1)]
    runs += [(Author.ENVIRONMENT, Role.TOOL, Part.TOOL_OUTPUT, tool), (Author.POLICY, Role.ASSISTANT, Part.STOP, 1)]
    columns = {
        name: np.concatenate([np.full(run[3], int(run[at]), np.uint8) for run in runs])
        for at, name in enumerate(("author", "role", "part"))
    }
    sampled = columns["author"] == int(Author.POLICY)
    columns |= {"token_ids": np.arange(len(sampled), dtype=np.int32), "sampled": sampled}
    return Row(index, columns, {"trace_id": f"t{index}", "group_id": "g", "fidelity": "exact", **scalars})


def explained(recipe: str | Recipe, lengths: list[int], rewards: list[float | None], **more: Any) -> Explanation:
    rows = [rollout(index, n, **more) for index, n in enumerate(lengths)]
    scalars = {name: [row.scalars[name] for row in rows] for name in ("trace_id", "group_id")}
    return explain(recipe, rows, scalars | {"reward": rewards})


def test_the_hundred_against_a_thousand_tokens_example() -> None:
    found = explained("grpo", [100, 1000], [1.0, 0.0])
    rl = found.audit.components["rl"]
    assert rl.per_token["sequence_mean"].tolist() == [0.005, 0.0005]
    assert rl.per_token["token_mean"].tolist() == [1 / 1100, 1 / 1100]
    assert rl.per_rollout("sequence_mean").tolist() == pytest.approx([0.5, 0.5])
    assert rl.per_rollout("token_mean").tolist() == pytest.approx([1 / 11, 10 / 11])
    text = "\n".join(found.lines())
    assert "0.005 " in text
    assert "0.0005 " in text
    assert text.count("0.00091 ") == 4  # token_mean, and prompt_mean of one group
    assert "weighs 10 times one of the longest" in text
    assert "Correlation of length with advantage: -1.00" in text
    assert "punished less the longer they are" in text


def test_a_token_mean_counts_rollouts_by_their_length() -> None:
    text = "\n".join(explained("dapo", [100, 1000], [1.0, 0.0]).lines())
    assert "longest rollout counts 10 times the shortest" in text
    assert "Pushing hardest: t1 (1000 tokens, A = -0.71, 91%)" in text
    assert "9% raises" in text
    assert "91% lowers" in text


@pytest.mark.parametrize("normalizer", list(NORMALIZERS))
def test_the_audit_and_the_step_agree(normalizer: str) -> None:
    spec: dict[str, Any] = {"name": normalizer} | ({"length": 64} if normalizer == "constant" else {})
    recipe = Recipe.load({"advantage": {"estimator": "reward"}, "rl": {"term": "reinforce", "normalizer": spec}})
    lengths = [3, 9, 1, 30]
    found = explained(recipe, lengths, [1.0, 0.5, 0.0, 2.0])
    rows = [rollout(index, n) for index, n in enumerate(lengths)]
    step = lay_step(recipe, rows, [1.0, 0.5, 0.0, 2.0])
    audited = found.audit.components["rl"].per_token[normalizer]
    for laid, each in zip(step.rows, audited, strict=True):
        kept = laid.weights["rl"] != 0
        np.testing.assert_allclose(laid.weights["rl"][kept] / laid.denominator["rl"][kept], each, rtol=1e-12)


def test_equal_lengths_have_no_bias_to_report() -> None:
    text = "\n".join(explained("grpo", [50, 50], [1.0, 0.0]).lines())
    assert "equally long" in text
    assert "times" not in text


def test_uniform_rewards_move_nothing() -> None:
    assert "moves nothing" in "\n".join(explained("grpo", [10, 20], [1.0, 1.0]).lines())
    text = "\n".join(explained("dapo", [10, 20], [1.0, 1.0]).lines())
    assert "rl: no token is in the loss" in text
    assert "taken out: 30 zero advantage" in text


def test_without_rewards_the_weights_are_shown_and_the_assumption_is_said() -> None:
    found = explained("grpo", [100, 1000], [None, None])
    text = "\n".join(found.lines())
    assert "which rollouts are better is unknown; weights are shown for an advantage of 1" in found.lines()[1]
    assert "There is no reward: nothing can be said" in text and "+1.00" not in text
    assert "Pushing hardest" not in text and "Correlation" not in text and "raises rollouts" not in text
    (rl,) = found.to_json()["components"].values()
    assert {rollout["advantage"] for rollout in rl["rollouts"]} == {None} and not found.to_json()["rewarded"]
    assert found.audit.components["rl"].per_token["sequence_mean"].tolist() == [0.005, 0.0005]


def test_components_are_explained_apart() -> None:
    found = explained("echo", [100, 1000], [1.0, 0.0], tool=40)
    ce = found.audit.components["ce"]
    assert ce.tokens.tolist() == [40, 40]
    np.testing.assert_allclose(ce.per_token["token_mean"], 0.1 / 80, rtol=1e-6)
    assert found.audit.components["rl"].tokens.tolist() == [100, 1000]
    assert any(line.startswith("ce: 80 tokens in 2 rollouts") for line in found.lines())


def test_text_only_rows_without_logprobs_are_explained_too() -> None:
    found = explained("dppo", [10, 20], [1.0, 0.0], fidelity="messages")
    assert found.audit.components["rl"].tokens.tolist() == [10, 20]


def test_rows_that_training_would_refuse_are_counted() -> None:
    found = explained("grpo", [4, 6], [1.0, 0.0], fidelity="messages")
    assert found.audit.refused == 2 and any("2 rows of re-encoded text" in line for line in found.lines())
    allowed = Recipe.load("grpo").model_copy(update={"allow_messages": True})
    for recipe, fidelity in (("grpo", "exact"), ("sft", "messages"), (allowed, "messages")):
        assert explained(recipe, [4, 6], [1.0, 0.0], fidelity=fidelity).audit.refused == 0


def test_foreign_rows_with_labels_are_explained() -> None:
    rows = [
        Row(index, {"token_ids": np.arange(n + 2), "labels": np.where(np.arange(n + 2) < 2, -100, 7)}, {})
        for index, n in enumerate((100, 1000))
    ]
    found = explain("grpo", rows, {"reward": [1.0, 0.0], "task_id": ["a", "a"]})
    assert found.audit.components["rl"].per_token["sequence_mean"].tolist() == [0.005, 0.0005]
    assert found.audit.components["rl"].labels == ["row 0", "row 1"]


def test_advantages_per_token_are_shown_by_their_mean() -> None:
    rows = [rollout(0, 2), rollout(1, 4)]
    for row, values in zip(rows, ([1.0, 0.0], [-1.0, -1.0, -3.0, -1.0]), strict=True):
        row.columns["advantage"] = np.concatenate([np.full(3, 9.0), values])
    found = explain("ppo", rows, {"trace_id": ["t0", "t1"], "group_id": ["g", "g"]})
    assert found.audit.components["rl"].advantage.tolist() == [0.5, -1.5]
    assert "A is the mean over the rollout's trained tokens" in found.lines()[1]


def test_many_rollouts_are_cut_to_the_hardest_pushes() -> None:
    lengths = list(range(10, 50))
    lines = explained("dapo", lengths, [float(n % 2) for n in lengths]).lines(limit=3)
    assert "    … 37 more rollouts" in lines
    table = [line for line in lines if line.startswith("    t")]
    assert len(table) == 6
    assert table[0].split()[1] == "49"
    assert max(map(len, lines)) <= 120


def test_the_json_has_every_rollout_and_no_nan() -> None:
    found = explained("echo", [10, 20, 30], [1.0, None, 0.0])
    text = json.dumps(found.to_json(), allow_nan=False)
    again = json.loads(text)
    assert [one["tokens"] for one in again["components"]["rl"]["rollouts"]] == [10, 0, 30]
    assert again["components"]["rl"]["rollouts"][1]["advantage"] is None
    assert again["findings"][0]["code"] == "TM603"
    assert set(again["components"]["rl"]["token_ratio"]) == set(NORMALIZERS)


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in ("ppo", "ppo_gae")])
def test_every_preset_explains_a_dataset(name: str) -> None:
    assert len(explained(name, [10, 20], [1.0, 0.0], tool=5).lines()) > 5
