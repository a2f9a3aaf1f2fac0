"""Rules that hold stored log-probs against a model's own (written by `tracemask score`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

SHIFTS = (-2, -1, 0, 1, 2)
LEAST = 16  # sampled tokens, at temperature 1
LEAST_FLAT = 64  # where log-probs hardly vary
FLAT = 0.3  # standard deviation, nats
MARGIN = 0.2  # of correlation by which another shift must win
NEEDS = (Need.MASK, Need.LOGPROBS, Need.SCORES)


def pairs(view: View) -> np.ndarray:
    """bool[N]: trained tokens that have both log-probs."""
    stored, scored = view.block.logprob, score_of(view)
    assert stored is not None
    return view.trained & np.isfinite(stored) & np.isfinite(scored)


def score_of(view: View) -> np.ndarray:
    """score_logprob[N], NaN where there is none."""
    scored = view.block.column("score_logprob", neutral=np.nan)
    assert scored is not None
    return scored


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's r in float64; 0 where either is constant."""
    x, y = x.astype(np.float64) - x.mean(dtype=np.float64), y.astype(np.float64) - y.mean(dtype=np.float64)
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 0 else 0.0


def shifted_pair(stored: np.ndarray, scored: np.ndarray, on: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """stored[t] beside scored[t + d], both on trained tokens of one row."""
    n = len(stored)
    t = np.flatnonzero(on)
    t = t[(t + d >= 0) & (t + d < n)]
    t = t[on[t + d]]
    return stored[t], scored[t + d]


@rule("TM402", "logprob-shifted", ERROR, needs=NEEDS)
def logprob_shifted(view: View) -> Iterator[Finding]:
    """Stored log-probs belong to neighbouring tokens.

    **What it does.** Correlates a row's stored log-probs with recomputed ones at shifts −2…2; another shift than 0 that
    wins by 0.2 is reported. 16 sampled tokens suffice at temperature 1, 64 where log-probs hardly vary.

    **Why it is bad.** Ratios are taken between different tokens: the update is noise with the right average size.

    **Example.** Log-probs cut as `logprobs[1:]` because "the first token has none", which was true of the prompt only.

    **How to fix.** Store log-prob t beside token t. `tracemask fix --unsafe-fixes` moves them back.

    **Limits.** Needs scores of the same or a similar policy; shorter rows abstain.
    """
    block, on, scored = view.block, pairs(view), score_of(view)
    stored = block.logprob
    assert stored is not None
    for row in np.flatnonzero(np.bincount(block.row_of[on], minlength=len(block.rows)) >= LEAST).tolist():
        part = slice(int(block.offsets[row]), int(block.offsets[row + 1]))
        best, gain = _best_shift(stored[part], scored[part], on[part])
        if best:
            token = int(np.argmax(on[part]))
            text = f"log-probs fit the model at shift {best:+d} (correlation {gain[0]:.2f}, {gain[1]:.2f} as stored)"
            yield block.finding("TM402", row, text, token=token, cause=f"shift {best:+d}", shift=best)


def _best_shift(stored: np.ndarray, scored: np.ndarray, on: np.ndarray) -> tuple[int, tuple[float, float]]:
    found = {}
    for d in SHIFTS:
        x, y = shifted_pair(stored, scored, on, d)
        least = LEAST - 2 if len(y) and y.std() >= FLAT else LEAST_FLAT
        found[d] = correlation(x, y) if len(x) >= least else 0.0
    best = max(found, key=lambda d: found[d])
    wins = best != 0 and found[best] >= 0.5 and found[best] - found[0] >= MARGIN
    return (-best if wins else 0), (found[best], found[0])


@dataclass
class Pairs:
    """Sums over trained tokens that have both log-probs, and how their difference is spread."""

    n: int = 0
    below: int = 0  # stored lower than the model's by more than noise
    above: int = 0  # stored higher by more than noise
    over: float = 0.0
    sample: list[np.ndarray] = field(default_factory=list)
    kept: int = 0


NOISE = 0.02  # nats between two engines on one model
KEEP = 1 << 16  # pairs kept for medians


def tally(view: View) -> Pairs:
    """The run's sums with this block added; several rules may call it, the first call adds."""
    seen = view.run.state("pairs", Pairs)
    if "pairs" in view.block.facts:
        return seen
    view.block.facts["pairs"] = True
    on = pairs(view)
    stored = view.block.logprob
    assert stored is not None
    y, x = stored[on].astype(np.float64), score_of(view)[on].astype(np.float64)
    seen.n += len(x)
    gap = y - x
    seen.below += int((gap < -NOISE).sum())
    seen.above += int((gap > NOISE).sum())
    seen.over += float(gap[gap > NOISE].sum())
    if seen.kept < KEEP:
        seen.sample.append(np.stack([x, y])[:, : KEEP - seen.kept])
        seen.kept += seen.sample[-1].shape[1]
    return seen


def _temperature_finish(run: Run) -> Iterator[Finding]:
    seen = run.state("pairs", Pairs)
    temperature = _temperature(seen)
    if temperature is not None and abs(np.log(temperature)) > np.log(1.08):
        text = f"stored log-probs look like temperature {temperature:.2f} of the model's"
        yield Finding("TM405", text, data={"temperature": round(temperature, 3), "tokens": seen.n})


def _temperature(seen: Pairs) -> float | None:
    """The temperature at which the stored log-probs fit the scores; None where they do not, or are few.

    At temperature T, log p_T = log p / T − c with c from the rest of the distribution. On improbable tokens the slope
    of stored against scored tends to 1/T, and c ≥ 0 below 1. Renormalisation over a support keeps the slope at 1.
    """
    if seen.n < 256:
        return None
    x, y = np.concatenate(seen.sample, axis=1)
    varied = x < -0.05
    if varied.sum() < 128:
        return None
    x, y = x[varied], y[varied]
    r = correlation(x, y)
    if r < 0.9:
        return None
    slope = float(y.std() / x.std())  # both are noisy: the reduced major axis favours neither
    return 1.0 / slope if r >= 0.98 or abs(np.log(slope)) > 0.15 else None


@rule("TM405", "temperature-signature", WARNING, needs=NEEDS, finish=_temperature_finish)
def temperature_signature(view: View) -> Iterator[Finding]:
    """Stored log-probs are those of another temperature than the model's.

    **What it does.** Compares the spread of stored log-probs with that of recomputed ones over the whole dataset: a
    ratio other than 1 is the inverse temperature.

    **Why it is bad.** The trainer computes new log-probs at temperature 1 (or at the recipe's); old ones at another
    temperature make every ratio wrong in the same direction.

    **Example.** Sampled at 0.6 and logged after the temperature, trained at 1.

    **How to fix.** Store the temperature (`temperature` column) and let the recipe use it, or log raw log-probs.

    **Limits.** Needs 256 tokens with scores, and scores of the policy that sampled. Rows with a `temperature` column
    other than 1 are not judged.
    """
    known = view.block.column("temperature", neutral=np.nan)
    if known is not None and (np.isfinite(known) & (known != 1)).any():
        return iter(())
    tally(view)
    return iter(())


@rule("TM411", "ratio-overflow", WARNING, needs=NEEDS)
def ratio_overflow(view: View) -> Iterator[Finding]:
    """The model's and the stored log-prob of a token differ by more than e¹⁰.

    **What it does.** Looks for trained tokens whose |score − stored| exceeds 10 nats.

    **Why it is bad.** The ratio is above 22,000 or below 1/22,000: one token decides the step, or a sequence ratio
    overflows. It is never a matter of staleness alone; the token, the mask or the model is another.

    **Example.** A stop appended by the harness with log-prob −23.

    **How to fix.** Look at the token; mask rows with such ratios (`ratio_mask` in the recipe) until it is understood.

    **Limits.** Needs scores of the policy that sampled.
    """
    on = pairs(view) & ~view.upset[view.block.row_of]
    stored = view.block.logprob
    assert stored is not None
    with np.errstate(invalid="ignore"):
        wide = on & (np.abs(score_of(view) - stored) > 10)
    yield from view.block.each("TM411", np.flatnonzero(wide), "{n} token{s} with a ratio beyond e^±10")


def _support_finish(run: Run) -> Iterator[Finding]:
    seen = run.state("pairs", Pairs)
    if seen.n < 256:
        return
    temperature = _temperature(seen)
    if temperature is not None and abs(np.log(temperature)) > np.log(1.08):
        return  # another temperature explains the difference
    if seen.above >= 0.2 * seen.n and seen.below <= 0.01 * seen.n:
        text = f"stored log-probs are never lower than the model's and {seen.over / seen.n:.2f} nats higher on average"
        yield Finding("TM412", text + ": renormalised over top-k or top-p", data={"tokens": seen.n})


@rule("TM412", "sampling-support", WARNING, needs=NEEDS, finish=_support_finish)
def sampling_support(view: View) -> Iterator[Finding]:
    """Stored log-probs are renormalised over the sampler's support (top-k, top-p, min-p).

    **What it does.** Looks for stored log-probs that are never below the model's and often above, as they are when the
    probability of what the sampler cut away was given to the rest.

    **Why it is bad.** The trainer's log-probs are over the whole vocabulary: with .9 of the mass kept, every ratio is
    at most .9, and the clip range loses half of its width.

    **Example.** vLLM with `logprobs_mode=processed_logprobs` and `top_p=0.9`.

    **How to fix.** Log raw log-probs, sample with top-p 1 and top-k off, or give the trainer the same support.

    **Limits.** Needs 256 tokens with scores of the policy that sampled; a low temperature looks alike and is TM405.
    """
    tally(view)
    return iter(())
