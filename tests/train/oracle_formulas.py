"""The papers' formulas over rows seen alone, by autograd: every preset, and options. Knows nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from oracle_parts import (
    Terms,
    centred,
    clip,
    compared,
    correction,
    distil,
    dppo,
    leave_one_out,
    max_rl,
    mean,
    moving,
    on_policy,
    over_n,
    pooled,
    ratio,
    rewards_of,
    sapo,
    sequence_mean,
    token_mean,
    total,
    whitened,
    whole,
    z_score,
)
from oracle_rows import Seen
from torch import Tensor

Formula = Callable[[list[Seen]], Tensor]


def policy(rows: list[Seen], values: dict[str, float], term: Callable[[Seen, Tensor], Tensor]) -> Terms:
    out: Terms = []
    for row in rows:
        a = torch.full_like(row.lp, values[row.rollout])
        out.append((row, term(row, a), row.policy))
    return out


def without_zero(terms: Terms, values: dict[str, float]) -> Terms:
    return [(row, term, mask & (values[row.rollout] != 0)) for row, term, mask in terms]


def grpo(rows: list[Seen], weight: Callable[[list[Seen], Seen], Tensor] | None = None) -> Tensor:
    values = compared(rows, z_score)
    if weight is None:
        return sequence_mean(policy(rows, values, lambda row, a: clip(ratio(row), a)))
    terms = policy(rows, values, lambda row, a: weight(rows, row) * clip(on_policy(row), a))
    return sequence_mean(terms)


def tis(rows: list[Seen], row: Seen) -> Tensor:
    return correction(row).exp().clamp(max=2.0)


def icepop(rows: list[Seen], row: Seen) -> Tensor:
    k = correction(row).exp()
    return torch.where((k >= 0.5) & (k <= 5.0), k, 0)


def mis(rows: list[Seen], row: Seen) -> Tensor:
    mine = whole(rows, row.rollout)
    if not any(bool(one.policy.any()) for one in mine):
        return torch.zeros_like(row.lp)
    k = pooled(mine, correction).mean().exp()
    return torch.where((k >= 0.5) & (k <= 2.0), k, 0).expand_as(row.lp)


def grpo_kl(rows: list[Seen]) -> Tensor:
    k3 = [(row, (row.ref - row.lp).exp() - 1 - (row.ref - row.lp), row.policy) for row in rows]
    return grpo(rows) + 0.04 * sequence_mean(k3)


def gspo(rows: list[Seen]) -> Tensor:
    values, terms = compared(rows, z_score), []
    for row in rows:
        mine = whole(rows, row.rollout)
        if not any(bool(one.policy.any()) for one in mine):
            terms.append((row, torch.zeros_like(row.lp), row.policy))
            continue
        gap = pooled(mine, lambda one: one.lp - (one.sampler if one.old is None else one.old))
        s = gap.mean().exp()  # the paper's own form: the gradient runs through the mean, not token by token
        terms.append((row, clip(s, values[row.rollout], 3e-4, 4e-4).expand_as(row.lp), row.policy))
    return sequence_mean(terms)


def dapo(rows: list[Seen]) -> Tensor:
    values = compared(rows, z_score)
    terms = policy(rows, values, lambda row, a: clip(ratio(row), a, 0.2, 0.28))
    return token_mean([(row, term, mask & (not row.truncated)) for row, term, mask in without_zero(terms, values)])


def with_dppo(rows: list[Seen], values: dict[str, float]) -> Tensor:
    return token_mean(without_zero(policy(rows, values, dppo), values))


def echo(rows: list[Seen]) -> Tensor:
    seen = [(row, -row.lp, row.observed) for row in rows]
    alpha = float(np.float32(0.1))  # weights are float32 in rows
    return with_dppo(rows, compared(rows, centred)) + alpha * token_mean(seen)


def echo_paper(rows: list[Seen]) -> Tensor:
    out, names = torch.zeros((), dtype=torch.float64), {row.rollout for row in rows if bool(row.observed.any())}
    for name in names:
        mine = [(row, -row.lp, row.observed) for row in whole(rows, name)]
        out = out + total(mine) / sum(int(mask.sum()) for _, _, mask in mine)
    return grpo(rows) + 0.1 * out / len(names)


def given(rows: list[Seen]) -> Tensor:
    return token_mean([(row, clip(ratio(row), row.given), row.policy) for row in rows])


def gae(rows: list[Seen]) -> Tensor:
    terms = []
    for row in rows:
        at, a = np.flatnonzero(row.all_policy), torch.zeros_like(row.lp)
        running = 0.0
        for k in range(len(at) - 1, -1, -1):
            paid = row.reward if k == len(at) - 1 else 0.0
            after = row.value[at[k + 1]] if k + 1 < len(at) else 0.0
            running = paid + after - row.value[at[k]] + 0.95 * running
            a[at[k]] = running
        terms.append((row, clip(ratio(row), a), row.policy))
    return token_mean(terms)


def sft(rows: list[Seen]) -> Tensor:
    return token_mean([(row, -row.lp, row.policy) for row in rows])


def reinforce(rows: list[Seen], values: dict[str, float]) -> Tensor:
    return over_n(policy(rows, values, lambda row, a: -a * row.lp))


def cispo(row: Seen, a: Tensor) -> Tensor:
    return -ratio(row).clamp(0.0, 5.0).detach() * a * row.lp


PRESETS: dict[str, Formula] = {
    "reinforce": lambda rows: reinforce(rows, rewards_of(rows)),
    "rloo": lambda rows: reinforce(rows, compared(rows, leave_one_out)),
    "reinforce_pp": lambda rows: token_mean(policy(rows, whitened(rows), lambda row, a: clip(ratio(row), a))),
    "grpo": grpo,
    "grpo_kl": grpo_kl,
    "grpo_tis": lambda rows: grpo(rows, tis),
    "grpo_icepop": lambda rows: grpo(rows, icepop),
    "grpo_mis": lambda rows: grpo(rows, mis),
    "dapo": dapo,
    "dr_grpo": lambda rows: over_n(policy(rows, compared(rows, centred), lambda row, a: clip(ratio(row), a))) / 4096,
    "gspo": gspo,
    "cispo": lambda rows: token_mean(policy(rows, compared(rows, z_score), cispo)),
    "sapo": lambda rows: sequence_mean(policy(rows, compared(rows, z_score), sapo)),
    "dppo": lambda rows: with_dppo(rows, compared(rows, centred)),
    "maxrl": lambda rows: with_dppo(rows, compared(rows, max_rl)),
    "rae": lambda rows: with_dppo(rows, moving(rows)),
    "echo": echo,
    "echo_paper": echo_paper,
    "opd": lambda rows: token_mean([(row, distil(row), row.policy) for row in rows]),
    "ppo": given,
    "ppo_gae": gae,
    "sft": sft,
}


def dual(row: Seen, a: Tensor) -> Tensor:
    usual = clip(ratio(row), a)
    return torch.where(a < 0, torch.minimum(usual, -1.5 * a), usual)


def two_sided(row: Seen, a: Tensor) -> Tensor:
    r = ratio(row)
    return -torch.minimum(r.clamp(max=1.4) * a, r.clamp(0.8, 1.2) * a)


def prompt_mean(terms: Terms) -> Tensor:
    groups = {row.group for row, _, _ in terms if row.wrote}
    out = torch.zeros((), dtype=torch.float64)
    for group in groups:
        mine = [one for one in terms if one[0].group == group]
        count = sum(int(mask.sum()) for _, _, mask in mine)
        out = out + (total(mine) / count if count else 0.0)
    return out / len(groups)


def kl_through_ratio(rows: list[Seen]) -> Tensor:
    k2 = [(row, ratio(row) * (row.lp - row.ref) ** 2 / 2, row.policy) for row in rows]
    bonus = [(row, -row.entropy, row.policy) for row in rows]
    return grpo(rows) + 0.2 * token_mean(k2) + 0.05 * token_mean(bonus)


def summed_tis(rows: list[Seen]) -> Tensor:
    def weight(row: Seen) -> Tensor:
        mine = whole(rows, row.rollout)
        if not any(bool(one.policy.any()) for one in mine):
            return torch.zeros_like(row.lp)
        return pooled(mine, correction).sum().exp().clamp(max=1.5).expand_as(row.lp)

    values = compared(rows, centred)
    return token_mean(
        policy(rows, values, lambda row, a: -weight(row) * on_policy(row).clamp(0, 2).detach() * a * row.lp)
    )


def batch_whitened(rows: list[Seen]) -> Tensor:
    values = compared(rows, leave_one_out)
    m = mean(list(values.values()))
    std = math.sqrt(sum((v - m) ** 2 for v in values.values()) / (len(values) - 1))
    return total(policy(rows, {k: v / (std + 1e-6) for k, v in values.items()}, lambda row, a: -a * row.lp))


def usual(term: Callable[[Seen, Tensor], Tensor], normal: Callable[[Terms], Tensor] = token_mean) -> Formula:
    return lambda rows: normal(policy(rows, compared(rows, centred), term))


GROUP_MEAN = {"advantage": {"estimator": "group_mean"}}
VARIANTS: dict[str, tuple[dict[str, Any], Formula]] = {
    "dual clip": (GROUP_MEAN | {"rl": {"term": "ppo", "options": {"dual_clip": 1.5}}}, usual(dual)),
    "two-sided": (GROUP_MEAN | {"rl": {"term": "ppo", "options": {"delta": 1.4}}}, usual(two_sided)),
    "prompt mean": (
        GROUP_MEAN | {"rl": {"term": "ppo", "normalizer": "prompt_mean"}},
        usual(lambda row, a: clip(ratio(row), a), prompt_mean),
    ),
    "kl through the ratio, entropy": (
        {
            "extends": "grpo",
            "kl": {"term": "kl", "coef": 0.2, "options": {"estimator": "k2", "through_ratio": True}},
            "entropy": {"term": "entropy", "coef": 0.05},
        },
        kl_through_ratio,
    ),
    "summed tis on cispo": (
        GROUP_MEAN
        | {
            "rl": {
                "term": "cispo",
                "options": {"high": 2.0},
                "mismatch": {"kind": "tis", "level": "sum", "high": 1.5},
            }
        },
        summed_tis,
    ),
    "whitened rloo, sum": (
        {"advantage": {"estimator": "rloo", "whiten": "batch"}, "rl": {"term": "reinforce", "normalizer": "sum"}},
        batch_whitened,
    ),
    "importance sampling": (
        GROUP_MEAN | {"rl": {"term": "importance_sampling"}},
        usual(lambda row, a: -(row.lp - row.sampler).exp() * a),
    ),
}
