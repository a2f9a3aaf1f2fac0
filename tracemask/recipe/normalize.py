"""Denominators from integer counts: L_c = coef · Σ w·term / Z. Knows counts, no token and no float but the result.

Every normalizer returns the integer Z of one row; 0 means that nothing is counted there.
N: rollouts scheduled for the component, whether or not anything in them is selected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tracemask.core.registry import Table
from tracemask.recipe.component import Normalizer


@dataclass(slots=True)
class Tally:
    """Counts of one component over the whole step, every rank included.

    tokens: counted tokens; rollouts: N; nonempty: rollouts with a counted token; groups: G; of_rollout: L_i of the
    rollouts on this rank; of_group: T_g of each group.
    """

    tokens: int = 0
    rollouts: int = 0
    nonempty: int = 0
    groups: int = 0
    of_rollout: dict[int, int] = field(default_factory=dict)
    of_group: dict[int, int] = field(default_factory=dict)


Denominator = Callable[[Tally, Normalizer, int, int], int]


def token_mean(tally: Tally, spec: Normalizer, rollout: int, group: int) -> int:
    """Σ over the step / counted tokens of the step (DAPO)."""
    return tally.tokens


def sequence_mean(tally: Tally, spec: Normalizer, rollout: int, group: int) -> int:
    """(1/N) Σ_i (1/L_i) Σ_t (the original GRPO); L_i sums over the rollout's rows."""
    n = tally.nonempty if spec.empty == "leave_out" else tally.rollouts
    return n * tally.of_rollout.get(rollout, 0)


def constant(tally: Tally, spec: Normalizer, rollout: int, group: int) -> int:
    """Σ / (N · L_max) (Dr. GRPO)."""
    return tally.rollouts * (spec.length or 0)


def sum_per_rollout(tally: Tally, spec: Normalizer, rollout: int, group: int) -> int:
    """Σ / N (REINFORCE)."""
    return tally.rollouts


def prompt_mean(tally: Tally, spec: Normalizer, rollout: int, group: int) -> int:
    """(1/G) Σ_g (1/T_g) Σ_t: a token mean in each group, then the mean over groups."""
    return tally.groups * tally.of_group.get(group, 0)


def total(tally: Tally, spec: Normalizer, rollout: int, group: int) -> int:
    """Σ, not divided."""
    return 1


NORMALIZERS: Table[Denominator] = Table(
    "normalizer",
    token_mean=token_mean,
    sequence_mean=sequence_mean,
    constant=constant,
    sum_per_rollout=sum_per_rollout,
    prompt_mean=prompt_mean,
    sum=total,
)


def denominator(spec: Normalizer, tally: Tally, *, rollout: int, group: int) -> int:
    """What a row's tokens are divided by: the normalizer's Z, at least 1: 0 / Z is 0 where nothing is counted."""
    return max(NORMALIZERS[spec.effective](tally, spec, rollout, group), 1)
