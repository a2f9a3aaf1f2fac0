"""Which rollouts push hardest under a recipe, in numbers and words. Knows the audit's numbers, no token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tracemask.check.formats.plain import plural
from tracemask.core.errors import RecipeError
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import Advantages, compute
from tracemask.recipe.audit import Audit, ComponentAudit, audit
from tracemask.recipe.model import PER_TOKEN, AdvantageSpec, RewardSpec
from tracemask.recipe.normalize import NORMALIZERS
from tracemask.recipe.rollouts import Scalars
from tracemask.recipe.select import TokenBytes
from tracemask.report.glyphs import plain
from tracemask.store.row import Row

NAMES = tuple(NORMALIZERS)


class Rows(Sized, Iterable[Row], Protocol):
    """A dataset, or a list of rows."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An audit and what had to be assumed for it. rewarded: advantages come from the data, not from an assumption."""

    audit: Audit
    advantages: Advantages
    notes: list[str] = field(default_factory=list)
    rewarded: bool = True

    def lines(self, *, limit: int = 12) -> list[str]:
        """Plain text, at most `limit` rollouts a table (the hardest pushes first where there are more)."""
        found = self.audit
        out = [
            f"{found.recipe.name} on {plural(found.n_rollouts, 'rollout')} ({plural(found.n_rows, 'row')}), "
            "the whole dataset taken as one step"
        ]
        out += [f"note: {note}" for note in self.notes]
        for component in found.components.values():
            out += ["", *_component(component, found, limit, rewarded=self.rewarded)]
        return out

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON; nan becomes null. Rollouts are in order of appearance."""
        return {
            "recipe": self.audit.recipe.name,
            "rollouts": self.audit.n_rollouts,
            "rows": self.audit.n_rows,
            "notes": self.notes,
            "dropped": dict(sorted(self.audit.dropped.items())),
            "advantages": self.advantages.counts,
            "findings": [finding.to_json() for finding in self.advantages.findings],
            "rewarded": self.rewarded,
            "components": {
                name: _json(component, rewarded=self.rewarded) for name, component in self.audit.components.items()
            },
        }


def explain(
    recipe: Recipe | str,
    rows: Rows,
    scalars: Scalars,
    *,
    token_bytes: TokenBytes | None = None,
) -> Explanation:
    """Audit of a dataset under a recipe. rows: all of them, `row.index` counting from 0; scalars: their whole columns.

    A dataset without rewards is explained as if every advantage were 1, says so, and names no advantage.
    """
    recipe = Recipe.load(recipe)
    notes, rewarded = [], True
    try:
        advantages = compute(recipe, scalars, rows=len(rows))
    except RecipeError as error:
        if error.code != "TM603" or "advantage" not in recipe.needs:
            raise
        assumed = recipe.model_copy(update={"advantage": AdvantageSpec(estimator="reward"), "reward": RewardSpec()})
        advantages = compute(assumed, {**scalars, "reward": [1.0] * len(rows)})
        rewarded = False
        notes.append(f"{error.what}: which rollouts are better is unknown; weights are shown for an advantage of 1")
    if recipe.advantage.estimator in PER_TOKEN:
        notes.append("A is the mean over the rollout's trained tokens")
    notes += [finding.message for finding in advantages.findings]
    found = audit(recipe, rows, advantages, token_bytes=token_bytes)
    if found.refused:
        notes.append(f"{plural(found.refused, 'row')} of re-encoded text, which training refuses (TM940)")
    return Explanation(found, advantages, notes, rewarded)


def _component(component: ComponentAudit, found: Audit, limit: int, *, rewarded: bool) -> list[str]:
    kept = component.kept
    taken = _taken(component.name, found.dropped)
    if not len(kept):
        return [f"{component.name}: no token is in the loss", *taken]
    lengths = component.tokens[kept]
    head = (
        f"{component.name}: {int(lengths.sum()):,} tokens in {plural(len(kept), 'rollout')}, "
        f"{lengths[0]:,} to {lengths[-1]:,} each; divided by {component.in_force}"
    )
    shown, rest = _shown(component, limit)
    whole = {name: component.per_rollout(name) for name in NAMES}
    return [
        head,
        *taken,
        "  weight of one token",
        *_table(component, shown, component.per_token, ("shortest / longest", component.token_ratio), rewarded),
        "  weight of the whole rollout (tokens × weight of one)",
        *_table(component, shown, whole, ("longest / shortest", component.rollout_ratio), rewarded),
        *([f"    … {rest} more rollouts"] if rest else []),
        *(f"  {sentence}" for sentence in _words(component, rewarded=rewarded)),
    ]


def _shown(component: ComponentAudit, limit: int) -> tuple[list[int], int]:
    kept = component.kept
    if len(kept) <= limit:
        return sorted(kept.tolist()), 0
    push = component.push(component.in_force)[kept]
    return kept[np.argsort(-push, kind="stable")][:limit].tolist(), len(kept) - limit


def _table(
    component: ComponentAudit,
    rollouts: list[int],
    values: dict[str, np.ndarray],
    ratio: tuple[str, Callable[[str], float]],
    rewarded: bool,
) -> list[str]:
    names = [f"{name}*" if name == component.in_force else name for name in NAMES]
    widths = [max(9, len(name) + 1) for name in names]
    label = max(18, *(len(_short(component.labels[at])) for at in rollouts))

    def line(first: str, tokens: str, advantage: str, cells: Iterable[str]) -> str:
        columns = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"    {first:<{label}} {tokens:>6} {advantage:>6} {columns}"

    out = [line("rollout", "tokens", "A", names)]
    for at in rollouts:
        advantage = _signed(component.advantage[at]) if rewarded else "–"
        cells = (_number(values[name][at]) for name in NAMES)
        out.append(line(_short(component.labels[at]), str(component.tokens[at]), advantage, cells))
    return [*out, line(ratio[0], "", "", (_number(ratio[1](name)) for name in NAMES))]


def _words(component: ComponentAudit, *, rewarded: bool) -> list[str]:
    out = []
    name, kept = component.in_force, component.kept
    if component.tokens[kept[0]] == component.tokens[kept[-1]]:
        out.append("All rollouts are equally long: every normalizer treats them alike, up to a constant.")
    token, whole = component.token_ratio(name), component.rollout_ratio(name)
    if token > 1.01:
        out.append(f"Under {name} a token of the shortest rollout weighs {_number(token)} times one of the longest.")
    elif whole > 1.01:
        out.append(
            f"Under {name} tokens weigh alike, so the longest rollout counts {_number(whole)} times the shortest."
        )
    if not component.uses_advantage:
        return out
    if not rewarded:
        return [*out, "There is no reward: nothing can be said about which rollouts it raises or lowers."]
    correlation = component.correlation
    if not math.isnan(correlation):
        out.append(f"Correlation of length with advantage: {correlation:+.2f}{_tendency(correlation, token)}.")
    push = component.push(name)
    total = float(push.sum())
    if total == 0:
        return [*out, "Every advantage is 0: this component moves nothing."]
    first = kept[np.argsort(-push[kept], kind="stable")][:3]
    hardest = ", ".join(
        f"{_short(component.labels[at])} ({component.tokens[at]} tokens, A = {_signed(component.advantage[at])}, "
        f"{push[at] / total:.0%})"
        for at in first
    )
    up = float(push[component.advantage > 0].sum()) / total
    out.append(f"Pushing hardest: {hardest}.")
    return [*out, f"Of the push, {up:.0%} raises rollouts above their baseline, {1 - up:.0%} lowers those below."]


def _tendency(correlation: float, token_ratio: float) -> str:
    if abs(correlation) < 0.1:
        return ", length says little about quality"
    which = "better" if correlation > 0 else "worse"
    if correlation < 0 and token_ratio > 1.01:
        return ": long rollouts are worse, and each of their tokens is punished less the longer they are"
    return f": long rollouts are {which}"


def _taken(name: str, dropped: dict[str, int]) -> list[str]:
    mine = {key.removeprefix(f"{name}."): count for key, count in dropped.items() if key.startswith(f"{name}.")}
    if not mine:
        return []
    parts = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in sorted(mine.items()))
    return [f"  taken out: {parts} (tokens)"]


def _json(component: ComponentAudit, *, rewarded: bool) -> dict[str, Any]:
    return {
        "normalizer": component.in_force,
        "l_max": component.l_max,
        "correlation": _null(component.correlation) if rewarded else None,
        "token_ratio": {name: _null(component.token_ratio(name)) for name in NAMES},
        "rollout_ratio": {name: _null(component.rollout_ratio(name)) for name in NAMES},
        "words": _words(component, rewarded=rewarded) if len(component.kept) else [],
        "rollouts": [
            {
                "id": label,
                "tokens": int(component.tokens[at]),
                "advantage": _null(component.advantage[at]) if rewarded else None,
                "per_token": {name: float(component.per_token[name][at]) for name in NAMES},
                "per_rollout": {name: float(component.per_rollout(name)[at]) for name in NAMES},
            }
            for at, label in enumerate(component.labels)
        ],
    }


def _null(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _number(value: float) -> str:
    """Two significant digits, as a plain number."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(float(value), digits)
    return f"{rounded:.{max(digits, 0)}f}".rstrip("0").rstrip(".") if digits > 0 else f"{rounded:,.0f}"


def _signed(value: Any) -> str:
    return "–" if math.isnan(value) else f"{value:+.2f}" if abs(value) < 1e5 else f"{value:+.1e}"


def _short(label: str) -> str:
    return plain(label if len(label) <= 24 else f"{label[:11]}…{label[-12:]}")
