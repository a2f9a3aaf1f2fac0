"""`tracemask export`: a dataset in the form another trainer reads. Knows options and a few lines of output."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tracemask_cli import options


def command(
    datasets: options.Datasets,
    to: Annotated[str, typer.Option("--to", help="parquet, hf, trl, verl, prime-rl or jsonl.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder or fsspec URL to write.")],
    component: Annotated[
        str | None, typer.Option(help="Take the loss mask from weight.COMPONENT of a materialised dataset.")
    ] = None,
    columns: options.Columns = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON on stdout.")] = False,
) -> None:
    """Write a dataset for another trainer: the same ids, and what is trained as a mask or labels."""
    from tracemask.store.export import export
    from tracemask_cli.dataset import opened
    from tracemask_cli.output import console, neutral, print_json

    done = export(opened(datasets, columns=columns), out, to=to, component=component, force=force)
    if as_json:
        print_json(asdict(done))
        return
    people = console(stderr=False)
    people.print(neutral(f"{out}: {', '.join(done.files)}"))
    loss = f", {done.trained:,} in the loss ({done.mask})" if done.mask else ""
    people.print(f"{done.rows:,} rows, {done.tokens:,} tokens{loss}")
    if done.lost:
        people.print(f"not in this form: {', '.join(done.lost)}")
