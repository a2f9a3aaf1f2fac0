"""Rows into rollouts and groups, from scalar columns of a whole dataset. Knows no token and no estimator."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.recipe.model import Recipe

Scalars = Mapping[str, Sequence[Any]]
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """R rollouts over N rows, in order of first appearance.

    of_row int64[N], group int64[R] (dense, in order of first appearance), reward float64[R] (NaN: missing),
    truncated and trainable bool[R], quantities: n_sampled, n_tokens, n_turns summed over rows, float64[R] (NaN: a row
    has none), where the columns exist; labels: trace ids; agents; ungrouped: rollouts without a group of their own.
    """

    of_row: np.ndarray
    group: np.ndarray
    reward: np.ndarray
    truncated: np.ndarray
    trainable: np.ndarray
    quantities: dict[str, np.ndarray]
    labels: list[str]
    agents: list[str]
    n_groups: int
    ungrouped: int

    def __len__(self) -> int:
        return len(self.labels)

    def quantity(self, name: str, *, wanted_by: str) -> np.ndarray:
        """One of `quantities`, float64[R]; NaN only where a rollout is not trainable.

        Raises RecipeError TM603 where the dataset, or a trainable rollout of it, lacks it.
        """
        fix = f"leave {wanted_by} out, or convert the traces: it is written"
        if name not in self.quantities:
            what = f"it needs the scalar {name}, which the dataset lacks"
            raise RecipeError("TM603", where=wanted_by, what=what, fix=fix)
        unknown = np.flatnonzero(np.isnan(self.quantities[name]) & self.trainable)
        if len(unknown):
            what = f"{len(unknown)} of {len(self)} rollouts have no {name}, which {wanted_by} needs"
            raise RecipeError("TM603", where=self.labels[unknown[0]], what=what, fix=fix)
        return self.quantities[name]


def as_number(value: Any, *, name: str = "reward", where: str = "") -> float:
    """None and NaN are missing (NaN); booleans are 0 and 1, text is read as a number where it is one.

    Raises RecipeError TM603 for anything else, and for what float32 cannot hold: advantages are stored in it.
    """
    try:
        number = float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        what = f"{name} is {_brief(value)}, not a number"
        raise RecipeError("TM603", where=where, what=what, fix="repair it") from None
    if abs(number) > LARGEST:
        what = f"{name} is {number:g}, beyond {LARGEST:.0e}"
        raise RecipeError("TM603", where=where, what=what, fix=f"repair the {name}")
    return number


def as_label(value: Any, *, name: str, where: str = "") -> Hashable:
    """What rollouts are told apart and grouped by: text, a number or a boolean; None and NaN are missing (None).

    Raises RecipeError TM603 for a list or a struct.
    """
    if not is_present(value):
        return None
    if isinstance(value, Hashable):
        return value
    raise RecipeError(
        "TM603", where=where, what=f"{name} is {_brief(value)}, neither text nor a number", fix="name another column"
    )


def _brief(value: Any) -> str:
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_present(value: Any) -> bool:
    """Neither None nor NaN, which foreign tables use for missing."""
    return value is not None and value == value


def gather(recipe: Recipe, scalars: Scalars, *, reward: str | None = None, rows: int | None = None) -> Rollouts:
    """Rollouts of a dataset. `reward` names the scalar column, default the recipe's; `rows`: N, where there may be no
    scalar column to tell.

    Raises RecipeError TM940 where rows of one trace disagree on the reward or a named column does not exist, TM603
    for values that are no numbers or names.
    """
    n = len(next(iter(scalars.values()))) if scalars else rows or 0
    of_row, first = _rollout_of_row(recipe, scalars, n)
    column = reward or recipe.reward.column
    rewards = _rewards(scalars.get(column), of_row, len(first), column, scalars)
    group, n_groups, ungrouped = _groups(recipe, scalars, first)
    return Rollouts(
        of_row=of_row,
        group=group,
        reward=rewards,
        truncated=_any(scalars.get("truncated"), of_row, len(first)),
        trainable=~_any(
            [is_present(value) and not value for value in scalars.get("trainable", ())], of_row, len(first)
        ),
        quantities={name: _sums(scalars[name], of_row, len(first), name) for name in QUANTITIES if name in scalars},
        labels=[_label(scalars, row) for row in first],
        agents=[str(_at(scalars.get(recipe.advantage.agent), row, "policy")) for row in first],
        n_groups=n_groups,
        ungrouped=ungrouped,
    )


QUANTITIES = ("n_sampled", "n_tokens", "n_turns")


def members_of(group: np.ndarray, valid: np.ndarray | None = None) -> list[np.ndarray]:
    """Indices of the members of each group (those that are `valid` bool[n]), groups in ascending order."""
    kept = np.arange(len(group)) if valid is None else np.flatnonzero(valid)
    order = kept[np.argsort(group[kept], kind="stable")]
    edges = np.flatnonzero(np.diff(group[order])) + 1
    return [part for part in np.split(order, edges) if len(part)]


def _label(scalars: Scalars, row: int) -> str:
    return str(_at(scalars.get("trace_id"), row, f"row {row}"))


def _at(column: Sequence[Any] | None, row: int, default: Any) -> Any:
    value = None if column is None else column[row]
    return default if value is None else value


def _rollout_of_row(recipe: Recipe, scalars: Scalars, n: int) -> tuple[np.ndarray, list[int]]:
    of_row = np.arange(n, dtype=np.int64)
    ids = scalars.get("trace_id")
    if recipe.group.rollout == "row" or ids is None:
        return of_row, list(range(n))
    index: dict[Any, int] = {}
    first: list[int] = []
    for row, value in enumerate(ids):
        key = as_label(value, name="trace_id", where=f"row {row}")
        key = ("", row) if key is None else key
        if key not in index:
            index[key] = len(first)
            first.append(row)
        of_row[row] = index[key]
    return of_row, first


def _rewards(column: Sequence[Any] | None, of_row: np.ndarray, n: int, name: str, scalars: Scalars) -> np.ndarray:
    out = np.full(n, np.nan)
    for row, value in enumerate(column if column is not None else ()):
        number, rollout = as_number(value, name=name, where=_label(scalars, row)), of_row[row]
        if np.isnan(number) or number == out[rollout]:
            continue
        if not np.isnan(out[rollout]):
            raise RecipeError(
                "TM940",
                where=_label(scalars, row),
                what=f"rows of one trace carry different {name}s ({out[rollout]} and {number})",
                fix='set [group] rollout = "row" if every row is a rollout of its own',
            )
        out[rollout] = number
    return out


def _groups(recipe: Recipe, scalars: Scalars, first: list[int]) -> tuple[np.ndarray, int, int]:
    by = recipe.group.by
    if by is not None and by not in scalars:
        known = ", ".join(scalars)
        raise RecipeError("TM940", where="group.by", what=f"the dataset has no scalar {by!r}", fix=f"it has {known}")
    columns = {name: scalars[name] for name in ((by,) if by else ("group_id", "task_id")) if name in scalars}
    index: dict[Any, int] = {}
    group = np.empty(len(first), dtype=np.int64)
    alone = 0
    for rollout, row in enumerate(first):
        labels = [(name, as_label(column[row], name=name, where=f"row {row}")) for name, column in columns.items()]
        keys = [key for key in labels if key[1] is not None]
        alone += not keys
        group[rollout] = index.setdefault(keys[0] if keys else ("alone", rollout), len(index))
    return group, len(index), alone


def _any(column: Sequence[Any] | None, of_row: np.ndarray, n: int) -> np.ndarray:
    out = np.zeros(n, dtype=bool)
    if column is not None and len(column):
        np.logical_or.at(
            out,
            of_row,
            np.fromiter((is_present(value) and bool(value) for value in column), dtype=bool, count=len(of_row)),
        )
    return out


def _sums(column: Sequence[Any], of_row: np.ndarray, n: int, name: str) -> np.ndarray:
    values = np.array([as_number(value, name=name, where=f"row {row}") for row, value in enumerate(column)])
    return np.bincount(of_row, weights=values, minlength=n)
