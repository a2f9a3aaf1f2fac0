"""tracemask check: lint a dataset or a rollout log. Owns what is printed, knows no rule."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tracemask_cli import options

Paths = Annotated[
    list[str],
    typer.Argument(help="Shards, another tool's dataset, or a rollout log; - is standard input.", metavar="DATASET"),
]
Date = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Day that the template prints; 2026-01-01.")]
Traces = Annotated[str | None, typer.Option(help="The rollout log behind the rows, for rules about messages.")]
Select = Annotated[list[str] | None, typer.Option(help="Only these rules (TM3, TM305, a name); repeat or use commas.")]
Ignore = Annotated[list[str] | None, typer.Option(help='Ignore with a reason: --ignore TM107="known".')]
Require = Annotated[list[str] | None, typer.Option(help="Fail if these rules cannot run.")]
Tolerance = Annotated[list[str] | None, typer.Option(help="Let some pass: TM107=5% of rows, TM209=3 findings.")]
FailOn = Annotated[str | None, typer.Option(help="E, W or i: what makes exit code 1 (default E).")]
Format = Annotated[str, typer.Option("--format", "-f", help="text, json, jsonl, sarif, junit, github or html.")]
Output = Annotated[str | None, typer.Option("--out", "--output", "-o", help="Write the report here instead of stdout.")]
Statistics = Annotated[bool, typer.Option("--statistics", help="Only counts per rule.")]
Skipped = Annotated[bool, typer.Option("--skipped", help="List the rules that could not run, and what they miss.")]
Baseline = Annotated[str | None, typer.Option(help="Do not report findings that this file knows.")]
WriteBaseline = Annotated[str | None, typer.Option(help="Write all findings to this baseline and exit 0.")]
Config = Annotated[str | None, typer.Option(help="tracemask.toml or pyproject.toml (default: the nearest).")]
Eval = Annotated[str | None, typer.Option("--eval", help="Evaluation set that training must not overlap.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The trainer's row budget, for TM602.")]
GroupSize = Annotated[int | None, typer.Option(min=1, help="Rollouts that each group should have, for TM605.")]
PreShifted = Annotated[bool, typer.Option("--pre-shifted", help="labels[t] names token t + 1 on purpose.")]


def command(
    paths: Paths,
    tokenizer: options.Tokenizer = None,
    template: options.Template = None,
    date: Date = None,
    traces: Traces = None,
    columns: options.Columns = None,
    select: Select = None,
    ignore: Ignore = None,
    require: Require = None,
    tolerance: Tolerance = None,
    fail_on: FailOn = None,
    format: Format = "text",
    output: Output = None,
    statistics: Statistics = False,
    skipped: Skipped = False,
    baseline: Baseline = None,
    write_baseline: WriteBaseline = None,
    config: Config = None,
    eval_path: Eval = None,
    max_tokens: MaxTokens = None,
    group_size: GroupSize = None,
    pre_shifted: PreShifted = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Lint a dataset: masks, tokens, log-probs, rewards.

    Reads shards of tracemask convert, other tools' datasets (Hugging Face folders, Parquet, JSON lines with ids and
    labels or a mask) and rollout logs. Rules whose inputs are missing are listed, never counted as passed.

    Exit codes: 0 clean, 1 findings, 2 could not run.
    """
    from tracemask.check.config import merged
    from tracemask.check.formats import FORMATS
    from tracemask_cli.dataset import columns_option

    settings = merged(
        _base(config), select=options.words(select), ignore=options.pairs(ignore), require=options.words(require),
        fail_on=_severity(fail_on), tolerance=_tolerances(tolerance), baseline=baseline,
        columns=columns_option(columns) or {}, tokenizer=tokenizer,
        template=template, date=date, eval_path=eval_path, max_tokens=max_tokens, group_size=group_size,
        pre_shifted=pre_shifted or None,
    )  # fmt: skip
    name = "json" if json else format
    render = FORMATS[name]
    report = _run(paths, settings, traces, write_baseline)
    if statistics:
        from tracemask.check.formats.text import statistics as render
    elif skipped and name == "text":
        from tracemask.check.formats.text import with_skipped as render
    _write(render(report), output, colour=name == "text" and not statistics)
    _tell(report, output, write_baseline)
    raise typer.Exit(0 if write_baseline else report.exit_code)


def _run(paths: list[str], settings: Any, traces: str | None, write_baseline: str | None) -> Any:
    from collections import Counter
    from dataclasses import replace

    from tracemask.check import baseline
    from tracemask.check.sources import check_paths

    keys: Counter[str] | None = Counter() if write_baseline else None
    if write_baseline:
        settings = replace(settings, baseline=None)  # one that is known, or not yet there, leaves nothing out
    report = check_paths(paths, settings=settings, traces=traces, baseline_out=keys)
    if write_baseline and keys is not None:
        baseline.write(write_baseline, keys)
    return report


def _base(config: str | None) -> Any:
    from tracemask.check.config import Settings, find, read

    path = config or find(Path.cwd())
    return read(path) if path else Settings()


def _tolerances(values: list[str] | None) -> dict[str, Any]:
    from tracemask.check.config import Tolerance

    return {code: Tolerance.of(text) for code, text in options.pairs(options.words(values)).items()}


def _severity(value: str | None) -> Any:
    from tracemask.check.config import severity

    return severity(value) if value else None


def _tell(report: Any, output: str | None, write_baseline: str | None) -> None:
    """On stderr: what was written where, with the verdict that is not to be seen."""
    from tracemask.check.formats.text import summary
    from tracemask_cli.output import console, neutral

    if output:
        console().print(neutral(f"{output}: {summary(report)}"))
    if write_baseline:
        console().print(neutral(f"{write_baseline}: {sum(group.findings for group in report.groups):,} findings"))


_STYLES = {"E": "\x1b[1;31m", "W": "\x1b[1;33m", "i": "\x1b[1;36m"}


def _write(text: str, output: str | None, *, colour: bool) -> None:
    if output:
        from tracemask_cli.output import write_text

        write_text(output, text)
        return
    if colour and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = "\n".join(_coloured(line) for line in text.split("\n"))
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def _coloured(line: str) -> str:
    style = _STYLES.get(line[:1])
    if style and line[1:4] == " TM":
        head, colon, rest = line.partition(":")
        return f"{style}{head}\x1b[0m{colon}{rest}"
    return f"\x1b[2m{line}\x1b[0m" if line.startswith(("    …", "not run,")) else line
