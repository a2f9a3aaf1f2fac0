"""`tracemask report`: one offline HTML page that audits a dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from tracemask_cli import options


def command(
    dataset: options.Dataset,
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    tokenizer: options.Tokenizer = None,
    rows: Annotated[int, typer.Option(help="Rows to show in full; all are counted.", min=0)] = 50,
    recipe: options.Weights = None,
    check: Annotated[bool, typer.Option(help="Run the lint rules and link their findings.")] = True,
    columns: options.Columns = None,
    title: Annotated[str | None, typer.Option(help="Title; default the dataset's name.")] = None,
) -> None:
    """Write a self-contained HTML page: tokens by author, weights under each normalizer, findings. Works offline."""
    from dataclasses import replace
    from pathlib import Path

    from tracemask.report.html import page
    from tracemask.report.page import Page
    from tracemask.report.scales import scales
    from tracemask_cli.dataset import open_with_tokenizer, weigher
    from tracemask_cli.output import console, progress, write_text

    data, loaded = open_with_tokenizer(dataset, tokenizer=tokenizer, columns=columns)
    weigh = weigher(recipe, data, loaded)
    findings, names, found = [], {}, {}
    if check:
        from tracemask.check.runner import check_dataset

        result = check_dataset(data, tokenizer=loaded)
        findings = [replace(finding, severity=group.severity) for group in result.groups for finding in group.examples]
        names = {group.rule.code: group.rule.name for group in result.groups}
        found = {(group.rule.code, group.cause or ""): (group.findings, group.rows) for group in result.groups}
    view = Page(
        title=title or Path(dataset).resolve().name,
        tokenizer=loaded,
        weigh=weigh,
        scales=scales(data, weigh),
        findings=findings,
        checked=check,
        rule_names=names,
        found=found,
        most_rows=rows,
    )
    with progress("report", total=len(data), unit="rows") as advance:

        def counted():
            for row in data:
                yield row
                advance()

        facts = [f"{len(data)} rows", f"recipe {recipe}" if recipe else "weights as stored"]
        html = page(view.data(counted(), facts=facts))
    write_text(out, html)
    console().print(f"{out}: {len(html.encode()):,} bytes, {len(data)} rows, {len(findings)} findings")
