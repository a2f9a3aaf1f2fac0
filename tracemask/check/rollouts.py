"""What rules about rewards and groups keep of each row: a few numbers, by group. Knows no rule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tracemask.check.finding import Place
from tracemask.check.view import View

T = TypeVar("T")


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
    line: int | None
    fork: bool
    identity: str | None


@dataclass
class Groups:
    """Rollouts by group, in row order; rows without a group are not here."""

    by_id: dict[str, list[Rollout]] = field(default_factory=dict)
    loose: list[Rollout] = field(default_factory=list)


def gather(view: View) -> Groups:
    """The run's groups with this block's rows added; every rule may call it, only the first call adds."""
    groups: Groups = view.run.state("groups", Groups)
    block = view.block
    if "gathered" in block.facts:
        return groups
    block.facts["gathered"] = True
    for i, row in enumerate(block.rows):
        rollout = _rollout(view, i, row.scalars)
        name = row.scalars.get("group_id")
        if name is None:
            groups.loose.append(rollout)
        else:
            groups.by_id.setdefault(str(name), []).append(rollout)
    return groups


def _rollout(view: View, i: int, scalars: Mapping[str, Any]) -> Rollout:
    block = view.block
    begin, end = int(block.offsets[i]), int(block.offsets[i + 1])
    ids = block.ids[begin:end]
    mask = view.mask[begin:end] if view.mask is not None else np.zeros(0, dtype=bool)
    if view.stored_authors and len(mask):
        mask = mask & view.policy[begin:end]
    own = mask.any() if len(mask) else False
    first = int(np.argmax(mask)) if own else len(ids)
    sampled = ids[mask] if own else ids[:0]
    return Rollout(
        row=block.rows[i].index,
        trace=_read(scalars, "trace_id", str),
        task=_read(scalars, "task_id", str),
        reward=_read(scalars, "reward", float),
        advantage=_constant(view, begin, end) if scalars.get("advantage") is None else float(scalars["advantage"]),
        attempt=_read(scalars, "attempt", int),
        prompt=None
        if view.wrong_vocabulary[i]
        else _prompt_hash(view, begin, begin + _prompt_end(view, begin, end, first)),
        first=first,
        sampled=hash_of(sampled),
        n_sampled=len(sampled),
        shard=block.shards[i],
        path=block.path or block.shards[i] or None,
        line=block.lines[i],
        fork=scalars.get("fork_row") is not None or bool(scalars.get("branch")),
        identity=_read(scalars, "id", str),
    )


def _read(scalars: Mapping[str, Any], name: str, kind: Callable[[Any], T]) -> T | None:
    value = scalars.get(name)
    return None if value is None else kind(value)


def _constant(view: View, begin: int, end: int) -> float | None:
    """The advantage that every trained token of a row has in a per-token column; None where they differ."""
    column = view.block.column("advantage", neutral=np.nan)
    if column is None or view.mask is None:
        return None
    given = column[begin:end][view.trained[begin:end]]
    same = len(given) and np.isfinite(given).all() and np.ptp(given) == 0
    return float(given[0]) if same else None


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
    return Place(path=member.path, row=member.row, token=member.first, id=member.identity, line=member.line)
