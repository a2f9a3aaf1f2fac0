"""tracemask trace: a log as trees, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracemask_cli import options

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from tracemask.core.finding import Finding
    from tracemask.trace import Message, Reading, Trace

_STYLE = {
    "policy": "green",
    "model": "magenta",
    "environment": "yellow",
    "taskset": "cyan",
    "harness": "blue",
    "verifier": "red",
    "user": "white",
}


def command(
    inputs: options.Inputs,
    format: Annotated[str, typer.Option("--format", help="A name of `tracemask formats`, or auto.")] = "auto",
    first: Annotated[int, typer.Option("--first", min=1, help="How many traces to show.")] = 5,
    only: Annotated[str | None, typer.Option("--id", help="Show the trace with this id only.")] = None,
    authors: Annotated[str | None, typer.Option("--authors", help="TOML with [[authors]] rules.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Unknown fields refuse their line.")] = False,
    max_skipped: Annotated[int, typer.Option("--max-skipped", min=0, help="Refused lines that are all right.")] = 0,
    width: Annotated[int, typer.Option("--width", min=20, help="Characters of each message's text.")] = 72,
    json: Annotated[bool, typer.Option("--json", help="Traces in tracemask's own form, one a line.")] = False,
) -> None:
    """Show a rollout log as a tree: authors, calls, fidelity, tokens, rewards, edges, problems.

    Exit 0 when everything was read, 1 when more lines were refused than --max-skipped allows, 2 when nothing could be.
    """
    from tracemask.store.fetch import local_copies
    from tracemask.trace import read_traces

    shown = 0
    with local_copies(list(inputs)) as local:
        reading = read_traces(local, format=format, authors=authors, strict=strict)
        for trace in reading:
            if only is not None and trace.id != only:
                continue
            shown += 1
            if json:
                _print_line(trace)
            elif shown <= first:
                _wide(width).print(_tree(trace, width), soft_wrap=False)
    if not json:
        _summary(reading, shown, first)
    else:
        _problems(reading)
    if only is not None and not shown:
        from tracemask.core.errors import UsageError

        raise UsageError(
            "TM900", where=f"--id {only}", what="no trace has this id", fix="`tracemask trace LOG` lists them"
        )
    if len(reading.skipped) > max_skipped:
        raise typer.Exit(1)


def _console(*, stderr: bool = False) -> Any:
    from tracemask_cli.output import console

    return console(stderr=stderr)


def _wide(width: int) -> Any:
    """A console whose lines end at the terminal's edge, and hardly ever where there is no terminal."""
    from rich.console import Console

    out = _console()
    return out if out.is_terminal else Console(width=200 + width, highlight=False, markup=False)


def _print_line(trace: Trace) -> None:
    import sys

    from tracemask.trace.jsonl import dumps, to_json

    sys.stdout.buffer.write(dumps(to_json(trace)) + b"\n")


def _tree(trace: Trace, width: int) -> Tree:
    """The trace's messages; a chain stays at one depth, every fork or new root goes one deeper."""
    from rich.text import Text
    from rich.tree import Tree

    from tracemask.trace.invariants import findings

    title = Text(_neutral(trace.id), style="bold")
    title.append(f"  {_facts(trace)}", style="dim")
    tree = Tree(title)
    parents = trace.parents()
    children: dict[str | None, list[int]] = {}
    for index, message in enumerate(trace.messages):
        children.setdefault(parents[message.id], []).append(index)
    edges = {edge.to: edge for edge in trace.edges if edge.to is not None}
    waiting: list[tuple[int, Tree]] = [(index, tree) for index in reversed(children.get(None, []))]
    roots = len(waiting)
    while waiting:
        index, at = waiting.pop()
        message = trace.messages[index]
        if (parents[message.id] is None and roots > 1) or len(children.get(parents[message.id], [])) > 1:
            edge = edges.get(message.id)
            word = f"{edge.kind}{f' ({edge.trigger})' if edge.trigger else ''}" if edge else "branch"
            at = at.add(Text(_neutral(word), style="bold magenta"))
        at.add(_line(index, message, width))
        waiting.extend((child, at) for child in reversed(children.get(message.id, [])))
    for edge in trace.edges:
        if edge.to is None:
            tree.add(Text(f"edge {edge.kind} at {edge.at} → {_neutral(edge.ref or 'elsewhere')}", style="magenta"))
    for finding in findings(trace):
        tree.add(_finding(finding))
    return tree


def _facts(trace: Trace) -> str:
    sampled = sum(len(message.sampled.token_ids) for message in trace.messages if message.sampled)
    facts = [
        None if trace.group_id is None else f"group {_neutral(trace.group_id)}",
        None if trace.attempt is None else f"attempt {trace.attempt}",
        f"{len(trace.messages)} messages",
        f"fidelity {trace.fidelity.label}",
        f"{sampled} sampled tokens" if sampled else None,
        "reward missing" if trace.reward is None else f"reward {trace.reward:g}",
        *(f"{_neutral(name)} {part.score:g}×{part.weight:g}" for name, part in trace.rewards.items()),
        None if trace.stop is None else f"stop {_neutral(trace.stop)}",
        "truncated" if trace.truncated else None,
        None if trace.trainable else "not trainable",
        f"{len(trace.errors)} errors" if trace.errors else None,
    ]
    return " · ".join(fact for fact in facts if fact)


def _line(index: int, message: Message, width: int) -> Text:
    from rich.text import Text

    from tracemask.trace.jsonl import dumps
    from tracemask.trace.model import ToolCall, ToolResult

    line = Text(f"{index:>3} ", style="dim", no_wrap=True, overflow="ellipsis")
    line.append(f"{message.role}", style="bold")
    line.append(f" {message.author}", style=_STYLE[message.author])
    if message.copied:
        line.append(" copied", style="dim")
    if message.sampled is not None:
        line.append(f" {message.fidelity.label} {len(message.sampled.token_ids)} tok", style="green")
        reason = message.sampled.finish_reason
    else:
        reason = message.finish_reason
    if reason is not None:
        line.append(f" [{_neutral(reason)}]", style="dim")
    text = _neutral(" ".join(message.text().split()))
    line.append(f" {text[:width]}{'…' if len(text) > width else ''}")
    for block in message.blocks:
        if block.type == "reasoning":
            size = f"{len(block.text)} chars" if block.text else "encrypted" if block.encrypted else "redacted"
            line.append(f" ⟨reasoning {size}⟩", style="dim")
        elif isinstance(block, ToolCall):
            arguments = (
                block.raw_arguments if block.raw_arguments is not None else dumps(block.arguments or {}).decode()
            )
            shown = _neutral(" ".join(arguments.split()))
            line.append(f" → {_neutral(block.name)}({shown[: width // 2]})", style="bold cyan")
        elif isinstance(block, ToolResult) and block.is_error:
            line.append(" failed", style="red")
        elif block.type in ("media", "opaque"):
            line.append(f" ⟨{block.type}⟩", style="yellow")
    return line


def _neutral(text: str) -> str:
    from tracemask_cli.output import neutral

    return neutral(text)


def _finding(finding: Finding) -> Text:
    from rich.text import Text

    line = Text(f"{finding.code} ", style="bold red")
    turn = "" if finding.place.turn is None else f"message {finding.place.turn}: "
    line.append(_neutral(f"{turn}{finding.message}"))
    return line


def _summary(reading: Reading, shown: int, first: int) -> None:
    from rich.text import Text

    out = _console()
    if shown > first:
        out.print(Text(f"… {shown - first:,} more traces (--first {shown})", style="dim"))
    files = "" if len(reading.files) == 1 else f" in {len(reading.files)} files"
    traces = "1 trace" if reading.n_read == 1 else f"{reading.n_read:,} traces"
    out.print(Text(f"{traces}{files} · format {reading.format}: {_neutral(reading.why)}"))
    for label, count in reading.rules.items():
        out.print(Text(f"author rule {_neutral(label)}: {count} messages"))
    for name, count in sorted(reading.unknown_fields.items()):
        out.print(Text(f"unknown field {_neutral(name)} ({count} times)", style="yellow"))
    for line in reading.left_out.lines():
        out.print(Text(f"left out: {_neutral(line)}", style="yellow"))
    for note, count in sorted(reading.notes.items()):
        out.print(Text(f"note: {_neutral(note)} ({count})", style="dim"))
    _problems(reading)


def _problems(reading: Reading) -> None:
    from rich.text import Text

    out = _console(stderr=True)
    for finding in reading.findings:
        out.print(Text(f"{finding.place}: {finding.code} {_neutral(finding.message)}", style="yellow"))
    for error in reading.skipped:
        line = Text(f"{_neutral(error.where)}: ")
        line.append(error.code, style="bold red")
        line.append(f" {_neutral(error.what)}")
        out.print(line)
    if reading.skipped:
        out.print(Text(f"{len(reading.skipped)} refused", style="red"))
