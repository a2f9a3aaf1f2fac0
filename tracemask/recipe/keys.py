"""A row's place in the step: rollout, group, advantage and why it has none. Knows no weight and no count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.recipe.advantage import REASONS, Advantages
from tracemask.recipe.model import PER_TOKEN, Recipe
from tracemask.recipe.rollouts import as_label, is_present
from tracemask.recipe.token_advantage import branch_means, token_advantage
from tracemask.store.row import Row


@dataclass(frozen=True, slots=True)
class RowKey:
    """Numbers of the row's rollout and group, its scalar advantage (NaN: none) and what a NaN means."""

    rollout: int
    group: int
    advantage: float
    reason: str = "missing_reward"


def name_of(row: Row) -> str:
    """The rollout a row belongs to, for people: its trace id, else its id, else its number."""
    named = (row.scalars.get(name) for name in ("trace_id", "id"))
    return next((str(value) for value in named if is_present(value)), f"row {row.index}")


def dataset_key(row: Row, advantages: Advantages) -> RowKey:
    """The key of a row whose dataset's advantages are known. Raises RecipeError TM950 for a row beyond them."""
    at = row.index
    if not 0 <= at < len(advantages):
        what = f"row {at} has no advantage: {len(advantages)} were computed"
        raise RecipeError("TM950", where="lay_step", what=what, fix="compute them from the scalars of the same dataset")
    reason = REASONS[advantages.reason[at]] or "missing_reward"
    return RowKey(int(advantages.rollout[at]), int(advantages.group[at]), float(advantages.values[at]), reason)


def step_keys(recipe: Recipe, rows: Sequence[Row], advantages: Sequence[float] | np.ndarray) -> list[RowKey]:
    """Keys of rows that come with one advantage each; rollouts and groups are numbered within the step."""
    if len(advantages) != len(rows):
        what = f"{len(advantages)} advantages for {len(rows)} rows"
        raise RecipeError("TM950", where="lay_step", what=what, fix="give one per row, or an Advantages")
    rollouts: dict[object, int] = {}
    groups: dict[object, int] = {}
    keys = []
    by = (recipe.group.by,) if recipe.group.by else ("group_id", "task_id")
    for number, (row, value) in enumerate(zip(rows, advantages, strict=True)):
        trace = row.scalars.get("trace_id") if recipe.group.rollout == "trace" else None
        trace = as_label(trace, name="trace_id", where=f"row {row.index}")
        rollout = rollouts.setdefault(("", number) if trace is None else trace, len(rollouts))
        names = [(name, as_label(row.scalars.get(name), name=name, where=f"row {row.index}")) for name in by]
        names = [each for each in names if each[1] is not None]
        group = groups.setdefault(names[0] if names else ("", rollout), len(groups))
        keys.append(RowKey(rollout, group, float(value)))
    return keys


def split_rollouts(rows: Sequence[Row], keys: Sequence[RowKey], advantages: Advantages) -> list[str]:
    """Trace ids of rollouts of which only some rows are here."""
    here = Counter(key.rollout for key in keys)
    partial = {rollout for rollout, count in here.items() if count != advantages.rows_in_rollout[rollout]}
    found = zip(rows, keys, strict=True)
    return sorted({str(row.scalars.get("trace_id", key.rollout)) for row, key in found if key.rollout in partial})


def stream(recipe: Recipe, row: Row, key: RowKey) -> np.ndarray:
    """float64[T]: the row's advantage on every token, or per token where the estimator gives one; NaN: none."""
    if recipe.advantage.estimator in PER_TOKEN:
        return token_advantage(recipe, row, key.advantage, excluded=key.reason if np.isnan(key.advantage) else "")
    return np.full(len(row), key.advantage)


def streams(recipe: Recipe, rows: Sequence[Row], keys: Sequence[RowKey]) -> list[np.ndarray]:
    """`stream` of every row; shared tokens take the mean over their branches where the recipe says so."""
    out = [stream(recipe, row, key) for row, key in zip(rows, keys, strict=True)]
    if recipe.advantage.shared == "mean_of_branches":
        branch_means(rows, out)
    return out
