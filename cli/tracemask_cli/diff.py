"""`tracemask diff`: two datasets of the same traces, token by token."""

from __future__ import annotations

from typing import Annotated

import typer

from tracemask_cli import options


def command(
    a: Annotated[str, typer.Argument(help="First dataset.")],
    b: Annotated[str, typer.Argument(help="Second dataset.")],
    tokenizer: options.Tokenizer = None,
    row: Annotated[str | None, typer.Option(help="Only this row (number or id in the first dataset).")] = None,
    most: Annotated[int, typer.Option(help="Rows to print in full.", min=0)] = 5,
    json: Annotated[bool, typer.Option("--json", help="All changes as JSON on stdout.")] = False,
) -> None:
    """Compare ids, authors and weights of two datasets, rows matched by id (by place where ids are missing or repeat).

    Exit 1 when they differ.
    """
    from tracemask.report.diff import compare, lines
    from tracemask_cli.dataset import open_with_tokenizer, row_index
    from tracemask_cli.output import console, neutral, print_json

    first, loaded = open_with_tokenizer(a, tokenizer=tokenizer)
    second, _ = open_with_tokenizer(b, tokenizer=None)
    left, right = _keys(first, second)
    wanted = list(left) if row is None else [list(left)[row_index(first, row)]]
    pairs = [(key, left[key], right[key]) for key in wanted if key in right]
    missing = {"only_in_a": [k for k in wanted if k not in right], "only_in_b": [k for k in right if k not in left]}
    if row is not None:
        missing["only_in_b"] = []
    out, found = console(stderr=False), []
    for key, i, j in pairs:
        changes = compare(first.row(i), second.row(j))
        if not changes:
            continue
        found.append({"row": key, "changes": changes})
        if not json and len(found) <= most:
            out.print(f"row {neutral(str(key))}: {len(changes)} changes", style="bold")
            for line in lines(first.row(i), second.row(j), changes, loaded):
                out.print(line, soft_wrap=True)
    differs = bool(found or missing["only_in_a"] or missing["only_in_b"])
    if json:
        print_json({"rows_compared": len(pairs), "rows_that_differ": found, **missing})
    else:
        extra = f", only in a: {len(missing['only_in_a'])}, only in b: {len(missing['only_in_b'])}"
        out.print(f"{len(pairs)} rows compared, {len(found)} differ{extra}")
    raise typer.Exit(1 if differs else 0)


def _keys(first, second):
    """Of both datasets, row id to index; by position unless ids name every row of both, each once."""
    ids = [dataset.scalars(["id"]).get("id", []) for dataset in (first, second)]
    by_id = all(column and None not in column and len(set(column)) == len(column) for column in ids)
    if not by_id:
        ids = [range(len(first)), range(len(second))]
    return [{key: i for i, key in enumerate(column)} for column in ids]
