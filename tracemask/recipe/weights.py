"""Weight streams of one row: rules, then everything that takes a token out again, each counted. Knows one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.core.vocab import Author, Fidelity
from tracemask.recipe.component import Component
from tracemask.recipe.model import Recipe
from tracemask.recipe.select import SELECTED_BY, TokenBytes, admits, dropped_lines, must_fit, rule_weights
from tracemask.store.row import Row

FILTERS = frozenset({"truncated", "too_long", "incomplete_group"})


@dataclass(slots=True)
class Laid:
    """weights float32[T] per component; dropped: tokens taken out, by "component.reason"."""

    weights: dict[str, np.ndarray]
    dropped: Counter[str] = field(default_factory=Counter)


def lay(
    recipe: Recipe,
    row: Row,
    advantage: float | np.ndarray,
    *,
    policy_version: int | None = None,
    token_bytes: TokenBytes | None = None,
) -> dict[str, np.ndarray]:
    """Weight streams float32[T] of a row, keyed by component. Weight 0: the token is in neither mask nor denominator.

    advantage: one number or float64[T]; NaN takes the token out of policy terms. policy_version: the version being
    trained, for staleness limits. The first token of a row has no predecessor and is always 0 (TM604).
    Raises RecipeError TM603 for a missing column, TM101 for one of another length than the ids, TM940 for a row whose
    ids nobody sampled.
    """
    return lay_row(recipe, row, advantage, policy_version=policy_version, token_bytes=token_bytes).weights


def lay_row(
    recipe: Recipe,
    row: Row,
    advantage: float | np.ndarray,
    *,
    policy_version: int | None = None,
    token_bytes: TokenBytes | None = None,
    reason: str = "missing_reward",
) -> Laid:
    """`lay`, with the tokens that left and why; `reason` names what a NaN advantage means."""
    must_fit(row, (*SELECTED_BY, *_read(recipe)))
    advantage_T = np.broadcast_to(np.asarray(advantage, dtype=np.float64), (len(row),))
    laid = Laid({})
    for name, component in recipe.components.items():
        weights = np.zeros(len(row), dtype=np.float32)
        if is_trainable(row) and admits(component, row):
            weights = rule_weights(component, row)
            for why, gone in _taken_out(
                recipe, component, row, weights, advantage_T, policy_version, token_bytes, reason
            ):
                hit = gone & (weights != 0)
                if hit.any():
                    laid.dropped[f"{name}.{why}"] += int(hit.sum())
                    weights[hit] = 0.0
        laid.weights[name] = weights
    return laid


def _read(recipe: Recipe) -> Iterator[str]:
    """Columns that the recipe reads beside those that select tokens."""
    off = recipe.off_policy
    if "sampler" in recipe.needs or off.ratio_mask is not None:
        yield "logprob"
    if off.ratio_mask is not None:
        yield "old_logprob"
    if off.max_staleness is not None:
        yield "policy_version"


def _taken_out(
    recipe: Recipe,
    component: Component,
    row: Row,
    weights: np.ndarray,
    advantage_T: np.ndarray,
    policy_version: int | None,
    token_bytes: TokenBytes | None,
    reason: str,
) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs (reason, bool[T]) in order; `weights` shrinks between them, so each token is counted once."""
    yield "first_token", np.arange(len(row)) == 0
    if component.drop:
        yield "filtered", dropped_lines(component, row, weights, token_bytes)
    if component.policy_only and ("advantage" in recipe.needs or reason in FILTERS):
        yield reason, np.isnan(advantage_T)
    if component.zero_advantage == "drop":
        yield "zero_advantage", advantage_T == 0
    if not component.on_policy:
        return
    if recipe.off_policy.max_staleness is not None:
        yield "stale", _stale(recipe, row, weights, policy_version)
    if recipe.off_policy.ratio_mask is not None:
        yield "off_policy", _off_policy(recipe, row, weights, advantage_T)
    _sampled_by_engine(recipe, component, row, weights)
    if "sampler" in component.needs:
        yield "missing_logprob", _without_logprob(recipe, row, weights)


def reencoded(row: Row) -> bool:
    """The row's ids were encoded from text: fidelity `messages`."""
    fidelity = row.scalars.get("fidelity")
    return fidelity in (Fidelity.MESSAGES.label, int(Fidelity.MESSAGES)) and fidelity is not False


def _sampled_by_engine(recipe: Recipe, component: Component, row: Row, weights: np.ndarray) -> None:
    if not recipe.allow_messages and reencoded(row) and weights.any():
        keep = 'rows = { fidelity = ["exact", "completion"] } in the component\'s table'
        raise RecipeError(
            "TM940",
            where=f"row {row.index}",
            what=f"fidelity is messages: nobody sampled these re-encoded ids, and term {component.term} needs samples",
            fix=f"record ids when sampling; or in a recipe of your own (`tracemask recipe NAME --toml` begins one) "
            f"keep such rows out: {keep}, or train on them: allow_messages = true",
        )


def _without_logprob(recipe: Recipe, row: Row, weights: np.ndarray) -> np.ndarray:
    logprob = row.get("logprob")
    missing = np.ones(len(row), dtype=bool) if logprob is None else np.isnan(logprob)
    missing &= weights != 0
    if recipe.missing_logprob == "keep":
        return np.zeros(len(row), dtype=bool)
    if recipe.missing_logprob == "error" and missing.any():
        raise RecipeError(
            "TM603",
            where=f"row {row.index}, token {int(np.flatnonzero(missing)[0])}",
            what=f"{int(missing.sum())} trained tokens have no sampler log-prob, which a component needs",
            fix='record log-probs, use a term without the sampler ratio, or set missing_logprob = "exclude"',
        )
    return missing


def _stale(recipe: Recipe, row: Row, weights: np.ndarray, policy_version: int | None) -> np.ndarray:
    spec = recipe.off_policy
    if policy_version is None:
        fix = "pass policy_version to lay_step, or drop off_policy.max_staleness"
        raise RecipeError(
            "TM603", where="off_policy.max_staleness", what="the version being trained is not known", fix=fix
        )
    version = row.get("policy_version")
    numbers = np.full(len(row), np.nan)
    if version is not None and version.dtype.kind in "iuf":  # versions that are names have no distance
        numbers = version.astype(np.float64)
    unknown = np.isnan(numbers) | (numbers < 0)
    if spec.missing_version == "error" and (unknown & (weights != 0)).any():
        fix = 'record policy_version, or set off_policy.missing_version = "mask" or "keep"'
        raise RecipeError("TM603", where=f"row {row.index}", what="trained tokens have no policy_version", fix=fix)
    old = np.where(unknown, spec.missing_version == "mask", policy_version - numbers > (spec.max_staleness or 0))
    old = old.astype(bool)
    if spec.on_stale == "error" and (old & (weights != 0)).any():
        worst = int(np.nanmax(np.where(weights != 0, policy_version - numbers, np.nan)))
        what = f"tokens are {worst} versions old, the limit is {spec.max_staleness}"
        raise RecipeError("TM603", where=f"row {row.index}", what=what, fix='sample anew, or set on_stale = "mask"')
    return old


def _off_policy(recipe: Recipe, row: Row, weights: np.ndarray, advantage_T: np.ndarray) -> np.ndarray:
    """Tokens whose old/sampler ratio, or the row's geometric mean of it, leaves the band."""
    spec = recipe.off_policy.ratio_mask
    assert spec is not None
    old, sampler = row.get("old_logprob"), row.get("logprob")
    if old is None or sampler is None:
        lacking = "old_logprob" if old is None else "logprob"
        fix = "tracemask score DATASET --model … --as old writes it"
        raise RecipeError("TM603", where=f"row {row.index}", what=f"ratio_mask needs the column {lacking}", fix=fix)
    gap = old.astype(np.float64) - sampler
    known = (weights != 0) & np.isfinite(gap)
    if spec.level == "sequence_mean":
        gap = np.full(len(row), gap[known].mean() if known.any() else 0.0)
    out = ((gap < np.log(spec.low)) | (gap > np.log(spec.high))) & (weights != 0)
    return out & (advantage_T < 0) if spec.when == "negative_advantage" else out


def is_trainable(row: Row) -> bool:
    """The trace did not say that it must not be trained."""
    value = row.scalars.get("trainable")
    return value is None or bool(value)


def wrote_something(row: Row) -> bool:
    """The policy wrote at least one token of the row: it belongs to a rollout, not to a demonstration."""
    author = row.get("author")
    return True if author is None else bool((author == Author.POLICY).any())
