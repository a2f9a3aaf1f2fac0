"""Data that other tools write: no scalar column, values of a wrong kind, forks that lead in a circle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from recipe_rows import PROMPT, lengths, make_row, reply

from tracemask.core.errors import RecipeError, StoreError
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import compute
from tracemask.recipe.laying import Laying
from tracemask.recipe.materialize import materialize
from tracemask.recipe.step import lay_step
from tracemask.recipe.token_advantage import branch_means
from tracemask.report.explain import explain
from tracemask.store.commit import write_dataset
from tracemask.store.reader import open_dataset
from tracemask.store.schema import make_metadata

REINFORCE = Recipe.load("reinforce")


def written(path, rows):
    for row in rows:
        row.columns["origin"] = np.zeros(len(row), np.uint8)
    metadata = make_metadata(tokenizer_sha256="0" * 64, vocab_size=1000)
    write_dataset(path, rows, metadata=metadata, rows_per_shard=2)
    return open_dataset(path)


def foreign(path, *records):
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_dataset(file)


def test_a_dataset_without_scalars_is_weighed(tmp_path):
    data = foreign(tmp_path, {"input_ids": [1, 2, 3], "mask": [0, 1, 1]}, {"input_ids": [1, 2], "mask": [0, 1]})
    assert not data.scalars()
    ce = Recipe.load({"ce": {"term": "ce"}})
    advantages = compute(ce, data.scalars(), rows=len(data))
    assert advantages.n_rollouts == 2
    assert [Laying(ce, data, advantages).laid(row).weights["ce"].tolist() for row in data] == [[0, 1, 1], [0, 1]]
    assert explain(ce, data, data.scalars()).audit.components["ce"].tokens.tolist() == [2, 1]
    assert "2 of 2 rollouts have no reward" in explain("grpo", data, data.scalars()).notes[0]
    with pytest.raises(RecipeError, match="no reward"):
        compute(Recipe.load("grpo"), data.scalars(), rows=len(data))
    with pytest.raises(StoreError, match="TM501"):
        materialize(data, "grpo", str(tmp_path / "out"))


@pytest.mark.parametrize("reward", [10**400, 1e39, -1e308, float("inf"), "good", [1], {"a": 1}])
def test_a_reward_that_no_advantage_column_holds_is_refused(reward):
    with pytest.raises(RecipeError) as caught:
        compute(REINFORCE, {"trace_id": ["a", "b"], "reward": [reward, 0.0]})
    assert caught.value.code == "TM603"
    assert caught.value.where == "a"
    assert len(caught.value.what) < 120


@pytest.mark.parametrize("name", ["trace_id", "group_id", "task_id"])
def test_a_list_is_no_name_of_a_rollout_or_group(name):
    with pytest.raises(RecipeError, match=name) as caught:
        compute(REINFORCE, {"reward": [1.0, 0.0], name: ["a", ["b"]]})
    assert caught.value.code == "TM603"
    assert caught.value.where == "row 1"


def test_a_length_that_is_no_number_is_refused():
    with pytest.raises(RecipeError, match="n_sampled"):
        compute(REINFORCE, {"reward": [1.0], "n_sampled": ["many"]})


@pytest.mark.parametrize(
    "more",
    [
        {"filters": {"max_tokens": 5}},
        {"advantage": {"estimator": "group_mean", "baseline": "length_weighted"}},
        {"reward": {"soft_overlong": {"max_length": 8, "buffer": 4}}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_length_that_some_rollouts_lack_is_refused_and_never_read_as_zero(more):
    recipe = Recipe.load({"advantage": {"estimator": "group_mean"}, "rl": {"term": "ppo"}} | more)
    scalars = {"trace_id": [*"abb"], "group_id": ["g"] * 3, "reward": [1.0, 0.0, None]}
    with pytest.raises(RecipeError, match="1 of 2 rollouts have no n_sampled") as caught:
        compute(recipe, scalars | {"n_sampled": [3, 4, None]})
    assert (caught.value.code, caught.value.where) == ("TM603", "b")
    untrained = scalars | {"n_sampled": [3, None, None], "trainable": [True, False, False]}
    assert compute(recipe, untrained).values[0] <= 0


def test_a_trace_whose_id_is_the_number_zero_is_called_by_it():
    rows = [make_row(0, [PROMPT, reply(3)], trace_id=0), make_row(1, [PROMPT, reply(4)], trace_id=None, id=0)]
    found = explain("sft", rows, {"trace_id": [0, None], "id": [None, 0]})
    assert found.audit.components["ce"].labels == ["0", "0"]


def test_a_limit_on_tokens_is_never_left_out_silently():
    recipe = Recipe.load(
        {"filters": {"max_tokens": 5}} | {"advantage": {"estimator": "reward"}} | {"rl": {"term": "ppo"}}
    )
    with pytest.raises(RecipeError, match="n_sampled"):
        compute(recipe, {"reward": [1.0, 2.0]})


def test_without_rewards_a_rollout_is_still_what_the_recipe_says():
    recipe = Recipe.load({"extends": "grpo", "group": {"rollout": "row"}})
    rows = [make_row(index, [PROMPT, reply(4 + index)], trace_id="t") for index in range(3)]
    found = explain(recipe, rows, {"trace_id": ["t"] * 3})
    assert found.audit.n_rollouts == 3
    assert found.audit.components["rl"].tokens.tolist() == [4, 5, 6]


def test_forks_that_lead_in_a_circle_end():
    forks = {"fork_position": 3, "trace_id": "t"}
    rows = [make_row(at, [PROMPT, reply(2)], branch=at, fork_row=1 - at, **forks) for at in range(2)]
    rows.append(make_row(2, [PROMPT, reply(2)], branch=2, fork_row=2, **forks))
    streams = [np.full(5, float(at)) for at in range(3)]
    branch_means(rows, streams)
    assert np.isfinite(streams).all()


@pytest.mark.parametrize(
    "recipe",
    [
        {"advantage": {"estimator": "reward_to_go", "gamma": 0.5}, "rl": {"term": "ppo", "zero_advantage": "drop"}},
        {"filters": {"truncated": "mask"}, "ce": {"term": "ce"}},
        {
            "advantage": {"estimator": "group_mean", "shared": "mean_of_branches"},
            "group": {"rollout": "row"},
            "rl": {"term": "ppo", "zero_advantage": "drop"},
        },
    ],
)
def test_a_view_of_a_row_has_the_weights_that_materialize_writes(tmp_path, recipe):
    loaded = Recipe.load(recipe)
    rows = [
        make_row(0, [PROMPT, reply(4)], id="a", trace_id="t", branch=0, reward=1.0, truncated=False),
        make_row(
            1,
            [PROMPT, reply(6)],
            id="b",
            trace_id="t",
            branch=1,
            reward=3.0,
            fork_row=0,
            fork_position=5,
            truncated=True,
        ),
        make_row(2, [PROMPT, reply(2)], id="c", trace_id="u", branch=0, reward=2.0, truncated=True),
    ]
    if loaded.group.rollout == "trace":
        rows[1].scalars["reward"] = 1.0
    data = written(tmp_path / "in", rows)
    materialize(data, loaded, str(tmp_path / "out"))
    laying = Laying(loaded, data, compute(loaded, data.scalars(), rows=len(data)))
    for row, stored in zip(data, open_dataset(tmp_path / "out"), strict=True):
        for name, weights in laying.laid(row).weights.items():
            np.testing.assert_array_equal(weights, stored[f"weight.{name}"])


def test_rows_of_a_trace_are_read_once_for_their_shared_tokens(tmp_path):
    recipe = Recipe.load(
        {
            "advantage": {"estimator": "group_mean", "shared": "mean_of_branches"},
            "group": {"rollout": "row"},
            "rl": {"term": "ppo"},
        }
    )
    rows = [
        make_row(at, [PROMPT, reply(2)], id=f"t/{at}", trace_id="t", branch=at, reward=float(at)) for at in range(20)
    ]
    data = written(tmp_path / "in", rows)
    reads = []
    original = data.row
    data.row = lambda i, **more: reads.append(i) or original(i, **more)
    laying = Laying(recipe, data, compute(recipe, data.scalars(), rows=len(data)))
    for row in data:
        laying.laid(row)
    assert len(reads) == 20


def test_lengths_given_as_text_count_like_numbers():
    recipe = Recipe.load({"extends": "dr_grpo", "advantage": {"baseline": "length_weighted"}})
    scalars = {"group_id": ["g", "g"], "reward": [1.0, 0.0]}
    numbers = compute(recipe, {**scalars, "n_sampled": [30, 10]}).values
    assert numbers.tolist() == [0.25, -0.75]
    assert compute(recipe, {**scalars, "n_sampled": ["30", "10"]}).values.tolist() == numbers.tolist()


def test_a_row_filter_on_a_scalar_that_does_not_exist_is_refused():
    recipe = Recipe.load({"ce": {"term": "ce", "rows": {"fidelty": ["exact"]}}})
    rows = lengths(3)
    with pytest.raises(RecipeError, match="fidelty"):
        explain(recipe, rows, {"trace_id": ["t0"]})


def test_a_row_filter_spells_booleans_as_toml_does():
    recipe = Recipe.load({"ce": {"term": "ce", "rows": {"truncated": ["false"]}}})
    rows = [make_row(0, [PROMPT, reply(2)], truncated=True), make_row(1, [PROMPT, reply(3)], truncated=False)]
    found = explain(recipe, rows, {"trace_id": ["a", "b"]})
    assert found.audit.components["ce"].tokens.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        *((recipe, name) for recipe in ("reinforce", "sft", "ppo_gae") for name in ("sampled", "author", "labels")),
        ("dppo", "logprob"),
        ("ppo_gae", "value"),
        ("ppo_gae", "reward"),
    ],
)
@pytest.mark.parametrize("length", [1, 4, 6])
def test_a_column_of_another_length_is_refused_never_stretched(recipe, name, length):
    row = make_row(0, [PROMPT, reply(2)], columns={"value": np.zeros(5)})
    row.columns[name] = np.ones(length, row.columns.get(name, np.zeros(0)).dtype)
    with pytest.raises(RecipeError) as caught:
        lay_step(Recipe.load(recipe), [row], [1.0])
    assert caught.value.code == "TM101"
    assert name in caught.value.what


@pytest.mark.parametrize("codes", [[0.0, 1.0, 1.0], [0, 1, 300], [0, 1, -1]])
def test_an_author_that_is_no_code_is_refused(codes):
    row = make_row(0, [reply(3)], columns={"author": np.array(codes)})
    with pytest.raises(RecipeError, match="author"):
        lay_step(Recipe.load("sft"), [row], [1.0])


def test_a_list_that_no_part_of_the_recipe_reads_may_have_any_length():
    row = make_row(0, [PROMPT, reply(2)], columns={"reward": np.ones(1), "logprob": np.ones(2, np.float32)})
    assert lay_step(Recipe.load("reinforce"), [row], [1.0]).counts == {"rl": 2}


def test_missing_names_are_rollouts_of_their_own_in_a_step_too():
    nan = float("nan")
    rows = [make_row(at, [PROMPT, reply(2)], trace_id=nan, group_id=nan, task_id=None) for at in range(2)]
    step = lay_step(Recipe.load("reinforce"), rows, [1.0, 0.0])
    assert [laid.rollout for laid in step.rows] == [0, 1]
    assert [laid.group for laid in step.rows] == [0, 1]


def test_more_groups_per_step_than_there_are_is_one_step(tmp_path):
    data = written(tmp_path / "in", [make_row(at, [PROMPT, reply(2)], id=f"{at}", reward=1.0) for at in range(2)])
    assert materialize(data, "reinforce", str(tmp_path / "out"), groups_per_step=10**30).steps == 1
