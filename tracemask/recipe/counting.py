"""Integer counts of a step, row by row, and their one all-reduce. Knows weights as zero or not, never their values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracemask.recipe.component import Component
from tracemask.recipe.model import Recipe
from tracemask.recipe.normalize import Tally
from tracemask.recipe.select import admits, observation_tokens
from tracemask.recipe.weights import is_trainable, wrote_something
from tracemask.store.row import Row

Reduce = Callable[[np.ndarray], np.ndarray]


def one_rank(counts: np.ndarray) -> np.ndarray:
    """The all-reduce of a single rank."""
    return counts


class ComponentCounts:
    """One component's counts on this rank.

    Scheduled: admitted by the component's `rows`, and, where its rules ask for the policy's own tokens, with at least
    one token the policy wrote: a demonstration is in no policy term's N.
    """

    def __init__(self, component: Component) -> None:
        self.component = component
        self.selected = 0
        self.of_rollout: dict[int, int] = {}
        self.group_of: dict[int, int] = {}
        self.scheduled: set[int] = set()

    def add(self, row: Row, weights: np.ndarray, rollout: int, group: int) -> None:
        """Count one trainable row."""
        self.selected += int(np.count_nonzero(weights))
        if not admits(self.component, row):
            return
        if not self.component.policy_only or wrote_something(row):
            self.scheduled.add(rollout)
        every = self.component.normalizer.count == "all_observations"
        counted = int(np.count_nonzero(observation_tokens(row) if every else weights))
        self.of_rollout[rollout] = self.of_rollout.get(rollout, 0) + counted
        self.group_of[rollout] = group

    def tally(self) -> Tally:
        """Local counts, over the rollouts scheduled for this component."""
        of_rollout = {rollout: self.of_rollout[rollout] for rollout in self.of_rollout if rollout in self.scheduled}
        of_group: dict[int, int] = {}
        for rollout, count in of_rollout.items():
            group = self.group_of[rollout]
            of_group[group] = of_group.get(group, 0) + count
        nonempty = sum(count > 0 for count in of_rollout.values())
        return Tally(sum(of_rollout.values()), len(of_rollout), nonempty, len(of_group), of_rollout, of_group)


class StepCounts:
    """Counts of all components. n_groups > 0: group numbers are dataset-wide, so that a group may span ranks."""

    def __init__(self, recipe: Recipe, *, n_groups: int = 0) -> None:
        self.n_groups = n_groups
        self.components = {name: ComponentCounts(component) for name, component in recipe.components.items()}
        self.rollouts: set[int] = set()

    def add(self, row: Row, weights: dict[str, np.ndarray], rollout: int, group: int) -> None:
        """Count one row; untrainable rows are not scheduled."""
        if not is_trainable(row):
            return
        self.rollouts.add(rollout)
        for name, counts in self.components.items():
            counts.add(row, weights[name], rollout, group)

    def reduced(self, reduce: Reduce = one_rank) -> tuple[int, dict[str, int], dict[str, Tally]]:
        """N, selected tokens, tallies over all ranks. Calls `reduce` once; its vector has one length on every rank."""
        tallies = {name: counts.tally() for name, counts in self.components.items()}
        parts = [np.array([len(self.rollouts)], dtype=np.int64)]
        for name, tally in tallies.items():
            sums = [self.components[name].selected, tally.tokens, tally.rollouts, tally.nonempty, tally.groups]
            parts.append(np.array(sums, dtype=np.int64))
            if self._spread(name):
                parts += [self._dense(tally.of_group), self._dense(dict.fromkeys(tally.of_group, 1))]
        total, at, selected = reduce(np.concatenate(parts)), 1, {}
        for name, tally in tallies.items():
            selected[name], tally.tokens, tally.rollouts, tally.nonempty, tally.groups = total[at : at + 5].tolist()
            at += 5
            if self._spread(name):
                tokens, ranks = np.split(total[at : at + 2 * self.n_groups], 2)
                tally.of_group = {int(group): int(tokens[group]) for group in np.flatnonzero(ranks)}
                tally.groups = len(tally.of_group)
                at += 2 * self.n_groups
        return int(total[0]), selected, tallies

    def _spread(self, name: str) -> bool:
        return self.components[name].component.normalizer.effective == "prompt_mean" and self.n_groups > 0

    def _dense(self, counts: dict[int, int]) -> np.ndarray:
        out = np.zeros(self.n_groups, dtype=np.int64)
        out[list(counts)] = list(counts.values())
        return out
