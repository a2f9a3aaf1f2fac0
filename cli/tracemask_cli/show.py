"""`tracemask show`: one row as coloured tokens."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    dataset: Annotated[str, typer.Argument(help="Folder of shards, or another tool's dataset.")],
    row: Annotated[str, typer.Option(help="Row number, row id or trace id.")] = "0",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Folder or tokenizer.json; without it ids are shown.")
    ] = None,
    at: Annotated[str | None, typer.Option(help="ROW:TOKEN to show with its neighbourhood.")] = None,
    around: Annotated[int, typer.Option(help="Tokens shown on each side of --at.", min=0)] = 60,
    first_error: Annotated[bool, typer.Option("--first-error", help="Go to the first finding of severity E.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="One token a line.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Token ids below each line.")] = False,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="Log-probs below each line in the loss.")] = False,
    recipe: Annotated[
        str | None, typer.Option("--weights", help="Weights of this recipe instead of the stored ones.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not fold long runs that nobody trains on.")] = False,
    columns: Annotated[str | None, typer.Option(help="Column names of a foreign dataset: ids=…,mask=….")] = None,
    svg: Annotated[str | None, typer.Option(help="Write the dump as an SVG picture to this file.")] = None,
) -> None:
    """Print one row as coloured tokens: hue is the author, bold on a background is the loss, the margin says both."""
    from tracemask.core.errors import UsageError
    from tracemask.report.dump import View, dump
    from tracemask_cli.dataset import NUMBER, open_with_tokenizer, row_index, weigher
    from tracemask_cli.output import console

    data, loaded = open_with_tokenizer(dataset, tokenizer=tokenizer, columns=columns)
    token = None
    if at is not None:
        row, _, place = at.rpartition(":")
        if not NUMBER.fullmatch(place) or int(place) < 0:
            raise UsageError("TM900", where=f"--at {at}", what="expected ROW:TOKEN", fix="for example --at 12:82")
        token = int(place)
    findings = _findings(data, loaded) if first_error else []
    if first_error:
        errors = [f for f in findings if f.place.row is not None and f.severity is not None and f.severity.value == "E"]
        if not errors:
            console().print("no finding of severity E")
            return
        row, token = str(errors[0].place.row), errors[0].place.token
    index = row_index(data, row)
    shown = data.row(index)
    if token is not None and token >= len(shown):
        raise UsageError(
            "TM900", where=f"--at {index}:{token}", what=f"the row has {len(shown)} tokens", fix="count from 0"
        )
    out = console(stderr=False)
    if svg:
        from io import StringIO

        from rich.console import Console

        quiet = StringIO()
        out = Console(
            record=True, width=110, highlight=False, markup=False, emoji=False, force_terminal=True, file=quiet
        )
    view = View(
        width=out.width,
        full=full,
        ids=ids,
        logprobs=logprobs,
        tokens=tokens,
        at=token,
        around=around,
        findings=[f for f in findings if f.place.row == index],
    )
    weights = weigher(recipe, data, loaded)(shown)
    for line in dump(shown, loaded, weights=weights, view=view):
        out.print(line, soft_wrap=True)
    if loaded is None:
        console().print("ids only: pass --tokenizer to see the text")
    if svg:
        _save(out, svg, title=f"tracemask show --row {index}")


def _findings(data, loaded):
    from dataclasses import replace

    from tracemask.check.runner import check_dataset

    groups = check_dataset(data, tokenizer=loaded).groups
    return [replace(finding, severity=group.severity) for group in groups for finding in group.examples]


def _save(console, path, *, title):
    """rich's SVG without its web fonts: a picture that asks the network for nothing, the same bytes every time."""
    import re

    from tracemask_cli.output import write_text

    text = console.export_svg(title=title, unique_id="dump")
    write_text(path, re.sub(r"@font-face \{.*?\}", "", text, flags=re.S))
