"""Whose tokens are trained: rules, ownership, and everything that takes a token out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recipe_rows import PROMPT, make_row, reply, tool

from tracemask.core.errors import RecipeError
from tracemask.core.vocab import Author
from tracemask.recipe import Recipe
from tracemask.recipe.load import preset_names
from tracemask.recipe.select import observation_tokens, owned_tokens
from tracemask.recipe.weights import lay, lay_row
from tracemask.store.row import Row

AGENT = [
    ("harness", "system", "content", 2),
    PROMPT,
    ("renderer", "assistant", "header", 2),
    ("policy", "assistant", "reasoning", 3),
    ("policy", "assistant", "tool_call", 4),
    ("policy", "assistant", "stop", 1),
    ("renderer", "tool", "header", 2),
    tool(6),
    ("user", "user", "content", 2),
    ("verifier", "user", "content", 1),
    reply(5),
]
EMPTY: dict[str, Any] = {"advantage": {"estimator": "reward"}}


def agent(**scalars: Any) -> Row:
    columns = scalars.pop("columns", None)
    return make_row(0, AGENT, columns=columns, **scalars)


def ce(**component: Any) -> Recipe:
    return Recipe.load({"ce": {"term": "ce", **component}})


def rl(**component: Any) -> Recipe:
    return Recipe.load(EMPTY | {"rl": {"term": "reinforce", **component}})


def trained(recipe: Recipe, row: Row, component: str, advantage: float = 1.0) -> np.ndarray:
    return np.flatnonzero(lay(recipe, row, advantage)[component])


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in ("sft",)])
def test_tool_output_never_enters_the_policy_gradient(name: str) -> None:
    recipe, row = Recipe.load(name), agent()
    if recipe.advantage.estimator in ("per_token", "gae"):
        row.columns["advantage"] = row.columns["value"] = np.ones(len(row))
    weights = lay(recipe, row, 1.0)
    for component, stream in weights.items():
        if recipe.components[component].on_policy:
            assert set(row["author"][stream != 0].tolist()) == {int(Author.POLICY)}
            assert (stream != 0).sum() == 13


def test_echo_weighs_tool_bodies_and_never_their_headers() -> None:
    row = agent()
    weights = lay(Recipe.load("echo"), row, 1.0)["ce"]
    assert np.flatnonzero(weights).tolist() == list(range(17, 23))
    assert set(weights[17:23].tolist()) == {np.float32(0.1)}


def test_each_role_of_echo_has_its_own_weight_and_the_task_prompt_has_none() -> None:
    recipe = ce(roles={"tool": {"alpha": 0.25}, "user": {"alpha": 0.05}})
    weights = lay(recipe, agent(), 1.0)["ce"]
    assert np.flatnonzero(weights == np.float32(0.25)).tolist() == list(range(17, 23))
    assert np.flatnonzero(weights == np.float32(0.05)).tolist() == [23, 24, 25]
    assert not weights[:7].any()


def test_the_first_matching_rule_decides() -> None:
    rules = [
        {"parts": ["reasoning"], "weight": 0.5},
        {"parts": ["stop"], "weight": 0.0},
        {"sampled": True, "weight": -1},
    ]
    weights = lay(rl(select=rules), agent(), 1.0)["rl"]
    assert weights[7:15].tolist() == [0.5, 0.5, 0.5, -1, -1, -1, -1, 0]


def test_authors_and_roles_and_parts_must_all_match() -> None:
    recipe = ce(select=[{"authors": ["verifier", "harness"], "roles": ["user"], "parts": ["content"]}])
    assert trained(recipe, agent(), "ce").tolist() == [25]


def test_demonstrations_are_trained_by_cross_entropy_and_never_by_rl() -> None:
    row = make_row(0, [PROMPT, ("renderer", "assistant", "header", 2), ("model", "assistant", "content", 4)])
    both = Recipe.load(EMPTY | {"rl": {"term": "grpo"}, "ce": Recipe.load("sft").components["ce"].model_dump()})
    weights = lay(both, row, 1.0)
    assert np.flatnonzero(weights["ce"]).tolist() == [5, 6, 7, 8]
    assert not weights["rl"].any()


def test_sft_trains_the_stop_and_no_header() -> None:
    row = agent()
    parts = row["part"][trained(Recipe.load("sft"), row, "ce")]
    assert {int(part) for part in parts} == {1, 2, 3, 5}


def test_a_shared_prefix_is_trained_once() -> None:
    fork = agent(fork_row=0, fork_position=20)
    fork.columns["sampled"] = fork["sampled"].copy()
    fork.columns["sampled"][:20] = False
    assert trained(rl(), fork, "rl").tolist() == list(range(26, 31))
    assert trained(Recipe.load("echo"), fork, "ce").tolist() == [20, 21, 22]
    assert not owned_tokens(fork)[:20].any()
    assert observation_tokens(agent()).sum() == 6 + 2 + 1


def test_the_first_token_of_a_row_has_weight_zero_and_is_counted() -> None:
    row = make_row(0, [reply(4)])
    laid = lay_row(rl(), row, 1.0)
    assert laid.weights["rl"].tolist() == [0, 1, 1, 1]
    assert laid.dropped == {"rl.first_token": 1}


def test_a_missing_reward_takes_policy_tokens_out_and_leaves_observations() -> None:
    weights = lay(Recipe.load("echo"), agent(), float("nan"))
    assert not weights["rl"].any()
    assert weights["ce"].any()


def test_zero_advantage_leaves_only_where_the_recipe_says_so() -> None:
    assert trained(rl(), agent(), "rl", 0.0).size == 13
    assert trained(rl(zero_advantage="drop"), agent(), "rl", 0.0).size == 0


def test_text_only_rows_are_refused_by_rl_and_accepted_by_ce() -> None:
    row = agent(fidelity="messages")
    with pytest.raises(RecipeError, match="nobody sampled") as caught:
        lay(rl(), row, 1.0)
    assert "row 0" in caught.value.where and "the component's table" in caught.value.fix
    assert trained(Recipe.load("sft"), row, "ce").size == 13
    allowed = Recipe.load(EMPTY | {"allow_messages": True, "rl": {"term": "reinforce"}})
    assert trained(allowed, row, "rl").size == 13
    kept_out = rl(rows={"fidelity": ["exact", "completion"]})
    assert trained(kept_out, row, "rl").size == 0


def test_rows_are_chosen_by_scalars_and_by_fields_of_a_struct() -> None:
    row = agent(source={"format": "openai", "path": "a"}, truncated=False)
    assert trained(rl(rows={"source.format": ["openai"]}), row, "rl").size == 13
    assert trained(rl(rows={"source.format": ["verifiers"]}), row, "rl").size == 0
    assert trained(rl(rows={"source.such": ["x"]}), row, "rl").size == 0
    with pytest.raises(RecipeError, match="'no'"):
        trained(rl(rows={"no.such": ["x"]}), row, "rl")


def test_an_untrainable_trace_is_never_trained() -> None:
    for value in (False, np.False_):
        assert not any(stream.any() for stream in lay(Recipe.load("echo"), agent(trainable=value), 1.0).values())


def test_missing_sampler_logprobs_are_an_error_or_leave() -> None:
    row = agent()
    row.columns["logprob"] = row["logprob"].copy()
    row.columns["logprob"][8] = np.nan
    with pytest.raises(RecipeError, match="no sampler log-prob") as caught:
        lay(Recipe.load("dppo"), row, 1.0)
    assert caught.value.code == "TM603"
    assert "token 8" in caught.value.where
    laid = lay_row(Recipe.load({"extends": "dppo", "missing_logprob": "exclude"}), row, 1.0)
    assert laid.dropped == {"rl.missing_logprob": 1}
    assert laid.weights["rl"][8] == 0
    assert trained(rl(), row, "rl").size == 13


def test_a_missing_column_is_named() -> None:
    foreign = Row(4, {"token_ids": np.arange(5), "labels": np.array([-100, -100, 2, 3, 4])})
    assert trained(rl(), foreign, "rl").tolist() == [2, 3, 4]
    with pytest.raises(RecipeError, match="no column 'author'"):
        lay(ce(roles={"tool": {}}), foreign, 1.0)
    with pytest.raises(RecipeError, match="no column 'sampled'"):
        lay(rl(), Row(4, {"token_ids": np.arange(5)}), 1.0)


def test_lines_that_match_a_pattern_leave_whole_tokens() -> None:
    text = [b"ok\n", b"WARN", b"ING: old ", b"api\n", "résultat".encode(), b"\xff", b"done"]
    row = make_row(0, [PROMPT, reply(1), tool(7)])
    pieces = dict(enumerate(text, start=4))
    recipe = ce(roles={"tool": {}}, drop=["^WARNING.*$"])
    laid = lay_row(recipe, row, 1.0, token_bytes=lambda token: pieces.get(token, b"?"))
    assert np.flatnonzero(laid.weights["ce"]).tolist() == [4, 8, 9, 10]
    assert laid.dropped == {"ce.filtered": 3}
    with pytest.raises(RecipeError, match="no tokenizer was given"):
        lay(recipe, row, 1.0)


def test_a_pattern_never_reads_across_messages() -> None:
    row = make_row(0, [PROMPT, reply(1), tool(1), tool(1)])
    recipe = ce(roles={"tool": {}}, drop=["ab"])
    laid = lay_row(recipe, row, 1.0, token_bytes=lambda token: {4: b"a", 5: b"b"}.get(token, b"?"))
    assert np.flatnonzero(laid.weights["ce"]).tolist() == [4, 5]


def staleness(**spec: Any) -> Recipe:
    return Recipe.load(EMPTY | {"off_policy": spec, "rl": {"term": "grpo"}})


def test_tokens_older_than_the_limit_are_masked_or_refused() -> None:
    row = make_row(0, [PROMPT, reply(4)], columns={"policy_version": np.array([0, 0, 0, 5, 7, 8, 9])})
    masked = lay_row(staleness(max_staleness=2), row, 1.0, policy_version=9)
    assert masked.weights["rl"].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert masked.dropped == {"rl.stale": 1}
    with pytest.raises(RecipeError, match="4 versions old, the limit is 2"):
        lay(staleness(max_staleness=2, on_stale="error"), row, 1.0, policy_version=9)
    with pytest.raises(RecipeError, match="being trained is not known"):
        lay(staleness(max_staleness=2), row, 1.0)


def test_tokens_without_a_version_are_an_error_unless_the_recipe_says_otherwise() -> None:
    row = make_row(0, [PROMPT, reply(2)])
    with pytest.raises(RecipeError, match="no policy_version"):
        lay(staleness(max_staleness=2), row, 1.0, policy_version=3)
    named = make_row(0, [PROMPT, reply(2)], columns={"policy_version": np.array(["", "", "", "step-7", "step-7"])})
    with pytest.raises(RecipeError, match="no policy_version"):
        lay(staleness(max_staleness=2), named, 1.0, policy_version=3)
    assert not lay(staleness(max_staleness=2, missing_version="mask"), row, 1.0, policy_version=3)["rl"].any()
    assert lay(staleness(max_staleness=2, missing_version="keep"), row, 1.0, policy_version=3)["rl"].sum() == 2


def test_an_off_policy_mask_reads_stored_logprobs() -> None:
    old = np.array([np.nan, np.nan, np.nan, -0.5, -0.4, -3.0], np.float32)
    row = make_row(0, [PROMPT, reply(3)], columns={"old_logprob": old})
    token = staleness(ratio_mask={"level": "token", "low": 0.5, "high": 2.0})
    assert lay(token, row, 1.0)["rl"].tolist() == [0, 0, 0, 1, 1, 0]
    whole = staleness(ratio_mask={"level": "sequence_mean", "low": 0.9, "high": 1.1, "when": "negative_advantage"})
    assert lay(whole, row, 1.0)["rl"].sum() == 3
    assert lay(whole, row, -1.0)["rl"].sum() == 0
    with pytest.raises(RecipeError, match="old_logprob"):
        lay(token, make_row(0, [PROMPT, reply(3)]), 1.0)


def test_weights_are_float32_and_new_arrays() -> None:
    row = agent()
    first, second = (lay(Recipe.load("echo"), row, 1.0) for _ in range(2))
    assert all(stream.dtype == np.float32 and len(stream) == len(row) for stream in first.values())
    first["rl"][:] = 9
    assert second["rl"].max() == 1


@pytest.mark.parametrize("name", ["grpo_kl", "opd"])
def test_a_filtered_rollout_leaves_every_component_on_the_policy_s_tokens(name: str) -> None:
    recipe = Recipe.load({"extends": name, "filters": {"truncated": "mask"}, "missing_logprob": "keep"})
    masked = lay_row(recipe, agent(), float("nan"), reason="truncated")
    assert not any(stream.any() for stream in masked.weights.values())
    assert set(masked.dropped) == {f"{component}.truncated" for component in recipe.components}


def test_distillation_needs_no_reward() -> None:
    assert lay(Recipe.load("opd"), agent(), float("nan"))["ref_kl"].sum() == 13


def test_a_rollout_without_a_reward_also_leaves_the_kl_beside_the_policy_term() -> None:
    weights = lay(Recipe.load("grpo_kl"), agent(), float("nan"))
    assert not weights["rl"].any()
    assert not weights["kl"].any()
