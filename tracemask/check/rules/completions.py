"""Rules about what the rollouts of a group sampled: copies, lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracemask.check.block import named
from tracemask.check.context import Run
from tracemask.check.finding import INFO, WARNING, Finding
from tracemask.check.rollouts import Groups, Rollout, gather, heads, place_of
from tracemask.check.rule import Need, rule
from tracemask.check.view import View


def _duplicates_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    for name, members in groups.by_id.items():
        first: dict[int, Rollout] = {}
        for member in heads(members):
            if member.n_sampled < 16:
                continue
            twin = first.setdefault(member.sampled, member)
            if twin is not member:
                text = f"group {name}: {member.n_sampled} sampled tokens are those of {named(twin.row, twin.line)}"
                yield Finding("TM409", text, place_of(member), data={"group": name, "twin": twin.row})


@rule("TM409", "duplicate-completions", WARNING, needs=(Need.GROUPS, Need.MASK), finish=_duplicates_finish)
def duplicate_completions(view: View) -> Iterator[Finding]:
    """Two rollouts of a group sampled exactly the same tokens.

    **What it does.** Compares the sampled ids of a group's rollouts, from 16 tokens on.

    **Why it is bad.** At temperature 1 this does not happen by chance: one rollout was logged twice, or all were
    sampled with one seed. The group's baseline counts it double.

    **Example.** A retry that was logged beside the attempt it retried.

    **How to fix.** Drop the copies, give each request its own seed.

    **Limits.** Greedy sampling gives equal rollouts rightly; then a group has nothing to compare.
    """
    gather(view)
    return iter(())


def _bias_finish(run: Run) -> Iterator[Finding]:
    groups: Groups = run.state("groups", Groups)
    every = [m for members in [*groups.by_id.values(), groups.loose] for m in heads(members) if m.reward is not None]
    if len(every) < 8:
        return
    rewards = np.array([m.reward for m in every], dtype=np.float64)
    lengths = np.array([m.n_sampled for m in every], dtype=np.float64)
    if np.ptp(rewards) == 0 or np.ptp(lengths) == 0:
        return
    r = float(np.corrcoef(rewards, lengths)[0, 1])
    high, low = lengths[rewards > np.median(rewards)], lengths[rewards <= np.median(rewards)]
    words = (
        f"mean length {high.mean():,.0f} above the median reward, {low.mean():,.0f} at or below" if len(high) else ""
    )
    text = f"correlation of sampled length with reward is {r:+.2f} over {len(every)} rollouts"
    yield Finding(
        "TM410", f"{text}; {words}" if words else text, data={"correlation": round(r, 4), "rollouts": len(every)}
    )


@rule("TM410", "length-bias", INFO, needs=(Need.REWARDS, Need.MASK), finish=_bias_finish)
def length_bias(view: View) -> Iterator[Finding]:
    """How the length of a rollout goes with its reward.

    **What it does.** Correlates sampled tokens with reward over all rollouts, and states the mean lengths.

    **Why it matters.** A mean per sequence gives each token of a long rollout less weight: with bad rollouts longer
    than good ones, their tokens are punished less, and answers grow. The normalizer decides how much.

    **Example.** `correlation of sampled length with reward is -0.61`.

    **How to fix.** `tracemask explain --recipe NAME` shows the weights per token under every normalizer.

    **Limits.** Eight rollouts at least; a report, never a judgement.
    """
    gather(view)
    return iter(())
