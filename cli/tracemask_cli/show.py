"""`tracemask show`: one row as coloured tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from tracemask_cli import options


def command(
    datasets: options.Datasets,
    row: options.Row = "0",
    tokenizer: options.Tokenizer = None,
    at: Annotated[str | None, typer.Option(help="ROW:TOKEN to show with its neighbourhood.")] = None,
    around: Annotated[int, typer.Option(help="Tokens shown on each side of --at.", min=0)] = 60,
    first_error: Annotated[bool, typer.Option("--first-error", help="Go to the first finding of severity E.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="One token a line.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Token ids below each line.")] = False,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="Log-probs below each line in the loss.")] = False,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", "--weights", help="Weights of this recipe, not the stored ones.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not fold long runs that nobody trains on.")] = False,
    columns: options.Columns = None,
    svg: Annotated[str | None, typer.Option(help="Write the dump as an SVG picture to this file.")] = None,
) -> None:
    """Print one row as coloured tokens: hue is the author, bold on a background is the loss, the margin says both."""
    from tracemask.report.dump import View, dump
    from tracemask_cli.dataset import open_with_tokenizer, row_index, weigher
    from tracemask_cli.output import console

    data, loaded = open_with_tokenizer(datasets, tokenizer=tokenizer, columns=columns)
    token, findings = None, []
    if at is not None:
        row, token = _place(at)
    if first_error:
        from tracemask.check.runner import check_dataset
        from tracemask.core.finding import Severity

        findings = check_dataset(data, tokenizer=loaded).graded
        errors = [each for each in findings if each.place.row is not None and each.severity is Severity.ERROR]
        if not errors:
            console().print("no finding of severity E")
            return
        row, token = str(errors[0].place.row), errors[0].place.token
    index = row_index(data, row)
    shown = data.row(index)
    _must_hold(shown, index, token)
    out = _recorder() if svg else console(stderr=False)
    view = View(
        width=out.width, full=full, ids=ids, logprobs=logprobs, tokens=tokens, at=token, around=around,
        findings=[each for each in findings if each.place.row == index],
    )  # fmt: skip
    for line in dump(shown, loaded, weights=weigher(recipe, data, loaded)(shown), view=view):
        out.print(line, soft_wrap=True)
    if loaded is None:
        console().print("ids only: pass --tokenizer to see the text")
    if svg:
        _save(out, svg, title=f"tracemask show --row {index}")


def _place(at: str) -> tuple[str, int]:
    """ROW:TOKEN. Raises UsageError TM900."""
    from tracemask.core.errors import UsageError
    from tracemask_cli.dataset import NUMBER

    row, _, place = at.rpartition(":")
    if not row or not NUMBER.fullmatch(place) or int(place) < 0:
        raise UsageError("TM900", where=f"--at {at}", what="expected ROW:TOKEN", fix="for example --at 12:82")
    return row, int(place)


def _must_hold(row, index, token):
    """Raises UsageError TM900 where the row has no such token."""
    from tracemask.core.errors import UsageError

    if token is not None and token >= len(row):
        where = f"--at {index}:{token}"
        raise UsageError("TM900", where=where, what=f"the row has {len(row)} tokens", fix="count from 0")


def _recorder():
    """A console that keeps what is printed and shows nothing."""
    from io import StringIO

    from rich.console import Console

    return Console(
        record=True, width=110, highlight=False, markup=False, emoji=False, force_terminal=True, file=StringIO()
    )


def _save(console, path, *, title):
    """rich's SVG without its web fonts: a picture that asks the network for nothing, the same bytes every time."""
    import re

    from tracemask_cli.output import write_text

    text = console.export_svg(title=title, unique_id="dump")
    write_text(path, re.sub(r"@font-face \{.*?\}", "", text, flags=re.S))
