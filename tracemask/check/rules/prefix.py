"""Rules about rows of one trace: do they extend each other, what do forks cost, was the run cut off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracemask.check.block import common_prefix
from tracemask.check.context import Run
from tracemask.check.finding import ERROR, INFO, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View
from tracemask.core.vocab import Role


@dataclass
class Branches:
    """The ids of the current trace's rows by branch: rows of a trace stand next to each other."""

    trace: object = None
    ids: dict[int, np.ndarray] = field(default_factory=dict)


@rule("TM102", "prefix-break", WARNING, needs=(Need.IDS,))
def prefix_break(view: View) -> Iterator[Finding]:
    """A later row of a trace does not continue the earlier one, though it should.

    **What it does.** In our shards, compares a forked row with the row it forked from, up to the stated position: a
    difference is an error. In other data, consecutive rows with one `trace_id` (or `episode_id`) whose contexts do not
    extend each other are a warning; so are, in rollout logs, consecutive calls whose `prompt_ids` do not go on from the
    prompt and the reply of the call before.

    **Why it is bad.** Rows that were merged as if one extended the other train tokens in a context they never had.
    Where nothing was merged, a broken prefix means that history was rewritten: each step costs its whole context again.

    **Example.** Turn 3's prompt holds turn 2's reply re-tokenized: the common prefix ends inside turn 2.

    **How to fix.** Feed sampled ids back as they are (token-in, token-out), or accept one row per turn.

    **Limits.** Rows of a trace must stand next to each other. A compaction breaks the prefix rightly.
    """
    block = view.block
    held = view.run.state("TM102", Branches)
    traces = block.scalar("trace_id") if view.run.ours else _episodes(view)
    branches, forks, positions = block.scalar("branch"), block.scalar("fork_row"), block.scalar("fork_position")
    stated = view.run.ours or any("fork_row" in row.scalars for row in block.rows)
    for i, trace in enumerate(traces):
        if trace is None or i in block.ragged:
            continue
        if trace != held.trace:
            held.trace, held.ids = trace, {}
        ids = block.ids[block.offsets[i] : block.offsets[i + 1]]
        if stated:
            yield from _fork(view, i, ids, held.ids.get(forks[i] if forks[i] is not None else -1), positions[i])
            held.ids[int(branches[i] or 0)] = ids
        else:
            before = held.ids.get(0)
            same = common_prefix(before, ids) if before is not None else 0
            if before is not None and same < min(len(before), len(ids)):
                yield block.finding("TM102", i, f"extends the row before only up to token {same}", token=same)
            held.ids[0] = ids


def _episodes(view: View) -> list[object]:
    for name in ("trace_id", "episode_id", "trajectory_id"):
        values = view.block.scalar(name)
        if any(value is not None for value in values):
            return values
    return [None] * len(view.block.rows)


def _fork(view: View, i: int, ids: np.ndarray, parent: np.ndarray | None, position: int | None) -> Iterator[Finding]:
    if parent is None or position is None:
        return
    same = common_prefix(parent, ids)
    if same < position:
        text = f"states {position} tokens in common with the row it forked from, but differs at token {same}"
        yield view.block.finding("TM102", i, text, token=same, severity=ERROR)


@dataclass
class Cost:
    """Rows, traces and tokens that stand in more than one row."""

    rows: int = 0
    tokens: int = 0
    repeated: int = 0
    traces: int = 0
    last: str | None = None


def _cost_finish(run: Run) -> Iterator[Finding]:
    cost = run.state("TM109", Cost)
    if cost.traces and cost.rows > cost.traces:
        text = (
            f"{cost.rows / cost.traces:.2f} rows per run, {cost.repeated:,} of {cost.tokens:,} tokens "
            f"({cost.repeated / max(cost.tokens, 1):.1%}) repeat a prefix"
        )
        yield Finding("TM109", text, data={"rows": cost.rows, "runs": cost.traces, "repeated": cost.repeated})


@rule("TM109", "fragmentation", INFO, needs=(Need.IDS,), finish=_cost_finish)
def fragmentation(view: View) -> Iterator[Finding]:
    """Runs are spread over several rows that repeat each other's prefixes.

    **What it does.** Counts rows per run and the tokens that stand before a row's fork position.

    **Why it matters.** Repeated prefixes are computed again at each step unless the trainer shares them, and rows of
    one run must stay together for normalizers that count rollouts.

    **Example.** `3.40 rows per run, 61 % of the tokens repeat a prefix`.

    **How to fix.** Keep reasoning in the history, feed ids back as sampled, or train with shared prefixes.

    **Limits.** Needs our fork columns; other data is not counted.
    """
    cost, block = view.run.state("TM109", Cost), view.block
    for size, trace, position in zip(
        block.sizes.tolist(), block.scalar("trace_id"), block.scalar("fork_position"), strict=True
    ):
        if trace is None:
            continue
        cost.rows += 1
        cost.tokens += size
        cost.repeated += int(position or 0)
        cost.traces += trace != cost.last
        cost.last = trace
    return iter(())


@rule("TM107", "truncated-rollout", WARNING, needs=(Need.IDS,))
def truncated_rollout(view: View) -> Iterator[Finding]:
    """A rollout was cut off before the policy ended its turn.

    **What it does.** Reports rows that say `truncated`, and rows whose last turn is the policy's and has no stop token.

    **Why it is bad.** The reward of a cut-off run is often 0 for the cut alone, so the policy is pushed away from what
    it was doing; recipes differ on whether such rows count in the denominator.

    **Example.** `finish_reason: length` at 32,768 tokens, in the middle of a thought.

    **How to fix.** Raise the limit, or choose in the recipe what truncated rows mean. To accept a share of them:
    `--tolerance TM107=5%`.

    **Limits.** A row whose last token is a stop is complete, whatever its finish reason says.
    """
    block = view.block
    said = np.array([value is True for value in block.scalar("truncated")], dtype=bool)
    cut = {row: token for row, token, _ in block.first_per_row(open_ended(view))}
    limited = said & ~_closed_at_limit(view) & (block.sizes > 0)
    for row in sorted({*cut, *np.flatnonzero(limited).tolist()}):
        text = "the rollout says that it was truncated" if said[row] else "the last turn has no stop token"
        last = int(block.sizes[row]) - 1 - int(view.padding[block.offsets[row] : block.offsets[row + 1]].sum())
        yield block.finding("TM107", row, text, token=cut.get(row, max(last, 0)))


def _closed_at_limit(view: View) -> np.ndarray:
    """bool[R]: the engine says length, but the policy had just ended its turn."""
    block = view.block
    limited = np.array([str(reason) in _LIMITS for reason in block.scalar("stop")], dtype=bool)
    if view.run.lens is None or view.mask is None or not limited.any() or not len(block):
        return np.zeros(len(block.rows), dtype=bool)
    stops = view.grammar.stops if view.run.grammar is not None else view.lens.stops
    closed = np.zeros(len(block.rows), dtype=bool)
    places = np.flatnonzero(view.trained)
    last = np.zeros(len(block.rows), dtype=np.int64)
    last[block.row_of[places]] = places
    closed[block.row_of[places]] = True
    return limited & closed & np.isin(block.ids[last], list(stops))


_LIMITS = frozenset({"length", "max_tokens", "max_length"})


def open_ended(view: View) -> np.ndarray:
    """Last tokens (flat, ascending) of rows and packed documents that end inside an assistant's trained turn."""
    if view.run.grammar is None or view.mask is None or not len(view.turns.at):
        return np.zeros(0, dtype=np.int64)
    turns = view.turns
    last = (turns.role == Role.ASSISTANT) & (turns.stop < 0) & np.isin(turns.end, view.edges)
    body, end = turns.body[last], turns.end[last]
    text = np.concatenate([[0], np.cumsum(~view.padding)])
    place = body + text[end] - text[body] - 1  # padding stands at the end
    place = place[place >= body]
    ends = view.trained[place] & ~view.lens.special[view.safe[place]] & ~view.upset[view.block.row_of[place]]
    return place[ends]
