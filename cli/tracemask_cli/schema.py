"""tracemask schema: a published JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

SCHEMAS = {
    "trace": "tracemask.trace:schema",
    "recipe": "tracemask.recipe.schema:recipe_schema",
    "manifest": "tracemask.store.manifest:schema",
    "finding": "tracemask.check.schema:schema",
}


def command(
    name: Annotated[str, typer.Argument(help="trace, recipe, manifest or finding.")] = "trace",
) -> None:
    """Print a published JSON Schema (draft 2020-12): trace, recipe, manifest or finding."""
    from tracemask.core.registry import Table
    from tracemask_cli.output import print_json

    print_json(Table("schema", **SCHEMAS)[name]())
