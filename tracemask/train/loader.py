"""Steps of whole groups in a deterministic order, laid, packed and handed out as micro-batches. Knows no model.

Every rank plans the same global step and takes its own trees; counts become global by one all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tracemask.core.errors import TrainError
from tracemask.core.finding import Finding, Severity
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import Advantages, compute, for_step
from tracemask.recipe.keys import name_of
from tracemask.recipe.rollouts import as_number, members_of
from tracemask.recipe.step import LaidRow, Step, lay_step
from tracemask.store.pack import PACKING_VERSION, Overlong, cut
from tracemask.store.permutation import Permutation
from tracemask.train.batching import selected, work_of
from tracemask.train.config import Packing
from tracemask.train.distributed import World
from tracemask.train.plan import MicroBatch, Rollout, Tree, fill, fit, grow, share
from tracemask.train.sources import Rows
from tracemask.train.step import Work
from tracemask.train.vocabulary import must_know


@dataclass(frozen=True, slots=True)
class Policy:
    """How steps are cut from a dataset and packed; see TrainConfig for each field."""

    groups_per_step: int | None = None  # None: the whole dataset is one step
    tokens_per_batch: int = 8192
    packing: Packing = Packing.AUTO
    overlong: Overlong = Overlong.ERROR
    shuffle: bool = True
    seed: int = 0
    policy_version: int | None = None


@dataclass(slots=True)
class Loaded:
    """One step on this rank. works: its micro-batches. counts: selected tokens per component over all ranks.

    facts: numbers of the global step (rollouts, rows, trees, tokens, slots, reward, …). ids: of each micro-batch's
    slots, on the CPU.
    """

    index: int
    works: list[Work]
    step: Step
    facts: dict[str, float]
    ids: list[np.ndarray]
    findings: list[Finding] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Selected tokens of each component, all ranks."""
        return self.step.counts

    def must_be_known(self, vocab: int) -> None:
        """TrainError TM506 where a slot holds an id that a model of `vocab` ids does not know."""
        must_know(vocab, self.ids, (laid.row for laid in self.step.rows))


class Loader:
    """Steps by number: `step(k)` depends on the dataset, the recipe and the policy alone, so any k can come first."""

    def __init__(
        self,
        dataset: Rows,
        recipe: Recipe,
        policy: Policy,
        *,
        world: World | None = None,
        dtype: torch.dtype = torch.float32,
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        self.dataset, self.recipe, self.policy = dataset, recipe, policy
        self.world, self.dtype, self.token_bytes = world or World(), dtype, token_bytes
        # foreign data may have no scalar at all, and a column's length is what tells how many rows there are
        self.scalars = {"trace_id": [None] * len(dataset), **dataset.scalars()}
        self.advantages = compute(recipe, self.scalars)
        self.members = members_of(self.advantages.group)  # row numbers of each group, in stored order
        self.skipped: set[str] = set()

    @property
    def steps_per_epoch(self) -> int:
        """The last step of an epoch may hold fewer groups; no step crosses an epoch."""
        return -(-len(self.members) // self._groups)

    @property
    def _groups(self) -> int:
        return self.policy.groups_per_step or len(self.members)

    def rows_of(self, index: int) -> list[list[int]]:
        """Row numbers of each group of step `index` (0-based, counted through epochs)."""
        epoch, within = divmod(index, self.steps_per_epoch)
        count = len(self.members)
        places = range(within * self._groups, min(count, (within + 1) * self._groups))
        if not self.policy.shuffle:
            return [self.members[place].tolist() for place in places]
        order = Permutation(count, seed=self.policy.seed, epoch=epoch).take(np.arange(places.start, places.stop))
        return [self.members[group].tolist() for group in order]

    def plan(self, index: int) -> list[list[Tree]]:
        """The global step: trees of every group. Rows too long are cut, skipped or refused as the policy says."""
        return [self._grown(self._rollouts(rows)) for rows in self.rows_of(index)]

    def _grown(self, group: list[Rollout]) -> list[Tree]:
        return grow(group, budget=self.policy.tokens_per_batch, packing=self.policy.packing)

    def _rollouts(self, rows: list[int]) -> list[Rollout]:
        by_rollout: dict[int, list[int]] = {}
        for row in rows:
            by_rollout.setdefault(int(self.advantages.rollout[row]), []).append(row)
        fitted = []
        for numbers in by_rollout.values():
            read = [self.dataset.row(row) for row in numbers]
            ids = tuple(np.asarray(row["token_ids"]) for row in read)
            whole = Rollout(name_of(read[0]), tuple(numbers), ids)
            kept = fit(
                whole,
                budget=self.policy.tokens_per_batch,
                packing=self.policy.packing,
                overlong=self.policy.overlong,
            )
            if kept is not whole:
                self.skipped.add(whole.name)
            if kept is not None:
                fitted.append(kept)
        return fitted

    def step(self, index: int) -> Loaded:
        """Step `index` on this rank. Collective: every rank calls it with the same index."""
        groups = self.plan(index)
        trees = [tree for group in groups for tree in group]
        mine = share(trees, self.world.size)[self.world.rank]
        kept = {row: len(ids) for tree in mine for one in tree.rollouts for row, ids in zip(one.rows, one.ids)}
        rows = [cut(self.dataset.row(row), length) for row, length in kept.items()]
        everywhere = [row for tree in trees for row in tree.rows]
        version = None if self.policy.policy_version is None else self.policy.policy_version + index
        advantages = for_step(self.recipe, self.scalars, self.advantages, everywhere)
        laid = lay_step(
            self.recipe,
            rows,
            advantages,
            reduce=self.world.add_int,
            policy_version=version,
            token_bytes=self.token_bytes,
        )
        by_row = {one.row.index: one for one in laid.rows}
        works, ids = [], []
        for micro in self._packed(mine, by_row):
            layout = micro.lay_out()
            members = [by_row[row] for row in micro.rows]
            works.append(work_of(layout, members, device=self.world.device, dtype=self.dtype))
            ids.append(layout.ids)
        return Loaded(index, works, laid, self._facts(everywhere, trees, advantages), ids, self._findings(laid))

    def _packed(self, mine: list[Tree], laid: Mapping[int, LaidRow]) -> list[MicroBatch]:
        """This rank's micro-batches, without what no target needs: rows without one, and tokens after the last."""
        groups: dict[int, list[Rollout]] = {}
        for tree in mine:
            for rollout in tree.rollouts:
                needed = trimmed(rollout, laid)
                if needed is not None:
                    groups.setdefault(laid[rollout.rows[0]].group, []).append(needed)
        trees = [tree for group in groups.values() for tree in self._grown(group)]
        return fill(trees, budget=self.policy.tokens_per_batch)

    def _facts(self, rows: list[int], trees: list[Tree], advantages: Advantages) -> dict[str, float]:
        first = {int(self.advantages.rollout[row]): row for row in reversed(rows)}
        facts = {
            "groups": float(len({int(self.advantages.group[row]) for row in rows})),
            "rollouts": float(len(first)),
            "rows": float(len(rows)),
            "trees": float(len(trees)),
            "tokens": float(sum(tree.tokens for tree in trees)),
            "slots": float(sum(tree.slots for tree in trees)),
        }
        rewards = self._rewards(rows)
        if rewards:
            facts["reward"] = float(np.mean(rewards))
        values = advantages.values[sorted(first.values())]
        values = values[~np.isnan(values)]
        if len(values) and self.recipe.advantage.estimator != "none":
            facts["advantage_std"] = float(np.std(values))
        return facts

    def _rewards(self, rows: list[int]) -> list[float]:
        """The recipe's reward of each rollout that has one, as recorded: before penalties."""
        column = self.scalars.get(self.recipe.reward.column, self.scalars.get("reward"))
        if column is None:
            return []
        found: dict[int, float] = {}
        for row in rows:
            value = as_number(column[row])
            if value == value:
                found[int(self.advantages.rollout[row])] = value
        return [found[rollout] for rollout in sorted(found)]

    def _findings(self, laid: Step) -> list[Finding]:
        """Of the step, and of the dataset: groups that teach nothing, rollouts that do not fit."""
        return [*laid.findings, *self.advantages.findings, *self._left_out()]

    def _left_out(self) -> list[Finding]:
        if not self.skipped:
            return []
        what = "cut" if self.policy.overlong is Overlong.TRUNCATE else "left out"
        message = f"{len(self.skipped)} rollouts are longer than {self.policy.tokens_per_batch} slots: {what} so far"
        data: dict[str, object] = {"rollouts": sorted(self.skipped)[:20], "count": len(self.skipped)}
        return [Finding("TM602", message, severity=Severity.WARNING, data=data)]

    def state(self, done: int) -> dict[str, Any]:
        """What fixes the order of steps, and how many are done."""
        return {
            "dataset": self.dataset.fingerprint,
            "seed": self.policy.seed,
            "shuffle": self.policy.shuffle,
            "groups_per_step": self._groups,
            "steps_done": done,
            "packing": PACKING_VERSION,
        }

    def resume(self, state: Mapping[str, Any]) -> int:
        """Steps done according to a saved `state`. Raises TM961 unless it speaks of the same order of the same data."""
        own = self.state(int(state["steps_done"]))
        wrong = [name for name, value in own.items() if state.get(name) != value]
        if wrong:
            what = f"the checkpoint was made with another {', '.join(wrong)}"
            raise TrainError("TM961", where="resume", what=what, fix="use the same data and options, or another --out")
        return int(state["steps_done"])


def trimmed(rollout: Rollout, laid: Mapping[int, LaidRow]) -> Rollout | None:
    """The rollout up to each row's last target; rows without a target are left out, None when none has one."""
    rows, ids = [], []
    for row, tokens in zip(rollout.rows, rollout.ids, strict=True):
        targets = selected(laid[row], len(tokens))
        if len(targets):
            rows.append(row)
            ids.append(tokens[: int(targets[-1]) + 1])
    return Rollout(rollout.name, tuple(rows), tuple(ids)) if rows else None
