"""Rules about stored advantages: do they follow from the rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, WARNING, Finding
from tracemask.check.rollouts import Groups, gather, heads, place_of
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

Formula = Callable[[np.ndarray], np.ndarray]


def _formulas() -> dict[str, Formula]:
    def scaled(ddof: int, eps: float) -> Formula:
        def value(r: np.ndarray) -> np.ndarray:
            return (r - r.mean()) / (r.std(ddof=ddof) + eps) if len(r) > ddof else np.zeros_like(r)

        return value

    out: dict[str, Formula] = {
        "r - mean": lambda r: r - r.mean(),
        "r": lambda r: r,
        "leave-one-out": lambda r: (r - r.mean()) * len(r) / max(len(r) - 1, 1),
        "(r - mean) / mean": lambda r: (r - r.mean()) / r.mean() if r.mean() > 0 else np.zeros_like(r),
    }
    for ddof in (0, 1):
        for eps in (0.0, 1e-8, 1e-6, 1e-4):
            out[f"(r - mean) / (std{ddof} + {eps:g})"] = scaled(ddof, eps)
    return out


def _matches(formula: Formula, rewards: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.nan_to_num(formula(rewards))
    return np.abs(value - advantages) <= 1e-4 * np.maximum(1, np.abs(value))


def _rises(rewards: np.ndarray, advantages: np.ndarray) -> bool:
    """Equal rewards have one advantage and better ones no lower: any estimator of the reward alone gives this."""
    order = np.lexsort((advantages, rewards))
    step, gain = np.diff(rewards[order]), np.diff(advantages[order])
    near = 1e-3 * max(1.0, float(np.abs(advantages).max()))
    return bool((np.where(step == 0, np.abs(gain), np.maximum(-gain, 0)) <= near).all())


def _recompute_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    cases = []
    for name, members in groups.by_id.items():
        known = [m for m in heads(members) if m.reward is not None and m.advantage is not None]
        if len(known) >= 2 and len(known) == len(heads(members)):
            rewards = np.array([m.reward for m in known], dtype=np.float64)
            cases.append((name, known, rewards, np.array([m.advantage for m in known], dtype=np.float64)))
    varied = [case for case in cases if np.ptp(case[2]) > 0]
    if not varied:
        return
    formulas = _formulas()
    right = {
        key: sum(bool(_matches(formula, rewards, given).all()) for _, _, rewards, given in varied)
        for key, formula in formulas.items()
    }
    best = max(right, key=lambda key: right[key])
    if right[best] < 0.5 * len(varied):
        fallen = [case for case in varied if not _rises(case[2], case[3])]
        if len(varied) >= 2 and not right[best] and len(fallen) >= 0.5 * len(varied):
            text = f"no known estimator gives the advantages of any of {len(varied)} groups, and in {len(fallen)}"
            text += " they do not rise with the rewards"
            yield Finding("TM408", text, place_of(fallen[0][1][0]), WARNING, "unknown estimator")
        return
    for name, known, rewards, given in cases:
        wrong = np.flatnonzero(~_matches(formulas[best], rewards, given))
        if len(wrong):
            first = known[int(wrong[0])]
            text = f"group {name}: {len(wrong)} advantages are not {best} of the rewards, as in the other groups"
            yield Finding("TM408", text, place_of(first), data={"group": name, "formula": best})


def _ragged_calls(view: View) -> Iterator[Finding]:
    """Calls whose trained tokens have several advantages, in blocks where nine tenths of the calls have one."""
    block = view.block
    column = block.column("advantage", neutral=np.nan)
    if column is None or view.mask is None:
        return
    start, end = block.spans(view.trained, view.edges)
    long = end - start >= 2
    start, end = start[long], end[long]
    changes = np.concatenate([[0], np.cumsum(np.diff(column, prepend=column[:1]) != 0)])
    ragged = changes[end] - changes[start + 1] > 0
    if len(start) < 10 or ragged.mean() > 0.1:  # advantages per token (GAE) change everywhere
        return
    for row, token, count in block.first_per_row(start[ragged]):
        many = f"{count} call{'s' if count > 1 else ''}"
        yield block.finding("TM408", row, f"the advantage changes inside {many}, the others have one each", token=token,
                            cause="inside a call", calls=count)  # fmt: skip


@rule(
    "TM408",
    "advantage-does-not-recompute",
    ERROR,
    needs=(Need.REWARDS, Need.GROUPS, Need.ADVANTAGES),
    finish=_recompute_finish,
)
def advantage_recomputes(view: View) -> Iterator[Finding]:
    """A group's advantages are not what its rewards give.

    **What it does.** Finds the estimator that explains most groups (r − mean, divided by a standard deviation of either
    kind with the usual ε, leave-one-out, reward itself, r / mean − 1) and reports the groups that it does not explain.
    Advantages are a scalar of the row, or a column with one value on all trained tokens. A column with one value per
    call (turn) is looked at too: a call whose own tokens differ is an error where the other calls are constant.

    **Why it is bad.** Rows were lost, repeated or moved between groups after the advantages were computed, or rewards
    changed: the signs may be wrong.

    **Example.** A filter dropped two of eight rollouts; the other six keep advantages from the mean of eight.

    **How to fix.** Compute advantages last, from what is trained; our shards keep rewards and let the recipe do it.

    **Limits.** Where no known estimator explains half of the groups, yours may be another (normalised over a batch,
    clipped, by rank): this is one warning at most, and none where advantages rise with the rewards in most groups.
    """
    gather(view)
    yield from _ragged_calls(view)
