"""A row as coloured lines for a terminal. Hue is the author, bold on a background is the loss; the margin says both in
text, so a dump without colour loses nothing and can be parsed back. Knows no file and prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracemask.core.finding import Finding
from tracemask.core.vocab import AUTHOR_LETTER, Author
from tracemask.report.glyphs import NEWLINE, Speller, TokenTable, plain, visible
from tracemask.report.lanes import Run, loss_spans, misfits, runs, stored_weights, whole
from tracemask.store.row import Row

if TYPE_CHECKING:
    from rich.text import Text

HUE = {
    Author.RENDERER: "bright_black",
    Author.POLICY: "green",
    Author.MODEL: "bright_cyan",
    Author.ENVIRONMENT: "magenta",
    Author.TASKSET: "cyan",
    Author.HARNESS: "blue",
    Author.VERIFIER: "yellow",
    Author.USER: "bright_blue",
}
IN_LOSS = " bold on grey23"
COLLAPSE = 60  # tokens: longer runs that nobody trains on become one line
EDGE = 40  # characters shown at each end of a collapsed run
BLANKS = "[·→⏎]+"  # marks of white space


@dataclass(frozen=True, slots=True)
class View:
    """What to show. at: a token that must be visible. width: columns of the terminal."""

    width: int = 100
    full: bool = False
    ids: bool = False
    logprobs: bool = False
    tokens: bool = False
    at: int | None = None
    around: int = 60
    findings: Sequence[Finding] = field(default_factory=tuple)


def glyph(weight: float) -> str:
    """█ weight 1, ▒ another positive weight, · none, ▼ negative, ? not a number."""
    if weight != weight:
        return "?"
    return "█" if weight == 1 else "▒" if weight > 0 else "▼" if weight < 0 else "·"


def weight_label(run_weights: tuple[tuple[str, float], ...]) -> str:
    """The margin's statement of a run's weights: `█`, `·`, `▒0.1`, and the component's name where there are several."""
    live = [(name, weight) for name, weight in run_weights if weight != 0]
    if not live:
        return "·"
    named = len(run_weights) > 1

    def one(name: str, weight: float) -> str:
        value = "" if weight == 1 else f"{weight:.6g}"
        return f"{visible(name)}{glyph(weight)}{value}" if named else f"{glyph(weight)}{value}"

    return "+".join(one(name, weight) for name, weight in live)


def dump(
    row: Row, tokenizer: TokenTable | None, *, weights: dict[str, np.ndarray] | None = None, view: View | None = None
) -> Iterator[Text]:
    """Lines of a row. weights: streams of a recipe; default what the row itself stores. tokenizer None: ids only."""
    view = view or View()
    weights = stored_weights(row) if weights is None else weights
    odd, row = misfits(row), whole(row)
    row_runs = runs(row, weights)
    yield header(row, row_runs, odd)
    speller = Speller(tokenizer)
    if view.tokens:
        yield from _table(row, row_runs, speller, view)
        return
    margin = max((len(weight_label(run.weights)) for run in row_runs), default=1)
    for run in _visible_runs(row_runs, view):
        yield from _run_lines(row, run, speller, view, margin)


def header(row: Row, row_runs: list[Run], odd: Mapping[str, int]) -> Text:
    """One line: what the row is, how long, how much of it is in the loss, and columns of another length (`misfits`)."""
    from rich.text import Text

    total = len(row)
    spans = list(loss_spans(row_runs))
    trained = sum(end - start for start, end in spans)
    share = f"{trained / total:.1%}" if total else "0%"
    parts = [f"row {row.index}", f"{total:,} tokens", f"in loss {trained:,} ({share}) in {len(spans)} spans"]
    for name in ("trace_id", "fidelity", "reward", "stop"):
        value = row.scalars.get(name)
        if value is not None:
            parts.append(f"{name} {visible(str(value))}")
    if row.scalars.get("truncated"):
        parts.append("truncated")
    parts += [f"TM101 {visible(name)} has {count:,} values: left out" for name, count in odd.items()]
    return Text("  ".join(parts), style="bold")


def _visible_runs(row_runs: list[Run], view: View) -> Iterator[Run]:
    if view.at is None:
        yield from row_runs
        return
    low, high = view.at - view.around, view.at + view.around + 1
    for run in row_runs:
        start, end = max(run.start, low), min(run.end, high)
        if start < end:
            yield Run(start, end, run.author, run.role, run.part, run.message, run.weights)


def _style(run: Run) -> str:
    hue = "white" if run.author is None else HUE[run.author]
    return hue + (IN_LOSS if run.in_loss else "")


def _letter(run: Run) -> str:
    return "?" if run.author is None else AUTHOR_LETTER[run.author]


def _margin(start: int, run: Run, width: int) -> Text:
    from rich.text import Text

    return Text().append(f"{start:>7} {_letter(run)} {weight_label(run.weights):<{width}} │", style="dim")


def _run_lines(row: Row, run: Run, speller: Speller, view: View, margin: int) -> Iterator[Text]:
    from rich.text import Text

    marks = [f for f in view.findings if f.place.token is not None and run.start <= f.place.token < run.end]
    size = run.end - run.start
    folds = size > COLLAPSE and not run.in_loss and run.author is not Author.POLICY
    if folds and not view.full and view.at is None and not marks:
        yield _collapsed(row, run, speller, margin, width=view.width)
        return
    ids = row["token_ids"][run.start : run.end]
    for start, end, text in _wrap(speller.spell(ids), max(20, view.width - 13 - margin)):
        line = _margin(run.start + start, run, margin)
        line.append(text, style=_style(run))
        line.highlight_regex(BLANKS, "dim")  # there, and faint: words read as words
        yield line
        blank = " " * (10 + margin)
        if view.ids:
            yield Text(f"{blank}#│" + " ".join(str(int(token_id)) for token_id in ids[start:end]), style="dim")
        if view.logprobs and (logprob := row.get("logprob")) is not None and run.in_loss:
            values = logprob[run.start + start : run.start + end]
            yield Text(f"{blank}p│" + " ".join("—" if np.isnan(v) else f"{v:.3f}" for v in values), style="dim")
        for finding in marks:
            token = finding.place.token
            if token is not None and run.start + start <= token < run.start + end:
                what = f"{finding.code} {plain(finding.message)}"
                yield Text(f"{blank}^│token {token} (id {int(ids[token - run.start])}): {what}", style="bold red")
                yield from _both_sides(finding, speller, blank)


def _both_sides(finding: Finding, speller: Speller, blank: str) -> Iterator[Text]:
    """What is trained against what was sampled, where a finding knows both: text and ids, one line each."""
    from rich.text import Text

    for sign, name, key in (("−", "trained", "trained_ids"), ("+", "sampled", "expected_ids")):
        held = finding.data.get(key)
        if isinstance(held, list) and held:
            ids = [int(token) for token in held]
            yield Text(f"{blank}{sign}│{name} {speller.text(ids)}  [{' '.join(map(str, ids))}]", style="red")


def _collapsed(row: Row, run: Run, speller: Speller, margin: int, *, width: int) -> Text:
    from rich.cells import cell_len

    ids = row["token_ids"]
    line = _margin(run.start, run, margin)
    name = "" if run.author is None else f"{run.author.label} "
    said = f"‹{name}{run.end - run.start:,} tokens, none in loss│"
    edge = max(0, min(EDGE, (width - cell_len(line.plain) - cell_len(said) - len(" … ›")) // 2))
    head = "".join(speller.spell(ids[run.start : min(run.end, run.start + edge)]))[:edge]
    tail = "".join(speller.spell(ids[max(run.start, run.end - edge) : run.end]))
    tail = tail[len(tail) - min(edge, len(tail)) :]
    while cell_len(head) > edge:
        head = head[:-1]
    while cell_len(tail) > edge:
        tail = tail[1:]
    line.append(f"{said}{head} … {tail}›", style=_style(run) + " italic")
    return line


def _wrap(pieces: list[str], width: int) -> Iterator[tuple[int, int, str]]:
    """Token ranges and text of the display lines: broken after a line break and before `width` columns are exceeded."""
    from rich.cells import cell_len

    start, used = 0, 0
    line: list[str] = []
    for index, piece in enumerate(pieces):
        size = cell_len(piece)
        if line and used + size > width:
            yield start, index, "".join(line)
            start, used, line = index, 0, []
        line.append(piece)
        used += size
        if piece.endswith(NEWLINE):
            yield start, index + 1, "".join(line)
            start, used, line = index + 1, 0, []
    if start < len(pieces):
        yield start, len(pieces), "".join(line)


def _table(row: Row, row_runs: list[Run], speller: Speller, view: View) -> Iterator[Text]:
    """One token a line: index, id, author, weight, log-prob, text."""
    from rich.text import Text

    logprob = row.get("logprob")
    pieces = speller.spell(row["token_ids"])
    notes: dict[int, list[Finding]] = {}
    for finding in view.findings:
        if finding.place.token is not None:
            notes.setdefault(finding.place.token, []).append(finding)
    for run in _visible_runs(row_runs, view):
        label = weight_label(run.weights)
        for index in range(run.start, run.end):
            value = "" if logprob is None or np.isnan(logprob[index]) else f"{logprob[index]:.4f}"
            line = Text(
                f"{index:>7} {int(row['token_ids'][index]):>7} {_letter(run)} {label:<8} {value:>9} │", style="dim"
            )
            line.append(pieces[index] or "‹part of the next character›", style=_style(run))
            yield line
            for finding in notes.get(index, ()):
                yield Text(f"{'':>34} ^ {finding.code} {plain(finding.message)}", style="bold red")
