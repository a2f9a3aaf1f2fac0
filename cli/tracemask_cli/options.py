"""Options that several verbs share, each spelled once: a verb writes `tokenizer: options.Tokenizer = None`."""

from __future__ import annotations

from typing import Annotated

import typer

Datasets = Annotated[
    list[str],
    typer.Argument(
        help="Shards or another tool's dataset; several are read as one; - is standard input.", metavar="DATASET"
    ),
]
Inputs = Annotated[
    list[str], typer.Argument(help="Log files, folders, globs, URLs; - is standard input.", metavar="INPUT")
]
Shards = Annotated[list[str], typer.Argument(help="Folders of shards; several are read as one.", metavar="DATASET")]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", "-t", help="Folder, tokenizer.json or hub:OWNER/NAME.")]
DropTokenizer = Annotated[
    str | None, typer.Option("--tokenizer", "-t", help="Needed where the recipe drops lines by pattern.")
]
Template = Annotated[str | None, typer.Option(help="Chat template file (default: the tokenizer's own).")]
Columns = Annotated[str | None, typer.Option(help="Names in other tools' data: ids=tokens,mask=m,logprob=lp.")]
Weights = Annotated[
    str | None, typer.Option("--recipe", "-r", help="Weights of this recipe instead of the stored ones.")
]
Row = Annotated[str, typer.Option(help="Row number, row id or trace id.")]


def words(values: list[str] | None) -> tuple[str, ...]:
    """What was given once or more, or with commas, as single words."""
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())


def pairs(values: list[str] | tuple[str, ...] | None) -> dict[str, str]:
    """`key=text` options as a dict; without a text it is empty."""
    parts = (value.partition("=") for value in values or ())
    return {key.strip(): text.strip() for key, _, text in parts}
