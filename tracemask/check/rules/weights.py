"""Rules about weight columns: what a step would train, and what it would divide by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.rules.authors import gradient_components
from tracemask.check.view import View


@dataclass
class Sums:
    """Nonzero weights per component, over the dataset."""

    nonzero: dict[str, int] = field(default_factory=dict)


def _nothing_finish(run: Run) -> Iterator[Finding]:
    sums = run.state("TM601", Sums).nonzero
    if sums and not any(sums.values()):
        yield Finding("TM601", f"no token has weight in any component ({', '.join(sorted(sums))}): the loss is 0")


@rule("TM601", "no-loss-tokens-in-step", ERROR, needs=(Need.WEIGHTS,), finish=_nothing_finish)
def no_loss_tokens(view: View) -> Iterator[Finding]:
    """No token has weight in any component.

    **What it does.** Counts nonzero weights per component over the dataset. (Training reports the same per step: the
    loss is 0 then, and training goes on.)

    **Why it is bad.** A step without loss tokens divides nothing by nothing; frameworks that do not define it give NaN.

    **Example.** Every group of the step has equal rewards and the recipe drops zero advantages.

    **How to fix.** Filter such groups before the step, or add a component that does not need advantages.

    **Limits.** Needs weight columns, from `tracemask materialize` or your own `weight.NAME`.
    """
    sums = view.run.state("TM601", Sums).nonzero
    for name, stream in view.block.weights.items():
        sums[name] = sums.get(name, 0) + int(np.count_nonzero(np.nan_to_num(stream)))
    return iter(())


@rule("TM603", "reward-or-logprob-missing-for-component", ERROR, needs=(Need.WEIGHTS,))
def missing_for_component(view: View) -> Iterator[Finding]:
    """A policy-gradient component weighs a row that has no reward, or a token that has no log-prob.

    **What it does.** Looks for nonzero weights of policy-gradient components in rows without reward and advantage, and
    on tokens without a log-prob in datasets that have log-probs.

    **Why it is bad.** Missing is not zero: a reward of 0 is a failed task, a log-prob of 0 is certainty.

    **Example.** A rollout whose verifier timed out has reward null and weight 1.

    **How to fix.** `missing_reward = "exclude"` leaves the rollout out and counts it; log what is missing.

    **Limits.** Components of other kinds (cross-entropy, KL to a reference) need neither.
    """
    block = view.block
    reading = gradient_components(view, logprobs=True)
    for name in gradient_components(view):
        stream = np.nan_to_num(block.weights[name]) != 0
        advantage = block.column("advantage", neutral=np.nan)
        bare = np.array(
            [
                reward is None and given is None
                for reward, given in zip(block.scalar("reward"), block.scalar("advantage"))
            ],
            dtype=bool,
        )
        lacking = bare[block.row_of] if len(block) else np.zeros(0, dtype=bool)
        if advantage is not None:
            lacking &= np.isnan(advantage)
        places = np.flatnonzero(stream & lacking)
        yield from block.each(
            "TM603", places, f"weight.{name} on {{n}} token{{s}} of a row without reward", cause="reward"
        )
        values = block.logprob
        if values is not None and name in reading:
            places = np.flatnonzero(stream & np.isnan(values) & ~lacking)
            text = f"weight.{name} on {{n}} token{{s}} without a log-prob"
            yield from block.each("TM603", places, text, cause="log-prob")


@rule("TM604", "first-token-of-a-row-weighted", WARNING, needs=(Need.MASK,))
def first_token_weighted(view: View) -> Iterator[Finding]:
    """The first token of a row is in the loss.

    **What it does.** Looks at token 0 of each row: in the mask, or with weight in any component.

    **Why it is bad.** No token stands before it, so nothing predicts it. Trainers drop it silently or predict it from
    the end of the row packed before it. Ours zeroes it and counts it.

    **Example.** A mask that marks the whole text of a pre-training row.

    **How to fix.** Mask the first token, or begin rows with bos.

    **Limits.** None known.
    """
    block = view.block
    first = block.offsets[:-1][block.sizes > 0]
    assert view.mask is not None
    flagged = view.mask[first].copy()
    for stream in block.weights.values():
        flagged |= np.nan_to_num(stream[first]) != 0
    flagged &= ~view.upset[block.row_of[first]] if len(first) else flagged
    yield from block.each("TM604", first[flagged], "the first token of the row is in the loss")


@dataclass
class Denominators:
    """Per component, a row per rollout: row, denominator, counted tokens, all tokens. groups: their names, in order."""

    rows: dict[str, list[tuple[int, float, int, int]]] = field(default_factory=dict)
    groups: dict[str, list[str | None]] = field(default_factory=dict)
    first: dict[str, Finding] = field(default_factory=dict)


def _denominators_finish(run: Run) -> Iterator[Finding]:
    held = run.state("TM606", Denominators)
    for name, rows in held.rows.items():
        # a materialized dataset of several steps has a denominator per step, of consecutive rows, on purpose
        cause = _cause(np.array(rows, dtype=np.float64), held.groups[name], steps=bool(run.metadata.get("recipe")))
        if cause:
            text = f"denominator.{name} follows {cause}"
            place = held.first[name].place
            yield Finding("TM606", text, place, cause=f"{name}: {cause}", data={"component": name})


PART = "of a part of the rows: a micro-batch or a rank was counted, not the step"


def _cause(rows: np.ndarray, groups: Sequence[str | None], *, steps: bool = False) -> str | None:
    """What a denominator follows that it must not; None where it is one number, or follows trained tokens or groups.

    steps: consecutive rows may be a step, known from the recipe in the metadata.
    """
    _, given, counted, size = rows.T
    if len(rows) < 4 or np.ptp(given) == 0 or _proportional(given, counted):
        return None  # one number, or a mean per row of counted tokens
    if np.ptp(size) > 0 and _proportional(given, size):
        return "the whole length of the row, context or padding included"
    if steps:
        return None
    return _part(given, counted, size, groups) or _part(given / np.maximum(counted, 1), counted, size, groups)


def _part(given: np.ndarray, counted: np.ndarray, size: np.ndarray, groups: Sequence[str | None]) -> str | None:
    """What rows with one denominator have counted together, next to each other (a micro-batch) or not (a rank)."""
    runs = _runs(given)
    equal = [_cut_again(runs, given, number) for number in (counted, size)]  # neighbours of one sum are one run
    for parts in (runs, *equal, [np.flatnonzero(given == value) for value in np.unique(given)]):
        if len(parts) < 2 or min(map(len, parts)) < 2 or _are_groups(parts, groups):
            continue
        means = np.array([given[part[0]] for part in parts])
        numbers = {
            f"the tokens {PART}": [counted[part].sum() for part in parts],
            f"the number {PART}": [len(part) for part in parts],
            f"all tokens, context included, {PART}": [size[part].sum() for part in parts],
            f"the padded size {PART}": [len(part) * size[part].max() for part in parts],
        }
        for cause, number in numbers.items():
            if np.ptp(number) > 0 and _proportional(means, np.array(number, dtype=np.float64)):
                return cause
    return None


def _cut_again(runs: list[np.ndarray], given: np.ndarray, number: np.ndarray) -> list[np.ndarray]:
    """Runs cut where what they count reaches their denominator again and again, to the run's end."""
    parts: list[np.ndarray] = []
    for run in runs:
        sums, value = np.cumsum(number[run]), given[run[0]]
        marks = np.flatnonzero(sums % value == 0) + 1 if value > 0 else np.zeros(0, dtype=np.int64)
        whole = len(marks) > 1 and sums[-1] == len(marks) * value
        parts += np.split(run, marks[:-1]) if whole else [run]
    return parts


def _are_groups(parts: list[np.ndarray], groups: Sequence[str | None]) -> bool:
    """Each part is one group of rollouts: then the denominator is the group's, a normalizer."""
    return all(len({groups[i] for i in part}) == 1 and groups[part[0]] is not None for part in parts)


def _proportional(x: np.ndarray, y: np.ndarray) -> bool:
    ratio = x / np.maximum(y, 1)
    return bool(np.ptp(ratio) <= 1e-6 * np.abs(ratio).max())


def _runs(values: np.ndarray) -> list[np.ndarray]:
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.split(np.arange(len(values)), cuts)


@rule(
    "TM606",
    "denominator-depends-on-batching",
    ERROR,
    needs=(Need.WEIGHTS, Need.DENOMINATORS),
    finish=_denominators_finish,
)
def denominator_depends(view: View) -> Iterator[Finding]:
    """A denominator column follows padding, the micro-batch or the rank.

    **What it does.** Reads `denominator.NAME` per row and tests what it is proportional to: the row's whole length
    (context counted), or, over rows that share one (next to each other: a micro-batch; spread: a rank), their trained
    tokens, their number, all their tokens, or their padded size.

    **Why it is bad.** The same data gives another gradient when the batch is cut differently; with gradient
    accumulation, rows of short micro-batches weigh more.

    **Example.** Loss means per micro-batch, averaged over the accumulation: (4/2 + 3/6)/2 = 1.25 instead of 7/8.

    **How to fix.** Divide by the count of the whole step; `tracemask materialize` writes such denominators.

    **Limits.** Denominators that differ by group (known by `group_id`) or by row for their own trained tokens are
    normalizers, and pass. Four rows at least. In shards of `tracemask materialize` consecutive rows may be a step: only
    a row's length is tested there.
    """
    held, block = view.run.state("TM606", Denominators), view.block
    for name, stream in block.weights.items():
        column = block.column(f"denominator.{name}", neutral=np.nan)
        if column is None:
            continue
        on = np.nan_to_num(stream) != 0
        for row, token, count in block.first_per_row(np.flatnonzero(on & np.isfinite(column))):
            index = block.rows[row].index
            given = float(column[block.offsets[row] + token])
            rows = held.rows.setdefault(name, [])
            if not rows:
                held.first[name] = block.finding("TM606", row, "", token=token)
            if len(rows) < 1 << 16:
                group = block.rows[row].scalars.get("group_id")
                held.groups.setdefault(name, []).append(None if group is None else str(group))
                rows.append((index, given, count, int(block.sizes[row])))
    return iter(())
