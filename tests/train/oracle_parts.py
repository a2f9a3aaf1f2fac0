"""What the papers' formulas are made of: advantages, terms per token, normalizers. Knows nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from oracle_rows import Seen
from torch import Tensor

# ---- advantages: rewards by rollout → one number by rollout


def rewards_of(rows: list[Seen]) -> dict[str, float]:
    return {row.rollout: row.reward for row in rows}


def by_group(rows: list[Seen]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for row in rows:
        if row.rollout not in out.setdefault(row.group, []):
            out[row.group].append(row.rollout)
    return out


def compared(rows: list[Seen], rule: Callable[[list[float]], list[float]]) -> dict[str, float]:
    rewards, out = rewards_of(rows), {}
    for names in by_group(rows).values():
        values = [rewards[name] for name in names]
        same = len(set(values)) == 1
        out |= dict(zip(names, [0.0] * len(names) if same else rule(values), strict=True))
    return out


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def z_score(values: list[float]) -> list[float]:
    m = mean(values)
    std = math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))
    return [(v - m) / (std + 1e-6) for v in values]


def leave_one_out(values: list[float]) -> list[float]:
    return [v - (sum(values) - v) / (len(values) - 1) for v in values]


def centred(values: list[float]) -> list[float]:
    return [v - mean(values) for v in values]


def max_rl(values: list[float]) -> list[float]:
    return [(v - mean(values)) / mean(values) for v in values]


def whitened(rows: list[Seen]) -> dict[str, float]:
    rewards = rewards_of(rows)
    m = mean(list(rewards.values()))
    std = math.sqrt(mean([(v - m) ** 2 for v in rewards.values()]))
    return {name: (v - m) / (std + 1e-8) for name, v in rewards.items()}


def moving(rows: list[Seen]) -> dict[str, float]:
    base: dict[str, float] = {}
    out = {}
    for row in rows:
        if row.rollout not in out:
            b = base.get(row.agent, 0.0)
            out[row.rollout] = row.reward - b
            base[row.agent] = 0.95 * b + 0.05 * row.reward
    return out


# ---- terms per token


def clip(r: Tensor, a: Any, low: float = 0.2, high: float = 0.2) -> Tensor:
    return -torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)


def ratio(row: Seen) -> Tensor:
    return (row.lp - (row.sampler if row.old is None else row.old)).exp()


def correction(row: Seen) -> Tensor:
    """old − sampler, of the current policy where nobody recorded an old one."""
    return (row.lp.detach() if row.old is None else row.old) - row.sampler


def on_policy(row: Seen) -> Tensor:
    return (row.lp - (row.lp.detach() if row.old is None else row.old)).exp()


def dppo(row: Seen, a: Tensor) -> Tensor:
    p, q = row.lp.exp().detach(), row.sampler.exp()
    keep = ~(((a > 0) & (p - q > 0.2)) | ((a < 0) & (p - q < -0.2)))
    return -keep.double() * a * (row.lp - row.sampler).exp() + 1e-3 * (row.lp - row.sampler) ** 2


def distil(row: Seen) -> Tensor:
    keep = (row.lp.exp() - row.sampler.exp()).detach() >= -0.2
    gain = (row.ref - row.lp).detach()
    return -keep.double() * gain * (row.lp - row.sampler).exp() + 1e-3 * (row.lp - row.sampler) ** 2


def sapo(row: Seen, a: Tensor) -> Tensor:
    tau = torch.where(a > 0, torch.ones_like(a), torch.full_like(a, 1.05))
    return -a * torch.sigmoid(tau * (ratio(row) - 1)) * 4 / tau


def whole(rows: list[Seen], name: str) -> list[Seen]:
    return [row for row in rows if row.rollout == name]


def pooled(rows: list[Seen], pick: Callable[[Seen], Tensor]) -> Tensor:
    return torch.cat([pick(row)[row.policy] for row in rows])


# ---- normalizers: (row, per-token term, mask) triples → a number

Terms = list[tuple[Seen, Tensor, Tensor]]


def total(terms: Terms) -> Tensor:
    return sum((torch.where(mask, term, 0).sum() for _, term, mask in terms), torch.zeros((), dtype=torch.float64))


def scheduled(rows: list[Seen]) -> int:
    return len({row.rollout for row in rows if row.wrote})


def token_mean(terms: Terms) -> Tensor:
    return total(terms) / max(1, sum(int(mask.sum()) for _, _, mask in terms))


def sequence_mean(terms: Terms) -> Tensor:
    n, out = scheduled([row for row, _, _ in terms]), torch.zeros((), dtype=torch.float64)
    for name in {row.rollout for row, _, _ in terms}:
        mine = [one for one in terms if one[0].rollout == name]
        count = sum(int(mask.sum()) for _, _, mask in mine)
        if count:
            out = out + total(mine) / count / n
    return out


def over_n(terms: Terms) -> Tensor:
    return total(terms) / scheduled([row for row, _, _ in terms])
