"""The recipes that the documentation shows load, and its numbers are computed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from recipe_rows import lengths

from tracemask.recipe import Recipe
from tracemask.recipe.step import lay_step

HOWTO = (Path(__file__).parents[2] / "docs" / "howto" / "recipes.md").read_text("utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", HOWTO, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_recipe_in_the_how_to_loads(number: int) -> None:
    recipe = Recipe.load(tomllib.loads(BLOCKS[number]))
    assert recipe.components
    assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe


def test_the_how_to_shows_recipes_at_all() -> None:
    assert len(BLOCKS) == 5


def test_the_numbers_of_the_how_to_are_right() -> None:
    rows = lengths(100, 1000)
    sequence = lay_step(Recipe.load("grpo"), rows, [1.0, -1.0])
    token = lay_step(Recipe.load("dapo"), rows, [1.0, -1.0])
    assert [1 / laid.denominator["rl"][0] for laid in sequence.rows] == [0.005, 0.0005]
    assert {round(1 / laid.denominator["rl"][0], 5) for laid in token.rows} == {0.00091}
