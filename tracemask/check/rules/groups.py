"""Rules about rewards and groups of rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, INFO, WARNING, Finding, Place
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

NEEDS = (Need.REWARDS, Need.GROUPS)


@dataclass(slots=True)
class Rollout:
    """What the rules about groups keep of a row: a few numbers, so that memory stays small."""

    row: int
    trace: str | None
    task: str | None
    reward: float | None
    advantage: float | None
    attempt: int | None
    prompt: int | None
    first: int
    sampled: int
    n_sampled: int
    shard: str
    path: str | None
    fork: bool
    identity: str | None


@dataclass
class Groups:
    """Rollouts by group, in row order; rows without a group are not here."""

    by_id: dict[str, list[Rollout]] = field(default_factory=dict)
    loose: list[Rollout] = field(default_factory=list)
    done: int = -1


def gather(view: View) -> Groups:
    """The run's groups with this block's rows added; every rule may call it, only the first call adds."""
    groups: Groups = view.run.state("groups", Groups)
    block = view.block
    if not block.rows or groups.done >= block.rows[-1].index:
        return groups
    groups.done = block.rows[-1].index
    for i, row in enumerate(block.rows):
        rollout = _rollout(view, i, row.scalars)
        name = row.scalars.get("group_id")
        if name is None:
            groups.loose.append(rollout)
        else:
            groups.by_id.setdefault(str(name), []).append(rollout)
    return groups


def _rollout(view: View, i: int, scalars: Any) -> Rollout:
    block = view.block
    begin, end = int(block.offsets[i]), int(block.offsets[i + 1])
    ids = block.ids[begin:end]
    mask = view.mask[begin:end] if view.mask is not None else np.zeros(0, dtype=bool)
    if view.stored_authors and len(mask):
        mask = mask & view.policy[begin:end]
    own = mask.any() if len(mask) else False
    first = int(np.argmax(mask)) if own else len(ids)
    text = lambda name: None if scalars.get(name) is None else str(scalars.get(name))  # noqa: E731
    number = lambda name: None if scalars.get(name) is None else float(scalars.get(name))  # noqa: E731
    sampled = ids[mask] if own else ids[:0]
    return Rollout(
        row=block.rows[i].index,
        trace=text("trace_id"),
        task=text("task_id"),
        reward=number("reward"),
        advantage=number("advantage"),
        attempt=None if scalars.get("attempt") is None else int(scalars["attempt"]),
        prompt=None
        if view.wrong_vocabulary[i]
        else _prompt_hash(view, begin, begin + _prompt_end(view, begin, end, first)),
        first=first,
        sampled=hash_of(sampled),
        n_sampled=len(sampled),
        shard=block.shards[i],
        path=block.path or block.shards[i] or None,
        fork=scalars.get("fork_row") is not None or bool(scalars.get("branch")),
        identity=text("id"),
    )


def _prompt_end(view: View, begin: int, end: int, first: int) -> int:
    """Where the row's prompt ends: before the policy's first word, trained in this row or not."""
    if view.author is None or not view.policy[begin:end].any():
        return first
    return int(np.argmax(view.policy[begin:end]))


def _prompt_hash(view: View, begin: int, end: int) -> int:
    """Of the prompt's bytes where they are known, so that another split of the same text is the same prompt."""
    if view.run.lens is None:
        return hash_of(view.block.ids[begin:end])
    bos = view.lens.bos
    while bos is not None and begin < end and view.block.ids[begin] == bos:
        begin += 1
    raw, offsets = view.raw
    return hash_of(np.frombuffer(raw[int(offsets[begin]) : int(offsets[end])], dtype=np.uint8))


def hash_of(ids: Any) -> int:
    """64 bits of blake2b over ids: equal for equal ids on every machine."""
    import hashlib

    raw = np.ascontiguousarray(ids, dtype="<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def heads(members: list[Rollout]) -> list[Rollout]:
    """One row per rollout: of several branches of a trace, the first."""
    seen: dict[str, Rollout] = {}
    for member in members:
        seen.setdefault(member.trace if member.trace is not None else f"row {member.row}", member)
    return list(seen.values())


def place_of(member: Rollout) -> Place:
    """A rollout's first sampled token."""
    return Place(path=member.path, row=member.row, token=member.first, id=member.identity)


def _flat_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    for name, members in groups.by_id.items():
        rewards = [member.reward for member in heads(members)]
        known = [reward for reward in rewards if reward is not None and math.isfinite(reward)]
        if len(known) >= 2 and len(known) == len(rewards) and max(known) == min(known):
            text = f"group {name}: all {len(known)} rewards are {known[0]:g}, so every advantage is 0"
            yield Finding("TM406", text, place_of(members[0]), data={"group": name, "reward": known[0]})


@rule("TM406", "zero-advantage-group", INFO, needs=NEEDS, finish=_flat_finish)
def zero_advantage_group(view: View) -> Iterator[Finding]:
    """All rollouts of a group have the same reward.

    **What it does.** Compares the rewards within each group.

    **Why it matters.** Group-relative advantages are then all zero: the group costs compute, counts in token means and
    teaches nothing. Many such groups mean that tasks are too easy or too hard.

    **Example.** `group task-17: all 8 rewards are 0`.

    **How to fix.** Resample or filter such tasks (DAPO calls it dynamic sampling).

    **Limits.** A component that does not use advantages (cross-entropy on tool output) still learns from the group.
    """
    gather(view)
    return iter(())


def _mixed_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    for name, members in groups.by_id.items():
        rollouts = [member for member in heads(members) if not member.fork]
        tasks = {member.task for member in rollouts if member.task is not None}
        rollouts = [member for member in rollouts if member.prompt is not None]
        prompts = {member.prompt for member in rollouts}
        if len(tasks) > 1:
            other = next(member for member in rollouts if member.task not in (None, rollouts[0].task))
            text = f"group {name} holds rollouts of {len(tasks)} tasks"
            yield Finding("TM407", text, place_of(other), cause="tasks", data={"group": name})
        elif len(prompts) > 1:
            other = next(member for member in rollouts if member.prompt != rollouts[0].prompt)
            whole = all(member.trace is not None for member in rollouts)
            severity = None if whole and not tasks else WARNING
            text = f"group {name} holds rollouts of {len(prompts)} different prompts"
            yield Finding("TM407", text, place_of(other), severity, "prompts", {"group": name})


@rule("TM407", "ragged-group", ERROR, needs=(Need.GROUPS, Need.MASK), finish=_mixed_finish)
def ragged_group(view: View) -> Iterator[Finding]:
    """A group mixes rollouts of different tasks or prompts.

    **What it does.** Compares task ids and the ids before the first sampled token within each group. Different prompts
    are a warning only under one task id (some harnesses write paths or times into the prompt) and where rows do not say
    which trace they belong to (a row may then be a later part of a run, with a compacted context).

    **Why it is bad.** The mean reward of a group is the baseline of its members. Over different tasks it is none, and
    easy tasks are rewarded for being easy.

    **Example.** A flat batch of 64 rows cut into groups of 8 after a filter removed one row.

    **How to fix.** Store a `group_id` with each rollout; never derive groups from positions.

    **Limits.** Later branches of a trace have other contexts by nature and are not compared.
    """
    gather(view)
    return iter(())


Formula = Callable[[np.ndarray], np.ndarray]


def _formulas() -> dict[str, Formula]:
    def scaled(ddof: int, eps: float) -> Formula:
        def value(r: np.ndarray) -> np.ndarray:
            return (r - r.mean()) / (r.std(ddof=ddof) + eps) if len(r) > ddof else np.zeros_like(r)

        return value

    out: dict[str, Formula] = {
        "r - mean": lambda r: r - r.mean(),
        "r": lambda r: r,
        "leave-one-out": lambda r: (r - r.mean()) * len(r) / max(len(r) - 1, 1),
        "(r - mean) / mean": lambda r: (r - r.mean()) / r.mean() if r.mean() > 0 else np.zeros_like(r),
    }
    for ddof in (0, 1):
        for eps in (0.0, 1e-8, 1e-6, 1e-4):
            out[f"(r - mean) / (std{ddof} + {eps:g})"] = scaled(ddof, eps)
    return out


def _matches(formula: Formula, rewards: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.nan_to_num(formula(rewards))
    return np.abs(value - advantages) <= 1e-4 * np.maximum(1, np.abs(value))


def _recompute_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    cases = []
    for name, members in groups.by_id.items():
        known = [m for m in heads(members) if m.reward is not None and m.advantage is not None]
        if len(known) >= 2 and len(known) == len(heads(members)):
            rewards = np.array([m.reward for m in known], dtype=np.float64)
            cases.append((name, known, rewards, np.array([m.advantage for m in known], dtype=np.float64)))
    varied = [case for case in cases if np.ptp(case[2]) > 0]
    if not varied:
        return
    formulas = _formulas()
    right = {
        key: sum(bool(_matches(formula, rewards, given).all()) for _, _, rewards, given in varied)
        for key, formula in formulas.items()
    }
    best = max(right, key=lambda key: right[key])
    if right[best] < 0.5 * len(varied):
        if len(varied) >= 2 and not right[best]:
            text = f"no known estimator gives the advantages of any of {len(varied)} groups"
            yield Finding("TM408", text, place_of(varied[0][1][0]), WARNING, "unknown estimator")
        return
    for name, known, rewards, given in cases:
        wrong = np.flatnonzero(~_matches(formulas[best], rewards, given))
        if len(wrong):
            first = known[int(wrong[0])]
            text = f"group {name}: {len(wrong)} advantages are not {best} of the rewards, as in the other groups"
            yield Finding("TM408", text, place_of(first), data={"group": name, "formula": best})


@rule(
    "TM408",
    "advantage-does-not-recompute",
    ERROR,
    needs=(Need.REWARDS, Need.GROUPS, Need.ADVANTAGES),
    finish=_recompute_finish,
)
def advantage_recomputes(view: View) -> Iterator[Finding]:
    """A group's advantages are not what its rewards give.

    **What it does.** Finds the estimator that explains most groups (r − mean, divided by a standard deviation of either
    kind with the usual ε, leave-one-out, reward itself, r / mean − 1) and reports the groups that it does not explain.

    **Why it is bad.** Rows were lost, repeated or moved between groups after the advantages were computed, or rewards
    changed: the signs may be wrong.

    **Example.** A filter dropped two of eight rollouts; the other six keep advantages from the mean of eight.

    **How to fix.** Compute advantages last, from what is trained; our shards keep rewards and let the recipe do it.

    **Limits.** Where no known estimator explains half of the groups, this is one warning at most: yours may be another.
    """
    gather(view)
    return iter(())


def _duplicates_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    for name, members in groups.by_id.items():
        first: dict[int, Rollout] = {}
        for member in heads(members):
            if member.n_sampled < 16:
                continue
            twin = first.setdefault(member.sampled, member)
            if twin is not member:
                text = f"group {name}: {member.n_sampled} sampled tokens are those of row {twin.row}"
                yield Finding("TM409", text, place_of(member), data={"group": name, "twin": twin.row})


@rule("TM409", "duplicate-completions", WARNING, needs=(Need.GROUPS, Need.MASK), finish=_duplicates_finish)
def duplicate_completions(view: View) -> Iterator[Finding]:
    """Two rollouts of a group sampled exactly the same tokens.

    **What it does.** Compares the sampled ids of a group's rollouts, from 16 tokens on.

    **Why it is bad.** At temperature 1 this does not happen by chance: one rollout was logged twice, or all were
    sampled with one seed. The group's baseline counts it double.

    **Example.** A retry that was logged beside the attempt it retried.

    **How to fix.** Drop the copies, give each request its own seed.

    **Limits.** Greedy sampling gives equal rollouts rightly; then a group has nothing to compare.
    """
    gather(view)
    return iter(())


def _bias_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    every = [m for members in [*groups.by_id.values(), groups.loose] for m in heads(members) if m.reward is not None]
    if len(every) < 8:
        return
    rewards = np.array([m.reward for m in every], dtype=np.float64)
    lengths = np.array([m.n_sampled for m in every], dtype=np.float64)
    if np.ptp(rewards) == 0 or np.ptp(lengths) == 0:
        return
    r = float(np.corrcoef(rewards, lengths)[0, 1])
    high, low = lengths[rewards > np.median(rewards)], lengths[rewards <= np.median(rewards)]
    words = (
        f"mean length {high.mean():,.0f} above the median reward, {low.mean():,.0f} at or below" if len(high) else ""
    )
    text = f"correlation of sampled length with reward is {r:+.2f} over {len(every)} rollouts"
    yield Finding(
        "TM410", f"{text}; {words}" if words else text, data={"correlation": round(r, 4), "rollouts": len(every)}
    )


@rule("TM410", "length-bias", INFO, needs=(Need.REWARDS, Need.MASK), finish=_bias_finish)
def length_bias(view: View) -> Iterator[Finding]:
    """How the length of a rollout goes with its reward.

    **What it does.** Correlates sampled tokens with reward over all rollouts, and states the mean lengths.

    **Why it matters.** A mean per sequence gives each token of a long rollout less weight: with bad rollouts longer
    than good ones, their tokens are punished less, and answers grow. The normalizer decides how much.

    **Example.** `correlation of sampled length with reward is -0.61`.

    **How to fix.** `tracemask explain --recipe NAME` shows the weights per token under every normalizer.

    **Limits.** Eight rollouts at least; a report, never a judgement.
    """
    gather(view)
    return iter(())


def _incomplete_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    sizes = {name: len(heads(members)) for name, members in groups.by_id.items()}
    wanted = run.options.group_size
    if wanted is None:
        if len(sizes) < 3:
            return
        values, counts = np.unique(list(sizes.values()), return_counts=True)
        common = int(values[counts.argmax()])
        if counts.max() < 0.6 * len(sizes):
            return
        wanted = common
    for name, size in sizes.items():
        if size < wanted:
            text = f"group {name} has {size} of {wanted} rollouts"
            yield Finding("TM605", text, place_of(groups.by_id[name][0]), data={"group": name, "size": size})


@rule("TM605", "incomplete-group", WARNING, needs=(Need.GROUPS,), finish=_incomplete_finish)
def incomplete_group(view: View) -> Iterator[Finding]:
    """A group has fewer rollouts than the others (or than `--group-size`).

    **What it does.** Counts rollouts per group; what three fifths of the groups have is taken as the size, unless it
    is given.

    **Why it is bad.** Lost rollouts are rarely lost at random: the long and the failed ones time out, and the group's
    baseline moves.

    **Example.** `group task-12 has 5 of 8 rollouts`.

    **How to fix.** Complete the group, or choose in the recipe: `[group] incomplete = "keep" | "drop" | "error"`.

    **Limits.** Datasets with groups of many sizes are only judged with `--group-size`.
    """
    gather(view)
    return iter(())


def _spread_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    for name, members in groups.by_id.items():
        shards = dict.fromkeys(member.shard for member in members)
        if len(shards) > 1:
            other = next(member for member in members if member.shard != members[0].shard)
            yield Finding("TM507", f"group {name} lies in {len(shards)} shards", place_of(other), data={"group": name})


@rule("TM507", "group-split-across-shards", WARNING, needs=(Need.GROUPS,), finish=_spread_finish)
def group_split(view: View) -> Iterator[Finding]:
    """The rollouts of one group lie in several shards.

    **What it does.** Notes the shard of each rollout by group.

    **Why it is bad.** A reader that shuffles shards and trains as it reads sees half a group, with half a baseline.

    **Example.** Rows written in the order of completion.

    **How to fix.** Sort the log by group before converting, or use our reader, which keeps groups whole in a step.

    **Limits.** Datasets in one file are not concerned.
    """
    gather(view)
    return iter(())
