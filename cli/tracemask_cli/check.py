"""tracemask check: lint a dataset or a rollout log. Owns what is printed, knows no rule."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    paths: Annotated[
        list[str], typer.Argument(help="Shards, another tool's dataset, or a rollout log.", metavar="DATASET")
    ],
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", "-t", help="Folder or tokenizer.json.")] = None,
    template: Annotated[str | None, typer.Option(help="Chat template file (default: the tokenizer's own).")] = None,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Day that the template prints; default: 2026-01-01.")
    ] = None,
    traces: Annotated[
        str | None, typer.Option(help="The rollout log behind the rows, for rules about messages.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names in other tools' data: ids=tokens,mask=m,logprob=lp.")
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these rules (TM3, TM305, a name); repeat or use commas.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help='Ignore with a reason: --ignore TM107="known".')] = None,
    require: Annotated[list[str] | None, typer.Option(help="Fail if these rules cannot run.")] = None,
    tolerance: Annotated[
        list[str] | None, typer.Option(help="Let some pass: TM107=5% of rows, TM209=3 findings.")
    ] = None,
    fail_on: Annotated[str | None, typer.Option(help="E, W or i: what makes exit code 1 (default E).")] = None,
    format: Annotated[
        str, typer.Option("--format", "-f", help="text, json, jsonl, sarif, junit, github or html.")
    ] = "text",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the report here instead of stdout.")
    ] = None,
    statistics: Annotated[bool, typer.Option("--statistics", help="Only counts per rule.")] = False,
    baseline: Annotated[str | None, typer.Option(help="Do not report findings that this file knows.")] = None,
    write_baseline: Annotated[str | None, typer.Option(help="Write all findings to this baseline and exit 0.")] = None,
    config: Annotated[str | None, typer.Option(help="tracemask.toml or pyproject.toml (default: the nearest).")] = None,
    eval_path: Annotated[
        str | None, typer.Option("--eval", help="Evaluation set that training must not overlap.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The trainer's row budget, for TM602.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Rollouts that each group should have, for TM605.")] = None,
    pre_shifted: Annotated[bool, typer.Option("--pre-shifted", help="labels[t] names token t + 1 on purpose.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Lint a dataset: masks, tokens, log-probs, rewards.

    Reads shards of tracemask convert, other tools' datasets (Hugging Face folders, Parquet, JSON lines with ids and
    labels or a mask) and rollout logs. Rules whose inputs are missing are listed, never counted as passed.

    Exit codes: 0 clean, 1 findings, 2 could not run.
    """
    from tracemask.check.config import merged
    from tracemask.check.formats import FORMATS

    settings = merged(
        _base(config, paths[0]),
        select=_split(select), ignore=_pairs(ignore, "ignore"), require=_split(require), fail_on=_severity(fail_on),
        tolerance=_tolerances(tolerance), baseline=baseline, columns=_columns(columns), tokenizer=tokenizer,
        template=template, date=date, eval_path=eval_path, max_tokens=max_tokens, group_size=group_size,
        pre_shifted=pre_shifted or None,
    )  # fmt: skip
    render = FORMATS["json" if json else format]
    report = _run(paths, settings, traces, write_baseline)
    if statistics:
        from tracemask.check.formats.text import statistics as render
    _write(render(report), output, colour=render.__module__.endswith(".text") and not statistics)
    raise typer.Exit(0 if write_baseline else report.exit_code)


def _run(paths: list[str], settings: Any, traces: str | None, write_baseline: str | None) -> Any:
    from collections import Counter

    from tracemask.check import baseline
    from tracemask.check.sources import check_paths

    keys: Counter[str] | None = Counter() if write_baseline else None
    report = check_paths(paths, settings=settings, traces=traces, baseline_out=keys)
    if write_baseline and keys is not None:
        baseline.write(write_baseline, keys)
    return report


def _base(config: str | None, dataset: str) -> Any:
    from tracemask.check.config import Settings, find, read

    path = config or find(Path.cwd())
    return read(path) if path else Settings()


def _split(values: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())


def _pairs(values: list[str] | None, option: str) -> dict[str, str]:
    out = {}
    for value in values or ():
        key, _, text = value.partition("=")
        out[key.strip()] = text.strip()
    return out


def _tolerances(values: list[str] | None) -> dict[str, Any]:
    from tracemask.check.config import Tolerance

    return {code: Tolerance.of(text) for code, text in _pairs(list(_split(values)), "tolerance").items()}


def _columns(value: str | None) -> dict[str, str]:
    return _pairs(list(_split([value])), "columns") if value else {}


def _severity(value: str | None) -> Any:
    from tracemask.check.config import severity

    return severity(value) if value else None


_STYLES = {"E": "\x1b[1;31m", "W": "\x1b[1;33m", "i": "\x1b[1;36m"}


def _write(text: str, output: str | None, *, colour: bool) -> None:
    if output:
        Path(output).write_text(text, encoding="utf-8")
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
    return f"\x1b[2m{line}\x1b[0m" if line.startswith(("    …", "not run")) else line
