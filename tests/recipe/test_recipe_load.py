"""Recipes load, name their faults, and go out to TOML, JSON Schema and words."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tracemask.core.errors import RecipeError, UsageError
from tracemask.recipe import Recipe
from tracemask.recipe.component import NormalizerName
from tracemask.recipe.estimators import OVER_ALL, PER_GROUP
from tracemask.recipe.load import from_text, preset_names, preset_text
from tracemask.recipe.model import PER_TOKEN, EstimatorName
from tracemask.recipe.normalize import NORMALIZERS
from tracemask.recipe.schema import recipe_schema
from tracemask.recipe.terms import TERMS

ROOT = Path(__file__).parents[2]
WANTED = (
    "reinforce rloo reinforce_pp grpo dapo dr_grpo gspo cispo sapo dppo echo echo_paper sft opd maxrl "
    "grpo_tis grpo_icepop ppo"
)


def fault(source: Any) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(source)
    return caught.value


def test_every_promised_preset_exists() -> None:
    assert set(WANTED.split()) <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_survives_toml_and_json(name: str) -> None:
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert recipe.summary
    assert recipe.source
    assert from_text(recipe.to_toml(), where="again") == recipe
    assert Recipe.load(json.loads(json.dumps(recipe.model_dump(mode="json")))) == recipe


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_and_its_dump_satisfy_the_published_schema(name: str) -> None:
    validator = Draft202012Validator(recipe_schema())
    validator.validate(tomllib.loads(preset_text(name)))
    validator.validate(tomllib.loads(Recipe.load(name).to_toml()))


def test_the_schema_refuses_what_the_models_refuse() -> None:
    validator = Draft202012Validator(recipe_schema())
    for wrong in (
        {"rl": {"term": "grpo", "options": {"eps_lo": 0.1}}},
        {"rl": {"term": "grpo", "coeff": 1}},
        {"advantage": {"estimator": "rlo"}, "rl": {"term": "grpo"}},
        {"rl": {"coef": 1}},
    ):
        assert not validator.is_valid(wrong)
        fault(wrong)


def test_the_published_schema_is_the_models_own() -> None:
    published = ROOT / "schemas" / "recipe.v1.schema.json"
    assert json.loads(published.read_text("utf-8")) == recipe_schema(), "run `make regen`"


def test_tables_and_schema_names_agree() -> None:
    from typing import get_args

    assert set(get_args(NormalizerName)) == set(NORMALIZERS)
    assert set(get_args(EstimatorName)) == {"none", "given", *PER_GROUP, *OVER_ALL, *PER_TOKEN}


@pytest.mark.parametrize(
    ("source", "where", "what"),
    [
        ({"rl": {"term": "grpo", "options": {"eps_lo": 0.1}}}, "rl.options.eps_lo", "known: eps_low"),
        ({"rl": {"term": "grpo", "coeff": 1}}, "rl.coeff", "did you mean 'coef'"),
        ({"advantage": {"estimater": "rloo"}, "rl": {"term": "ce"}}, "advantage.estimater", "did you mean 'estimator'"),
        ({"advantge": {"estimator": "rloo"}}, "advantge", "a component without a term"),
        ({"rl": {"term": "grp"}}, "rl.term", "did you mean 'grpo'"),
        (
            {"rl": {"term": "grpo", "options": {"eps_high": 0.6, "delta": 1.5}}},
            "rl.options",
            "delta 1.5 is not above 1",
        ),
        ({"rl": {"term": "grpo"}}, "recipe", "needs advantages"),
        ({"name": "x"}, "recipe", "at least one component"),
        ({"rl": {"term": "ce", "normalizer": "constant"}}, "rl.normalizer", "needs length"),
        ({"rl": {"term": "ce", "normalizer": {"name": "constant", "length": 0}}}, "rl.normalizer.length", "greater"),
        ({"rl": {"term": "ce", "normalizer": {"name": "sum", "empty": "leave_out"}}}, "rl.normalizer", "alone"),
        ({"rl": {"term": "ce", "drop": ["("]}}, "rl.drop", "regular expression"),
        ({"rl": {"term": "ce", "zero_advantage": "drop"}}, "rl", "needs a term with advantages"),
        ({"rl": {"term": "ce", "mismatch": "tis"}}, "rl", "mismatch"),
        ({"rl": {"term": "ce", "coef": float("nan")}}, "rl.coef", "finite"),
        ({"r l": {"term": "ce"}}, "recipe", "identifier"),
        (
            {"advantage": {"estimator": "rloo", "gamma": 0.9}, "rl": {"term": "grpo"}},
            "advantage",
            "does not read gamma",
        ),
    ],
)
def test_a_fault_names_its_toml_path(source: dict[str, Any], where: str, what: str) -> None:
    error = fault(source)
    assert error.code == "TM940"
    assert where in error.where
    assert what in str(error)


def test_every_fault_is_listed_at_once() -> None:
    error = fault({"rl": {"term": "grpo", "coeff": 1}, "advantage": {"estimater": "rloo"}})
    assert "coeff" in str(error)
    assert "estimater" in str(error)


def test_toml_that_is_none_says_which_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[rl\nterm = 1")
    assert "line 1" in str(fault(file))


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'dr_grpo'"):
        Recipe.load("dr_grpoo")
    with pytest.raises(UsageError, match="TM901"):
        Recipe.load("nowhere.toml")


def test_extends_changes_only_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "dapo"\n[rl.options]\neps_high = 0.4\n[kl]\nterm = "kl"\ncoef = 0.01\n')
    mine, base = Recipe.load(file), Recipe.load("dapo")
    assert mine.components["rl"].options.model_dump() == base.components["rl"].options.model_dump() | {"eps_high": 0.4}
    assert mine.advantage == base.advantage
    assert list(mine.components) == ["rl", "kl"]


def test_extends_with_another_term_or_estimator_starts_from_its_own_defaults() -> None:
    mine = Recipe.load({"extends": "dapo", "advantage": {"estimator": "rloo"}, "rl": {"term": "cispo"}})
    assert mine.components["rl"].options == TERMS["cispo"].options()
    assert mine.advantage.estimator == "rloo"


def test_extends_names_presets_alone_and_says_so() -> None:
    for base in ("mine.toml", "dapoo", 3):
        with pytest.raises(RecipeError, match=r"recipe: extends: TM940 .* is not the name of a preset\.") as caught:
            Recipe.load({"extends": base})
        assert "known: cispo, dapo" in caught.value.fix
        assert ("did you mean 'dapo'" in caught.value.fix) == (base == "dapoo")


def test_a_selection_given_replaces_the_one_extended_however_each_is_spelled() -> None:
    rules = [{"sampled": False, "roles": ["user"]}]
    selected = Recipe.load({"extends": "echo", "ce": {"select": rules}}).components["ce"]
    assert (len(selected.select), selected.roles) == (1, {})
    roles = {"user": {"alpha": 0.5}}
    spelled = Recipe.load({"extends": "echo_paper", "ce": {"roles": roles}}).components["ce"]
    assert (spelled.select, list(spelled.roles)) == ([], ["user"])
    assert sorted(Recipe.load({"extends": "echo", "ce": {"roles": roles}}).components["ce"].roles) == ["tool", "user"]


def test_k1_as_a_loss_is_refused_unless_named_compat() -> None:
    plain = {"kl": {"term": "kl", "options": {"estimator": "k1"}}}
    assert fault(plain).code == "TM951"
    for fine in ({"compat": True}, {"through_ratio": True}):
        Recipe.load({"kl": {"term": "kl", "options": {"estimator": "k1"} | fine}})


def test_a_clamped_kl_is_refused_unless_named_compat() -> None:
    clamped = {"kl": {"term": "kl", "options": {"estimator": "k3", "clamp": 10.0}}}
    assert fault(clamped).code == "TM951"
    Recipe.load({"kl": {"term": "kl", "options": {"estimator": "k3", "clamp": 10.0, "compat": True}}})


def test_counting_after_rejection_belongs_to_the_token_mean_of_a_step() -> None:
    Recipe.load({"ce": {"term": "ce", "normalizer": {"name": "token_mean", "count": "after_rejection"}}})
    for name, more in (("sequence_mean", {}), ("token_mean", {"scope": "sequence"})):
        normalizer = {"name": name, "count": "after_rejection", **more}
        assert "belongs to" in str(fault({"ce": {"term": "ce", "normalizer": normalizer}}))


def test_kl_names_what_it_is_against_as_a_need() -> None:
    against = {"kl": {"term": "kl", "options": {"against": "sampler", "through_ratio": True}}}
    assert Recipe.load(against).needs == {"sampler", "old"}
    assert Recipe.load("grpo_tis").needs == {"advantage", "old", "sampler"}


def test_a_users_own_term_keeps_its_options() -> None:
    recipe = Recipe.load({"mine": {"term": "my_losses:hinge", "options": {"margin": 2}}})
    assert recipe.components["mine"].options.model_dump() == {"margin": 2}
    assert Recipe.load(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize("kind", ["tis", "mis", "icepop"])
def test_a_mismatch_weight_has_its_published_bounds(kind: str) -> None:
    bounds = {"tis": ("token", None, 2.0), "mis": ("mean", 0.5, 2.0), "icepop": ("token", 0.5, 5.0)}
    recipe = Recipe.load({"advantage": {"estimator": "rloo"}, "rl": {"term": "grpo", "mismatch": kind}})
    found = recipe.components["rl"].mismatch
    assert found is not None
    assert (found.level, found.low, found.high) == bounds[kind]
    formulas = {"tis": "min(ρ̄, 2)", "mis": "ρ̄ inside [0.5, 2], 0 outside", "icepop": "ρ̄ inside [0.5, 5], 0 outside"}
    text = " ".join(recipe.explain().split())
    assert f"{kind}: times sg({formulas[kind]}), ρ̄ = e^x, x = o − μ: " in text
    assert ("mean over the rollout" in text) == (kind == "mis")


@pytest.mark.parametrize("name", preset_names())
def test_an_explanation_states_formula_mask_denominator_and_source(name: str) -> None:
    recipe = Recipe.load(name)
    text = recipe.explain()
    for component in recipe.components.values():
        assert TERMS[component.term].formula in " ".join(text.split())
        assert f"{component.normalizer.effective}: " in text
    assert text.count("  mask         w = ") == len(recipe.components)
    assert recipe.source in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 110


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Recipe.load("grpo").allow_messages = True  # type: ignore[misc]
