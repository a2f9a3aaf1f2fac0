"""The global order in which rows are read: shuffled, sliced over ranks, resumable in O(1). Knows no batch or weight.

Order = f(seed, epoch, position), independent of ranks and workers. A unit is a row or a whole group of rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.choice import Choice
from tracemask.store.pack import PACKING_VERSION
from tracemask.store.permutation import Permutation
from tracemask.store.reader import Dataset

_BLOCK = 4096  # positions permuted at a time


class Unit(Choice):
    """What is never split over steps."""

    ROW = "row"
    GROUP = "group"  # all rows of one group_id; a row without one goes with its trace


class Order(Choice):
    """How units follow each other."""

    SHUFFLED = "shuffled"
    STORED = "stored"


class Incomplete(Choice):
    """What becomes of a group with fewer rollouts than expected."""

    USE = "use"
    WAIT = "wait"  # left out and listed in `waiting`, until the dataset has the rest
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class State:
    """Where a stream stands. consumed: units of this epoch that all ranks together have taken."""

    dataset: str
    seed: int
    epoch: int
    consumed: int
    unit: str
    order: str
    packing: str = PACKING_VERSION

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> State:
        """The state that `to_json` gave. TM935 where it is none."""
        fix = "start the epoch again"
        try:
            state = cls(**value)
        except TypeError as error:
            raise StoreError("TM935", what=f"not a reader state: {error}", fix=fix) from None
        for name in ("seed", "epoch", "consumed"):
            if type(getattr(state, name)) is not int:
                raise StoreError("TM935", what=f"not a reader state: {name} {getattr(state, name)!r}", fix=fix)
        return state


class Stream:
    """Row numbers of a dataset in global order, this rank's slice of them.

    Iterating yields this rank's units of the current epoch as lists of row numbers; `steps(n)` yields them n global
    units at a time. group_size: rollouts a group must have, needed where incomplete is WAIT or ERROR (TM605).
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        seed: int = 0,
        order: Order | str = Order.SHUFFLED,
        unit: Unit | str = Unit.ROW,
        group_size: int | None = None,
        incomplete: Incomplete | str = Incomplete.USE,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if not 0 <= rank < world:
            raise StoreError("TM900", what=f"rank {rank} of {world}", fix="give 0 ≤ rank < world")
        self.dataset, self.seed, self.rank, self.world = dataset, seed, rank, world
        self.order, self.unit = Order(order), Unit(unit)
        self.epoch = self.consumed = 0
        self.waiting: list[str] = []
        self._groups = self._grouped(group_size, Incomplete(incomplete)) if self.unit is Unit.GROUP else None
        self.n = len(dataset) if self._groups is None else len(self._groups)
        if self.n == 0:
            raise StoreError("TM605", what="no complete group", fix="lower group_size, or use incomplete groups")

    def _grouped(self, size: int | None, incomplete: Incomplete) -> list[np.ndarray]:
        if size is None and incomplete is not Incomplete.USE:
            fix = "say how many rollouts a group must have: group_size"
            raise StoreError("TM900", what=f"incomplete={incomplete.value} without a group size", fix=fix)
        groups, rollouts = group_rows(self.dataset)
        out = []
        for key, rows in groups.items():
            if size is not None and rollouts[key] < size and incomplete is not Incomplete.USE:
                if incomplete is Incomplete.ERROR:
                    what = f"group {key!r} has {rollouts[key]} of {size} rollouts"
                    raise StoreError("TM605", what=what, fix="wait for the rest, or use incomplete groups")
                self.waiting.append(key)
            else:
                out.append(np.array(rows, dtype=np.int64))
        return out

    def at(self, start: int, stop: int) -> list[list[int]]:
        """Row numbers of the units at global positions [start, stop) of the current epoch."""
        positions = np.arange(start, min(stop, self.n), dtype=np.int64)
        if self.order is Order.SHUFFLED and len(positions):
            positions = Permutation(self.n, seed=self.seed, epoch=self.epoch).take(positions)
        if self._groups is None:
            return [[index] for index in positions.tolist()]
        return [self._groups[index].tolist() for index in positions.tolist()]

    def steps(self, units: int) -> Iterator[list[list[int]]]:
        """This rank's units of each global step of `units` units, to the end of the epoch; the last may be smaller.

        Position p of a step belongs to rank p mod world. `consumed` counts what was handed out: save the
        state when a step is done, before the next is asked for.
        """
        if units < 1:
            raise StoreError("TM900", what=f"steps of {units} units", fix="give 1 or more")
        block = max(units, _BLOCK // units * units)
        while self.consumed < self.n:
            start = self.consumed
            found = self.at(start, start + block)
            for offset in range(0, len(found), units):
                step = found[offset : offset + units]
                self.consumed = start + offset + len(step)
                yield step[self.rank :: self.world]

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's units to the end of the epoch."""
        for step in self.steps(self.world):
            yield from step

    def __len__(self) -> int:
        """Units of an epoch over all ranks."""
        return self.n

    def next_epoch(self) -> None:
        """Goes to the start of the next epoch, which has another order."""
        self.epoch, self.consumed = self.epoch + 1, 0

    def state(self, *, consumed: int | None = None) -> State:
        """Where this stream stands. consumed: what was really used, where a loader reads ahead."""
        taken = self.consumed if consumed is None else consumed
        identity = self.dataset.fingerprint
        return State(identity, self.seed, self.epoch, taken, self.unit.value, self.order.value)

    def resume(self, state: State) -> None:
        """Continues at `state`, in O(1). TM935 where it belongs to another dataset, order or packing."""
        mine = self.state()
        for name in ("dataset", "unit", "order", "packing"):
            if getattr(state, name) != getattr(mine, name):
                what = f"the state is of another {name}: {getattr(state, name)!r}, here {getattr(mine, name)!r}"
                raise StoreError("TM935", what=what, fix="resume on the data and settings it was saved with")
        if not 0 <= state.consumed <= self.n:
            raise StoreError("TM935", what=f"{state.consumed} of {self.n} units consumed", fix="start the epoch again")
        self.seed, self.epoch, self.consumed = state.seed, state.epoch, state.consumed


def group_rows(dataset: Dataset) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Row numbers by group, in order of first appearance, and how many rollouts (traces) each group has.

    A row without a group_id is grouped with the other rows of its trace, a row without a trace stands alone.
    """
    scalars = dataset.scalars(["group_id", "trace_id"])
    n = len(dataset)
    group_ids = scalars.get("group_id") or [None] * n
    trace_ids = scalars.get("trace_id") or [None] * n
    groups: dict[str, list[int]] = {}
    traces: dict[str, set[str]] = {}
    for index, (group, trace) in enumerate(zip(group_ids, trace_ids, strict=True)):
        run = f"row {index}" if trace is None else f"trace {trace}"
        key = run if group is None else str(group)
        groups.setdefault(key, []).append(index)
        traces.setdefault(key, set()).add(run)
    return groups, {key: len(found) for key, found in traces.items()}
