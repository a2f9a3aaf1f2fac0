"""`tracemask recipe`: list recipes, or explain one."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    name: Annotated[str | None, typer.Argument(help="Preset or TOML file (ours or prime-rl's); none: list.")] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the recipe as TOML, to start your own from.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of recipes.")] = False,
) -> None:
    """List recipes, or explain one: formula, mask, denominator, defaults, source."""
    from tracemask.recipe import Recipe
    from tracemask_cli.output import console, listing, neutral

    out = console(stderr=False)
    if schema:
        from tracemask.recipe.schema import schema_text

        out.print(schema_text(), end="")
        return
    if name is None:
        from tracemask.recipe.load import preset_names

        listing([(f"{preset:<14}", Recipe.load(preset).summary) for preset in preset_names()])
        return
    recipe = Recipe.load(name)
    out.print(neutral(recipe.to_toml() if toml else recipe.explain()), end="")
