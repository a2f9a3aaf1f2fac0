"""`tracemask materialize`: weights, denominators and advantages of a recipe, written into shards."""

from __future__ import annotations

from typing import Annotated

import typer

from tracemask_cli import options


def command(
    shards: options.Shards,
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="Preset or TOML file.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the new shards.")],
    groups_per_step: Annotated[
        int | None, typer.Option(min=1, help="Groups counted together; default: the whole dataset is one step.")
    ] = None,
    policy_version: Annotated[int | None, typer.Option(help="The version being trained, for staleness limits.")] = None,
    tokenizer: options.DropTokenizer = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what another run left in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout.")] = False,
) -> None:
    """Write weight.<component>, denominator.<component> and advantage into new shards, for another trainer."""
    from tracemask.recipe import Recipe
    from tracemask.recipe.materialize import materialize
    from tracemask_cli.dataset import open_with_tokenizer
    from tracemask_cli.output import console, print_json

    loaded = Recipe.load(recipe)
    data, tokens = open_with_tokenizer(shards, tokenizer=tokenizer)
    done = materialize(
        data,
        loaded,
        out,
        groups_per_step=groups_per_step,
        policy_version=policy_version,
        token_bytes=None if tokens is None else tokens.id_bytes,
        force=force,
    )
    if as_json:
        print_json(done.to_json())
        return
    for line in done.lines():
        console(stderr=False).print(line)
