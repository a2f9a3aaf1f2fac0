"""`tracemask convert`: rollout logs in, Arrow shards out. Knows options, a progress bar and a table, no token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracemask_cli import options

if TYPE_CHECKING:
    from tracemask.store.convert import Progress, RenderConfig
    from tracemask.store.summary import Summary

_SHOWN = 10  # skipped records and unknown fields listed in the table


def command(
    inputs: options.Inputs,
    tokenizer: Annotated[str, typer.Option("--tokenizer", "-t", help="Folder, tokenizer.json or hub:OWNER/NAME.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder or fsspec URL of the dataset.")],
    format: Annotated[str, typer.Option(help="Log format (tracemask formats), or auto.")] = "auto",
    template: Annotated[Path | None, typer.Option(help="Jinja chat template; default: the tokenizer's own.")] = None,
    template_kwarg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=JSON", help="Variable for the template; repeatable.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Day that templates print; default: 2026-01-01.")
    ] = None,
    history: Annotated[str, typer.Option(help="Text-only turns: auto, as_rendered or per_turn.")] = "auto",
    control_text: Annotated[str, typer.Option(help="Control-token text in content: text or ids.")] = "text",
    stop: Annotated[list[str] | None, typer.Option(help="A further stop token; repeatable.")] = None,
    backend: Annotated[str, typer.Option(help="Tokenizer backend: auto, tokenizers, wordcache or gigatoken.")] = "auto",
    authors: Annotated[Path | None, typer.Option(help="TOML with rules on who wrote which message.")] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Processes or Ray tasks at a time.")] = 1,
    engine: Annotated[str, typer.Option(help="Who runs the work: local or ray.")] = "local",
    profile: Annotated[str, typer.Option(help="fast (memory-mapped) or compact (lz4).")] = "fast",
    rows_per_shard: Annotated[
        int | None, typer.Option(help="Traces a shard takes at most; default: by --shard-bytes.")
    ] = None,
    shard_bytes: Annotated[int, typer.Option(help="About how large a shard becomes.")] = 256 << 20,
    max_skipped: Annotated[int, typer.Option(help="Exit 1 when more records than this are skipped.")] = 0,
    on_error: Annotated[str, typer.Option(help="A record that cannot be read: skip or fail.")] = "skip",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse records with unknown fields.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace another dataset in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
) -> None:
    """Turn rollout logs into Arrow shards in which every token knows its author, role and part.

    A run that was killed continues where it stopped, and gives the same bytes as an undisturbed one. Exit code 1 when
    more records than --max-skipped were skipped or the tokenizer is not the one that sampled, 2 when nothing could be
    done.
    """
    from tracemask.core.errors import UsageError
    from tracemask.store.convert import RenderConfig, convert
    from tracemask_cli.output import fail, print_json, progress

    if control_text not in ("text", "ids"):
        raise UsageError("TM900", what=f"--control-text {control_text!r}", fix="use text or ids")

    render = RenderConfig(
        tokenizer=tokenizer,
        template=_template(template),
        template_kwargs=_kwargs(template_kwarg or []),
        history=history,
        control_text="ids" if control_text == "ids" else "text",
        stop=tuple(stop) if stop else None,
        backend=backend,
        date=date,
    )
    with progress("convert", unit="records") as advance:
        summary = convert(
            list(inputs),
            out,
            render=render,
            engine=engine,
            workers=workers,
            profile=profile,
            rows_per_shard=rows_per_shard,
            shard_bytes=shard_bytes,
            max_skipped=max_skipped,
            on_error=on_error,
            format=format,
            authors=authors,
            strict=strict,
            force=force,
            progress=_Bar(advance),
        )
    if as_json:
        print_json(summary.to_json())
    else:
        _print(summary, render)
    if (warning := summary.suspicion()) is not None:
        fail(warning)
    if summary.too_many_skipped:
        fail(summary.skip_error())
    if summary.too_many_skipped or warning is not None:
        raise typer.Exit(1)


class _Bar:
    """Moves the bar to what is done."""

    def __init__(self, advance: Any) -> None:
        self._advance, self._done = advance, 0

    def __call__(self, progress: Progress) -> None:
        self._advance(progress.done - self._done, progress.total)
        self._done = progress.done


def _template(path: Path | None) -> str | None:
    from tracemask.core.errors import UsageError

    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("TM901", where=str(path), what=f"cannot read the template: {error}", fix="check it") from None


def _kwargs(pairs: list[str]) -> tuple[tuple[str, Any], ...]:
    """KEY=JSON pairs; a value that is no JSON is text."""
    from tracemask.core.errors import UsageError

    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError("TM900", what=f"--template-kwarg {pair!r}", fix="write KEY=JSON, as enable_thinking=false")
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = value
    return tuple(sorted(out.items()))


def _print(summary: Summary, render: RenderConfig) -> None:
    from rich.table import Table

    from tracemask_cli.output import console, neutral, print_table

    counts = summary.counts
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("format", f"{summary.format} ({neutral(summary.why)})")
    table.add_row("rows", f"{counts.rows:,} from {counts.traces:,} traces in {_shards(summary)}")
    table.add_row("tokens", f"{counts.tokens:,}, sampled {counts.sampled:,} ({summary.sampled_share:.1%})")
    table.add_row("authors", _shares(counts.authors, counts.tokens))
    table.add_row("fidelity", _fidelity(counts.fidelity) + " rows")
    if encoded := counts.fidelity.get("messages"):
        table.add_row(
            "", f"{encoded:,} rows have ids encoded from text, which nobody sampled: policy terms refuse them"
        )
    table.add_row("drift", _drift(summary))
    table.add_row("forked", f"{counts.forked_rows:,} rows; truncated {counts.truncated_rows:,}")
    if counts.approximate_rows:
        table.add_row("approximate", f"{counts.approximate_rows:,} rows: where a reply begins was not certain")
    said = {"author rules": summary.author_rules, "unknown fields": summary.unknown_fields, "notes": summary.notes}
    for name, counted in said.items():
        most = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{neutral(label)} ({n:,})" for label, n in most[:_SHOWN])
        if most:
            todo = "; --strict refuses records that have them" if name == "unknown fields" else ""
            table.add_row(name, shown + (" …" if len(most) > _SHOWN else "") + todo)
    for k, line in enumerate(summary.left_out.lines()):
        table.add_row("" if k else "left out", neutral(line))
    table.add_row("skipped", f"{len(summary.skipped):,} record{'s' if len(summary.skipped) != 1 else ''}")
    for skip in summary.skipped[:_SHOWN]:
        table.add_row("", neutral(f"{skip.where}: {skip.code} {skip.what}"))
    if len(summary.skipped) > _SHOWN:
        table.add_row("", f"… {len(summary.skipped) - _SHOWN:,} more, all of them with --json and in the manifest")
    table.add_row("written", neutral(summary.out))
    print_table(console(stderr=False), table)


def _shards(summary: Summary) -> str:
    reused = f", {summary.reused} already there" if summary.reused else ""
    return f"{summary.shards:,} shard{'s' if summary.shards != 1 else ''} ({summary.bytes / 1e6:.1f} MB{reused})"


def _shares(parts: dict[str, int], total: int) -> str:
    most = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{label} {n:,} ({n / total:.1%})" for label, n in most)


def _fidelity(rows: dict[str, int]) -> str:
    """The surest first, as `tracemask stats` has it."""
    from tracemask.core.vocab import Fidelity

    return ", ".join(f"{label} {rows[label]:,}" for label in sorted(rows, key=Fidelity.of, reverse=True))


def _drift(summary: Summary) -> str:
    counts = summary.counts
    if not counts.drift:
        return "none"
    causes = ", ".join(f"{cause} {n:,}" for cause, n in sorted(counts.drift.items()))
    return f"{counts.drifted_rows:,} rows; turns by cause: {causes}"
