"""prime-rl's tables load as they are, and what cannot be carried over says so."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tracemask.core.errors import RecipeError
from tracemask.recipe import Recipe
from tracemask.recipe.component import Component
from tracemask.recipe.terms import DppoOptions

GRPO = """
max_steps = 100
[orchestrator]
batch_size = 64
group_size = 8
[orchestrator.algo]
type = "grpo"
[orchestrator.algo.length_penalty]
type = "linear"
num_turns_weight = 0.0
[trainer.loss]
type = "default"
dppo_mask_low = 0.1
dppo_mask_high = 0.3
adv_tau = 0.5
kl_tau = 0.01
"""
ECHO = """
[orchestrator.algo]
type = "echo"
[orchestrator.algo.roles.tool]
alpha = 0.25
[orchestrator.algo.roles.user]
alpha = 0.05
"""
SFT = """
[orchestrator.algo]
type = "sft"
[orchestrator.algo.sampling.source]
name = "teacher"
base_url = ["http://127.0.0.1:8001/v1"]
"""
OPD = """
[orchestrator.algo]
type = "opd"
[orchestrator.algo.teacher]
name = "teacher"
base_url = "http://localhost:8001/v1"
"""


def load(text: str) -> Recipe:
    return Recipe.load(tomllib.loads(text))


def test_grpo_with_its_length_penalty_and_loss_table() -> None:
    recipe = load(GRPO)
    rl = recipe.components["rl"]
    assert recipe.name == "prime_rl_grpo"
    assert recipe.advantage.estimator == "group_mean"
    assert recipe.advantage.multiply == 0.5
    assert recipe.group.size == 8
    assert recipe.reward.length_penalty is not None
    assert recipe.reward.length_penalty.num_output_tokens_weight == 0.25
    assert rl.options == DppoOptions(low=0.1, high=0.3, kappa=0.01)
    assert (rl.term, rl.normalizer.name, rl.zero_advantage) == ("dppo", "token_mean", "drop")


def test_echo_is_our_echo_with_its_own_roles() -> None:
    recipe = load(ECHO)
    assert {role: weight.alpha for role, weight in recipe.components["ce"].roles.items()} == {
        "tool": 0.25,
        "user": 0.05,
    }
    plain = load('[orchestrator.algo]\ntype = "echo"\n')
    ours = Recipe.load("echo")
    assert plain.advantage == ours.advantage
    assert plain.components["rl"] == ours.components["rl"]
    assert plain.components["ce"].rules == ours.components["ce"].rules


def test_max_rl_sft_and_opd() -> None:
    assert load('[orchestrator.algo]\ntype = "max_rl"').advantage.estimator == "maxrl"
    assert load(SFT).components == Recipe.load("sft").components
    assert load(OPD).components == Recipe.load("opd").components
    assert load('[orchestrator.algo]\ntype = "rae"\ndecay = 0.9').advantage.decay == 0.9


def test_a_table_alone_is_enough_and_grpo_is_the_default() -> None:
    assert Recipe.load({"type": "grpo"}) == Recipe.load({"orchestrator": {"algo": {"type": "grpo"}}})
    assert Recipe.load({"orchestrator": {"batch_size": 8}}).advantage.estimator == "group_mean"


def test_zero_advantages_are_kept_where_prime_rl_keeps_them() -> None:
    text = '[orchestrator.algo]\ntype = "grpo"\n[orchestrator.train]\nfilter_zero_advantages = false\n'
    assert load(text).components["rl"].zero_advantage == "keep"


def test_prompt_aggregation_becomes_prompt_mean_with_a_note() -> None:
    recipe = load('[orchestrator.algo]\ntype = "grpo"\nloss_aggregation = "prompt"\nlength_weighted_baseline = true')
    assert recipe.components["rl"].normalizer.name == "prompt_mean"
    assert recipe.advantage.baseline == "length_weighted"
    assert "scheduled" in recipe.notes[0]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('[orchestrator.algo]\ntype = "grpoo"', "orchestrator.algo.type", "not known"),
        ('[orchestrator.algo]\ntype = "grpo"\nroles = {}', "orchestrator.algo.roles", "does not read"),
        (
            '[orchestrator.algo]\ntype = "echo"\nfilter = { import_path = "a.b" }',
            "orchestrator.algo.filter",
            "functions",
        ),
        (
            '[orchestrator.algo]\ntype = "echo"\nroles = { tool = { alpha = 0 } }',
            "ce.roles.tool.alpha",
            "greater than 0",
        ),
        ('[orchestrator.algo]\ntype = "grpo"\n[trainer.loss]\ntype = "custom"', "trainer.loss.type", "your own code"),
        ('[orchestrator.algo]\ntype = "grpo"\n[trainer.loss]\nclip = 1', "trainer.loss.clip", "unknown field"),
    ],
)
def test_what_cannot_be_carried_over_names_its_path(text: str, where: str, what: str) -> None:
    with pytest.raises(RecipeError, match=what) as caught:
        load(text)
    assert caught.value.code == "TM940"
    assert where in caught.value.where


def test_no_field_of_ours_is_mistaken_for_prime_rl_s() -> None:
    ours: dict[str, Any] = {"ce": {"term": "ce"}}
    assert isinstance(Recipe.load(ours).components["ce"], Component)
