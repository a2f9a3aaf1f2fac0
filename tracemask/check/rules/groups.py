"""Rules about rewards and groups of rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, INFO, WARNING, Finding
from tracemask.check.rollouts import Groups, gather, heads, place_of
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

NEEDS = (Need.REWARDS, Need.GROUPS)


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
        told = [member for member in rollouts if member.task is not None]
        tasks = {member.task for member in told}
        rollouts = [member for member in rollouts if member.prompt is not None]
        prompts = {member.prompt for member in rollouts}
        if len(tasks) > 1:
            other = next(member for member in told if member.task != told[0].task)
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
