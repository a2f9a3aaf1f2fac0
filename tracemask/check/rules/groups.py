"""Rules about rewards and groups of rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracemask.check.context import Run
from tracemask.check.finding import INFO, Finding, Place
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

NEEDS = (Need.REWARDS,)


@dataclass(slots=True)
class Rollout:
    """What the rules about groups keep of a row: a few numbers, so that memory stays small."""

    row: int
    trace: str | None
    task: str | None
    reward: float | None
    advantage: float | None
    attempt: int | None
    prompt: int
    sampled: int
    n_sampled: int
    shard: str
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
    import numpy as np

    block = view.block
    begin, end = int(block.offsets[i]), int(block.offsets[i + 1])
    ids = block.ids[begin:end]
    mask = view.mask[begin:end] if view.mask is not None else np.zeros(0, dtype=bool)
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
        prompt=hash_of(ids[:first]),
        sampled=hash_of(sampled),
        n_sampled=len(sampled),
        shard=block.shards[i],
        fork=scalars.get("fork_row") is not None or bool(scalars.get("branch")),
        identity=text("id"),
    )


def hash_of(ids: Any) -> int:
    """64 bits of blake2b over ids: equal for equal ids on every machine."""
    import hashlib

    import numpy as np

    raw = np.ascontiguousarray(ids, dtype="<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def heads(members: list[Rollout]) -> list[Rollout]:
    """One row per rollout: of several branches of a trace, the first."""
    seen: dict[str, Rollout] = {}
    for member in members:
        seen.setdefault(member.trace if member.trace is not None else f"row {member.row}", member)
    return list(seen.values())


def place_of(member: Rollout) -> Place:
    """Where a rollout's row lies."""
    return Place(path=member.shard or None, row=member.row, id=member.identity)


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
