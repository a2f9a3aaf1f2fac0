"""Advantages of all rows of a dataset from its scalar columns alone; groups may spread over shards. Knows no token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.core.finding import Finding, Place, Severity
from tracemask.recipe.estimators import OVER_ALL, PER_GROUP, Members, is_uniform, std
from tracemask.recipe.model import RELATIVE, Recipe
from tracemask.recipe.rewards import shaped
from tracemask.recipe.rollouts import Rollouts, Scalars, gather, members_of

REASONS = ("", "not_trainable", "missing_reward", "missing_advantage", "incomplete_group", "truncated", "too_long")


@dataclass(frozen=True, slots=True)
class Advantages:
    """One advantage per row, and what the step needs to know of rollouts and groups.

    values float64[N]: NaN where the rollout's tokens leave the policy terms, for the reason REASONS[reason[row]];
    under gae and reward_to_go the value is the rollout's reward. rollout, group int64[N], dense over the dataset.
    rewards float64[N] after penalties. rows_in_rollout int64[R]. counts: rollouts per reason, uniform_groups,
    groups_of_one, groups, rollouts.
    """

    values: np.ndarray
    reason: np.ndarray
    rewards: np.ndarray
    rollout: np.ndarray
    group: np.ndarray
    rows_in_rollout: np.ndarray
    n_groups: int
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n_rollouts(self) -> int:
        """R, over the whole dataset."""
        return len(self.rows_in_rollout)

    @property
    def excluded(self) -> np.ndarray:
        """bool[N]: rows whose tokens leave the policy terms."""
        return self.reason > 0


def compute(recipe: Recipe, scalars: Scalars, *, rows: int | None = None) -> Advantages:
    """Advantages of every row. scalars: whole columns by name (trace_id, group_id or task_id, reward, truncated, …).
    rows: N, needed where the dataset may have no scalar column at all.

    The dataset is one batch; `for_step` compares a step's rollouts among themselves.

    Group maths is per rollout: several rows of a trace are one. A missing reward leaves the rollout out of the policy
    terms and of its group's baseline, and is counted (TM603); `missing = "error"`, or no reward at all, raises
    RecipeError TM603. Raises RecipeError TM605 for an incomplete group where the recipe says error.
    """
    recipe = Recipe.load(recipe)
    rollouts = gather(recipe, scalars, rows=rows)
    findings: list[Finding] = []
    reason = np.where(rollouts.trainable, 0, REASONS.index("not_trainable")).astype(np.uint8)
    values, rewards = _estimated(recipe, scalars, rollouts, reason, findings)
    counts = _count_groups(rollouts, rewards)
    _incomplete(recipe, rollouts, reason, findings)
    _filtered(recipe, rollouts, reason)
    values = np.where(reason > 0, np.nan, values * recipe.advantage.multiply)
    counts |= {
        name: int((reason == code).sum()) for code, name in enumerate(REASONS) if code and (reason == code).any()
    }
    return Advantages(
        values=values[rollouts.of_row],
        reason=reason[rollouts.of_row],
        rewards=rewards[rollouts.of_row],
        rollout=rollouts.of_row,
        group=rollouts.group[rollouts.of_row],
        rows_in_rollout=np.bincount(rollouts.of_row, minlength=len(rollouts)),
        n_groups=rollouts.n_groups,
        counts=counts,
        findings=findings,
    )


def for_step(recipe: Recipe, scalars: Scalars, advantages: Advantages, rows: Sequence[int]) -> Advantages:
    """The dataset's advantages, with those of one step's rows compared among themselves where the estimator compares a
    whole batch (`batch`, `whiten = "batch"`). Anything else is returned as it is."""
    return for_steps(recipe, scalars, advantages, [rows])


def for_steps(
    recipe: Recipe, scalars: Scalars, advantages: Advantages, steps: Iterable[Sequence[int] | np.ndarray]
) -> Advantages:
    """`for_step` of each of `steps`, which share no row."""
    if not recipe.advantage.over_batch:
        return advantages
    values = advantages.values.copy()
    for rows in steps:
        if len(rows):
            values[rows] = _among_themselves(recipe, scalars, advantages, rows)
    return replace(advantages, values=values)


def _among_themselves(
    recipe: Recipe, scalars: Scalars, advantages: Advantages, rows: Sequence[int] | np.ndarray
) -> np.ndarray:
    rollouts = gather(recipe, {name: [column[row] for row in rows] for name, column in scalars.items()})
    valid = rollouts.trainable & ~np.isnan(rollouts.reward)
    estimated = _by_estimator(recipe, rollouts, shaped(recipe, rollouts, valid), valid) * recipe.advantage.multiply
    return np.where(advantages.excluded[rows], np.nan, estimated[rollouts.of_row])


def _estimated(
    recipe: Recipe, scalars: Scalars, rollouts: Rollouts, reason: np.ndarray, findings: list[Finding]
) -> tuple[np.ndarray, np.ndarray]:
    """Values [R] and shaped rewards [R]; marks rollouts without a reward in `reason`."""
    name = recipe.advantage.estimator
    if name in ("none", "per_token"):
        return np.zeros(len(rollouts)), rollouts.reward
    if name == "given":
        given = gather(
            recipe, {**scalars, "reward": scalars.get("advantage", [None] * len(rollouts.of_row))}, reward="reward"
        )
        reason[(reason == 0) & np.isnan(given.reward)] = REASONS.index("missing_advantage")
        _missing(recipe, rollouts, reason, "missing_advantage", findings)
        return given.reward, rollouts.reward
    valid = (reason == 0) & ~np.isnan(rollouts.reward)
    rewards = shaped(recipe, rollouts, valid)
    if name in ("gae", "reward_to_go"):
        return rewards, rewards
    reason[(reason == 0) & ~valid] = REASONS.index("missing_reward")
    _missing(recipe, rollouts, reason, "missing_reward", findings)
    return _by_estimator(recipe, rollouts, rewards, valid), rewards


def _by_estimator(recipe: Recipe, rollouts: Rollouts, rewards: np.ndarray, valid: np.ndarray) -> np.ndarray:
    spec, values = recipe.advantage, np.full(len(rollouts), np.nan)
    if spec.estimator in PER_GROUP:
        estimate, parts = PER_GROUP[spec.estimator], members_of(rollouts.group, valid)
    else:
        estimate, parts = OVER_ALL[spec.estimator], [np.flatnonzero(valid)]
    lengths = None
    if spec.baseline == "length_weighted":
        lengths = rollouts.quantity("n_sampled", wanted_by="advantage.baseline")
    for part in parts:
        if len(part):
            members = Members(None if lengths is None else lengths[part], [rollouts.agents[at] for at in part])
            values[part] = estimate(rewards[part], spec, members)
    if spec.whiten == "batch" and valid.any():
        spread = std(values[valid], spec.ddof)
        if spread > 0:
            values[valid] = values[valid] / (spread + spec.eps)
    return values


def _missing(recipe: Recipe, rollouts: Rollouts, reason: np.ndarray, name: str, findings: list[Finding]) -> None:
    """TM603 for rollouts that just lost their reward or advantage."""
    lost = np.flatnonzero(reason == REASONS.index(name))
    if not len(lost):
        return
    what = name.removeprefix("missing_")
    column = recipe.reward.column if what == "reward" else "advantage"
    trainable = int(rollouts.trainable.sum())
    if recipe.reward.missing == "error" or len(lost) == trainable:
        raise RecipeError(
            "TM603",
            where=rollouts.labels[lost[0]],
            what=f"{len(lost)} of {trainable} rollouts have no {column}",
            fix='score them; [reward] missing = "exclude" leaves them out, unless none has one',
        )
    findings.append(
        Finding(
            "TM603",
            f"{len(lost)} of {trainable} rollouts have no {column}: out of policy terms and baselines, still in N",
            Place(id=rollouts.labels[lost[0]]),
            Severity.WARNING,
            data={"rollouts": [rollouts.labels[at] for at in lost[:20]], "count": len(lost)},
        )
    )


def _count_groups(rollouts: Rollouts, rewards: np.ndarray) -> dict[str, int]:
    groups = members_of(rollouts.group, ~np.isnan(rewards))
    return {
        "rollouts": len(rollouts),
        "groups": rollouts.n_groups,
        "groups_of_one": sum(len(part) == 1 for part in groups),
        "uniform_groups": sum(len(part) > 1 and is_uniform(rewards[part]) for part in groups),
    }


def _incomplete(recipe: Recipe, rollouts: Rollouts, reason: np.ndarray, findings: list[Finding]) -> None:
    """TM605: groups smaller than `group.size`, and rollouts that no group compares."""
    if recipe.advantage.estimator in RELATIVE and rollouts.ungrouped:
        message = (
            f"{rollouts.ungrouped} rollouts have neither group_id nor task_id: each is a group of one with advantage 0"
        )
        findings.append(Finding("TM605", message, severity=Severity.WARNING, data={"count": rollouts.ungrouped}))
    if recipe.group.size is None:
        return
    sizes = np.bincount(rollouts.group[rollouts.trainable], minlength=rollouts.n_groups)
    short = (sizes < recipe.group.size)[rollouts.group] & rollouts.trainable
    if not short.any():
        return
    groups = len(np.unique(rollouts.group[short]))
    what = f"{groups} of {rollouts.n_groups} groups hold fewer than {recipe.group.size} rollouts"
    label = rollouts.labels[int(np.flatnonzero(short)[0])]
    if recipe.group.incomplete == "error":
        raise RecipeError(
            "TM605", where=label, what=what, fix='complete them, or set [group] incomplete = "keep" or "drop"'
        )
    if recipe.group.incomplete == "drop":
        reason[short & (reason == 0)] = REASONS.index("incomplete_group")
    findings.append(Finding("TM605", what, Place(id=label), Severity.WARNING, data={"groups": groups}))


def _filtered(recipe: Recipe, rollouts: Rollouts, reason: np.ndarray) -> None:
    if recipe.filters.truncated == "mask":
        reason[rollouts.truncated & (reason == 0)] = REASONS.index("truncated")
    if recipe.filters.max_tokens is not None:
        long = rollouts.quantity("n_sampled", wanted_by="filters.max_tokens") > recipe.filters.max_tokens
        reason[long & (reason == 0)] = REASONS.index("too_long")
