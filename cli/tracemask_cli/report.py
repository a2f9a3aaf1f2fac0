"""`tracemask report`: one offline HTML page that audits a dataset."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracemask_cli import options


def command(
    datasets: options.Datasets,
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    tokenizer: options.Tokenizer = None,
    rows: Annotated[int, typer.Option(help="Rows to show in full; all are counted.", min=0)] = 50,
    recipe: options.Weights = None,
    check: Annotated[bool, typer.Option(help="Run the lint rules and link their findings.")] = True,
    columns: options.Columns = None,
    title: Annotated[str | None, typer.Option(help="Title; default the datasets' names.")] = None,
) -> None:
    """Write a self-contained HTML page: tokens by author, weights under each normalizer, findings. Works offline."""
    from pathlib import Path

    from tracemask.report.html import page
    from tracemask.report.page import Page
    from tracemask.report.scales import scales
    from tracemask_cli.dataset import open_with_tokenizer, weigher
    from tracemask_cli.output import console, neutral, progress, write_text

    named = title or ", ".join(Path(dataset).resolve().name for dataset in datasets)
    data, loaded = open_with_tokenizer(datasets, tokenizer=tokenizer, columns=columns)
    weigh = weigher(recipe, data, loaded)
    told = _findings(data, loaded) if check else {}
    view = Page(
        title=named, tokenizer=loaded, weigh=weigh, scales=scales(data, weigh),
        checked=check, most_rows=rows, **told,
    )  # fmt: skip
    with progress("report", total=len(data), unit="rows") as advance:

        def counted():
            for row in data:
                yield row
                advance()

        facts = [f"{len(data)} rows", f"recipe {recipe}" if recipe else "weights as stored"]
        html = page(view.data(counted(), facts=facts))
    write_text(out, html)
    count = len(told.get("findings", ()))
    console(stderr=False).print(neutral(f"{out}: {len(html.encode()):,} bytes, {len(data):,} rows, {count:,} findings"))


def _findings(data: Any, tokenizer: Any) -> dict[str, Any]:
    """What the page shows of a check: findings with their severity, names of rules, how many of each cause."""
    from tracemask.check.runner import check_dataset

    report = check_dataset(data, tokenizer=tokenizer)
    groups = report.groups
    return {
        "findings": report.graded,
        "rule_names": {group.rule.code: group.rule.name for group in groups},
        "found": {(group.rule.code, group.cause or ""): (group.findings, group.rows) for group in groups},
    }
