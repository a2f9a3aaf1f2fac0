"""Rules about log-probs as numbers: shifted against the ids, of low precision, impossible entropies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

SHIFTS = (-2, -1, 0, 1, 2)
ENOUGH = 10_000  # tokens
MARGIN = 0.05  # of R² by which another shift must win


@dataclass
class Moments:
    """Per shift: count, sum and sum of squares of log-probs by the id that stands there."""

    n: dict[int, np.ndarray] = field(default_factory=dict)
    s: dict[int, np.ndarray] = field(default_factory=dict)
    q: dict[int, np.ndarray] = field(default_factory=dict)

    def add(self, d: int, ids: np.ndarray, values: np.ndarray) -> None:
        """Count `values` under `ids` at shift d."""
        size = max(int(ids.max()) + 1 if len(ids) else 0, len(self.n.get(d, ())))
        for table, weights in ((self.n, None), (self.s, values), (self.q, values * values)):
            new = np.bincount(ids, weights=weights, minlength=size).astype(np.float64)
            old = table.get(d)
            if old is not None:
                new[: len(old)] += old
            table[d] = new

    def score(self, d: int) -> tuple[float, int]:
        """(leave-one-out R² of log-prob on id at shift d, tokens): each token is predicted by the others of its id."""
        n, s, q = self.n[d], self.s[d], self.q[d]
        many = n >= 2
        n, s, q = n[many], s[many], q[many]
        total = float(n.sum())
        if total < 2:
            return 0.0, 0
        within = q - s * s / n
        error = float(((n / (n - 1)) ** 2 * within).sum())
        spread = float(q.sum() - s.sum() ** 2 / total) * (total / (total - 1)) ** 2
        return (1.0 - error / spread if spread > 0 else 0.0), int(total)


def _free_finish(run: Run) -> Iterator[Finding]:
    moments = run.state("TM403", Moments)
    if not moments.n:
        return
    scores = {d: moments.score(d) for d in SHIFTS}
    if min(tokens for _, tokens in scores.values()) < ENOUGH:
        return
    best = max(scores, key=lambda d: scores[d][0])
    if best != 0 and scores[best][0] - scores[0][0] >= MARGIN:
        text = (
            f"log-probs fit the ids at shift {-best:+d} (R² {scores[best][0]:.2f}, {scores[0][0]:.2f} as stored, "
            f"{scores[0][1]:,} tokens)"
        )
        yield Finding("TM403", text, cause=f"shift {-best:+d}", data={"shift": -best})


@rule("TM403", "logprob-shifted-model-free", WARNING, needs=(Need.IDS, Need.MASK, Need.LOGPROBS), finish=_free_finish)
def shifted_model_free(view: View) -> Iterator[Finding]:
    """Log-probs are better explained by the neighbouring token's id than by their own.

    **What it does.** Over the whole dataset, predicts each log-prob by the mean of the others with the same id
    (leave-one-out R²), for the id at shifts −2…2. Another shift that wins by 0.05 over 10,000 tokens is reported.

    **Why it is bad.** As TM402: ratios between different tokens.

    **Example.** A logger that drops the first log-prob of each reply and appends one at its end.

    **How to fix.** Store log-prob t beside token t; confirm with `tracemask score` and TM402.

    **Limits.** Needs 10,000 sampled tokens with repeated ids; a few shifted rows among many are only seen by TM402.
    """
    values = view.block.logprob
    assert values is not None
    on = view.trained & np.isfinite(values) & ~view.upset[view.block.row_of]
    if not on.any():
        return iter(())
    ids = np.maximum(view.block.ids, 0)
    moments = view.run.state("TM403", Moments)
    row_of, n = view.block.row_of, len(view.block)
    at = np.flatnonzero(on)
    for d in SHIFTS:
        t = at[(at + d >= 0) & (at + d < n)]
        t = t[on[t + d] & (row_of[t + d] == row_of[t])]
        moments.add(d, ids[t + d], values[t].astype(np.float64))
    return iter(())


@dataclass
class Precision:
    """Non-zero finite log-probs, and how many fit into 8 or 11 bits of mantissa."""

    n: int = 0
    bfloat16: int = 0
    float16: int = 0


def _precision_finish(run: Run) -> Iterator[Finding]:
    seen = run.state("TM413", Precision)
    if seen.n < 256:
        return
    for name, count in (("bfloat16", seen.bfloat16), ("float16", seen.float16)):
        if count >= 0.99 * seen.n:
            text = f"{count:,} of {seen.n:,} log-probs are exact {name} numbers"
            yield Finding("TM413", text, cause=name, data={"tokens": seen.n})
            return


@rule("TM413", "low-precision-logprobs", WARNING, needs=(Need.MASK, Need.LOGPROBS), finish=_precision_finish)
def low_precision(view: View) -> Iterator[Finding]:
    """Log-probs were rounded to bfloat16 or float16.

    **What it does.** Looks at the mantissas: float32 log-probs of a float32 softmax fill them.

    **Why it is bad.** bfloat16 has 8 bits: a log-prob of −5.3 is off by up to .016, which is the size of the ratios
    that clipping is about; sequence ratios add hundreds of such errors.

    **Example.** `logits.to(torch.bfloat16).log_softmax(-1)`.

    **How to fix.** Compute log-softmax in float32 and store float32.

    **Limits.** Needs 256 log-probs. A model in bfloat16 with a float32 softmax is fine and not seen.
    """
    values = view.block.logprob
    assert values is not None
    chosen = values[view.trained & np.isfinite(values) & (values != 0)].astype(np.float32)
    seen = view.run.state("TM413", Precision)
    seen.n += len(chosen)
    seen.bfloat16 += int(((chosen.view(np.uint32) & 0xFFFF) == 0).sum())
    with np.errstate(over="ignore"):
        seen.float16 += int((chosen.astype(np.float16).astype(np.float32) == chosen).sum())
    return iter(())


@rule("TM414", "entropy-out-of-range", WARNING, needs=(Need.MASK, Need.ENTROPY))
def entropy_out_of_range(view: View) -> Iterator[Finding]:
    """A stored entropy is negative, not finite, or above what the vocabulary allows.

    **What it does.** Checks the `entropy` column on trained tokens against [0, ln V].

    **Why it is bad.** An entropy bonus, or token selection by entropy, follows such values at once: a sentinel in the
    padding is enough to swamp the sum.

    **Example.** `entropy = -1` where no value was computed.

    **How to fix.** Leave absent values NaN, outside the mask.

    **Limits.** Without a tokenizer the bound is that of the largest id in the block.
    """
    values = view.block.column("entropy", neutral=np.nan)
    assert values is not None
    size = view.lens.size if view.run.lens is not None else int(view.block.ids.max(initial=1)) + 1
    limit = math.log(max(size, 2)) + 1e-3
    with np.errstate(invalid="ignore"):
        wrong = view.trained & ((values < -1e-4) | (values > limit) | np.isinf(values))
    yield from view.block.each("TM414", np.flatnonzero(wrong), f"{{n}} entropy value{{s}} outside [0, {limit:.1f}]")
