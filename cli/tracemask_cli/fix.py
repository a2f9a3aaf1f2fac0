"""tracemask fix: write a repaired copy of a dataset. Owns what is printed and where the copy goes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from tracemask_cli import options


def command(
    datasets: options.Datasets,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Where the repaired copy goes.")] = None,
    tokenizer: options.Tokenizer = None,
    template: options.Template = None,
    columns: options.Columns = None,
    select: Annotated[list[str] | None, typer.Option(help="Only repairs for these rules.")] = None,
    unsafe_fixes: Annotated[bool, typer.Option("--unsafe-fixes", help="Also repairs that decide something.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what would change; write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Changes as JSON.")] = False,
) -> None:
    """Repair what can be repaired, in a copy: new shards for ours, JSON lines for other tools' data.

    Safe repairs remove from the loss what no policy wrote, and restore what the ids prove. Unsafe ones move masks and
    log-probs and leave rows out. Nothing is written in place.

    Exit codes: 0 done, 1 with --diff when something would change, 2 could not run.
    """
    from tracemask.check.fix import fix_dataset
    from tracemask.check.rule import matching
    from tracemask.check.sources import template_source
    from tracemask_cli.dataset import opened

    if out is None and not diff:
        from tracemask.core.errors import UsageError

        raise UsageError("TM900", what="nowhere to write to", fix="give --out FOLDER, or --diff to look only")
    dataset = opened(datasets, columns=columns)
    source = template_source(template)
    codes = matching(options.words(select)) if select else ()
    fixer = fix_dataset(dataset, tokenizer=tokenizer, template=source, codes=codes, unsafe=unsafe_fixes)
    kept = _apply(dataset, fixer, out, diff)
    _print(fixer.changes, kept, None if diff else out, json)
    if diff and fixer.changes:
        raise typer.Exit(1)


def _apply(dataset: Any, fixer: Any, out: str | None, diff: bool) -> int:
    """Rows written (or that would be)."""
    if diff or out is None:
        return sum(fixer(row) is not None for row in dataset)
    if dataset.kind == "tracemask":
        from tracemask.store.derive import rewrite

        names = sorted({fix.code for fix in fixer.fixes})
        manifest = rewrite(dataset, out, fixer, config={"fix": names})
        return sum(shard.rows for shard in manifest.shards)
    return _write_lines(dataset, fixer, out)


_NAMES = {"token_ids": "input_ids", "mask": "loss_mask", "logprob": "logprobs"}


def _write_lines(dataset: Any, fixer: Any, out: str) -> int:
    """Another tool's rows as JSON lines, under the names that most tools read."""
    import math

    from tracemask.core.errors import UsageError
    from tracemask.recipe.rollouts import is_present
    from tracemask.store.folder import open_folder, sink_of
    from tracemask.trace.inputs import json_like
    from tracemask.trace.jsonl import dumps

    place, name = os.path.split(out) if out.endswith(".jsonl") else (out, "part-00000.jsonl")
    folder = open_folder(place or ".")
    if folder.size(name) is not None:
        raise UsageError("TM900", where=os.path.join(place, name), what="the file exists", fix="give another --out")
    folder.make()
    rows = 0
    with sink_of(folder, name) as lines:
        for row in dataset:
            fixed = fixer(row)
            if fixed is None:
                continue
            record: dict[str, Any] = {k: json_like(value) for k, value in fixed.scalars.items() if is_present(value)}
            for name, values in fixed.columns.items():
                listed = values.tolist()
                if values.dtype.kind == "f":
                    listed = [None if math.isnan(value) else value for value in listed]
                record[str(_NAMES.get(name, name))] = listed
            lines.write(dumps(record) + b"\n")  # infinities stay: null would hide them
            rows += 1
    return rows


def _print(changes: list[Any], rows: int, out: str | None, json: bool) -> None:
    from tracemask.check.fix import FIXES

    counts: dict[str, int] = {}
    for change in changes:
        counts[change.code] = counts.get(change.code, 0) + 1
    if json:
        from dataclasses import asdict

        from tracemask_cli.output import print_json

        print_json({"rows": rows, "out": out, "changes": [asdict(change) for change in changes], "counts": counts})
        return
    what = {fix.code: fix.what for fix in FIXES}
    lines = [f"{change}" for change in changes[:50]]
    if len(changes) > 50:
        lines.append(f"… and {len(changes) - 50:,} more")
    lines += [] if changes else ["nothing to repair"]
    lines += [f"{code}: {what[code]} in {count} rows" for code, count in sorted(counts.items())]
    where = f"{rows:,} rows written to {out}" if out else f"{rows:,} rows would be kept"
    sys.stdout.buffer.write(("\n".join([*lines, where]) + "\n").encode("utf-8", "backslashreplace"))
