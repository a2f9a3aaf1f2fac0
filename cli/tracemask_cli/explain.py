"""`tracemask explain`: which rollouts push hardest under a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from tracemask_cli import options


def command(
    datasets: options.Datasets,
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="Preset or TOML file.")] = "grpo",
    limit: Annotated[int, typer.Option(min=1, help="Rollouts to list; where there are more, the hardest pushes.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="All numbers as JSON on stdout.")] = False,
    tokenizer: options.DropTokenizer = None,
    columns: options.Columns = None,
) -> None:
    """Say which rollouts push hardest: weight of a token and of a rollout under every normalizer, and length bias."""
    from tracemask.recipe import Recipe
    from tracemask.report.explain import explain
    from tracemask_cli.dataset import open_with_tokenizer
    from tracemask_cli.output import console, neutral, print_json

    loaded = Recipe.load(recipe)
    data, tokens = open_with_tokenizer(datasets, tokenizer=tokenizer, columns=columns)
    bytes_of = None if tokens is None else tokens.id_bytes
    found = explain(loaded, data, dict(data.scalars()), token_bytes=bytes_of)
    if as_json:
        print_json(found.to_json())
        return
    out = console(stderr=False)
    for line in found.lines(limit=limit):
        out.print(neutral(line))
