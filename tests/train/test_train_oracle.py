"""Every preset, from rows to gradients, against its paper's formula written here alone: one row at a time, by autograd.

The data are hostile: ragged rows, forks, rollouts of several rows, uniform groups, groups of one, cut rollouts, rows in
which nothing was sampled, temperatures, ratios far from 1. Of ours the expected side has nothing but the tiny model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from train_models import VOCAB, row_of, tiny

from tracemask.core.vocab import Author
from tracemask.recipe import Recipe
from tracemask.store.row import Row
from tracemask.train.distributed import World
from tracemask.train.loader import Loader, Policy
from tracemask.train.metrics import add
from tracemask.train.model import use_attention
from tracemask.train.sources import MemoryRows
from tracemask.train.step import PolicyStep
from tracemask.train.update import accumulate

ENV, POL, TASK = int(Author.ENVIRONMENT), int(Author.POLICY), int(Author.TASKSET)


def wild_rows(seed: int, *, old: bool, spread: float) -> list[Row]:
    """Six groups: usual, usual, uniform rewards, a group of one, one with a cut rollout, one row without a sample."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for group, size in enumerate((4, 3, 3, 1, 3, 3)):
        prompt = rng.integers(0, VOCAB, int(rng.integers(1, 9)))
        for attempt in range(size):
            lengths = [int(rng.integers(1, 14)), int(rng.integers(0, 5)), int(rng.integers(1, 8))]
            authors = [TASK] * len(prompt) + [POL] * lengths[0] + [ENV] * lengths[1] + [POL] * lengths[2]
            if group == 5 and attempt == 0:
                authors = [TASK] * len(prompt) + [ENV] * (sum(lengths))
            author = np.array(authors, np.uint8)
            ids = np.concatenate([prompt, rng.integers(0, VOCAB, sum(lengths))])
            reward = 1.0 if group == 2 else round(float(rng.random() < 0.5) + 0.25 * float(rng.integers(0, 3)), 2)
            facts = {"trace_id": f"g{group}a{attempt}", "group_id": f"g{group}", "reward": reward, "branch": 0}
            facts |= {"truncated": group == 4 and attempt == 0, "n_turns": 2, "agent": f"p{attempt % 2}"}
            rows.append(row_of(len(rows), ids, author, author == POL, rng, facts))
            if attempt == 1:
                tail = int(rng.integers(1, 6))
                at = len(ids) - lengths[2]
                own = np.r_[np.zeros(at, bool), np.ones(tail, bool)]
                forked = np.r_[author[:at], np.full(tail, POL)].astype(np.uint8)
                facts = facts | {"branch": 1, "fork_row": 0, "fork_position": at}
                again = np.r_[ids[:at], rng.integers(0, VOCAB, tail)]
                rows.append(row_of(len(rows), again, forked, own, rng, facts))
    for row in rows:
        n, sampled = len(row), row["sampled"]
        row.columns["logprob"] = np.where(sampled, -np.abs(rng.normal(3.5, spread, n)), np.nan).astype(np.float32)
        row.columns["ref_logprob"] = np.where(sampled, -np.abs(rng.normal(3.5, 1.0, n)), np.nan).astype(np.float32)
        row.columns["temperature"] = np.where(rng.random(n) < 0.5, 1.0, 0.7).astype(np.float32)
        row.columns["value"] = rng.normal(0, 1, n).astype(np.float32)
        row.columns["advantage"] = rng.normal(0, 1, n).astype(np.float32)
        if old:
            near = np.clip(row["logprob"] + rng.normal(0, spread / 2, n), None, -0.01)
            row.columns["old_logprob"] = np.where(sampled, near, np.nan).astype(np.float32)
    return rows


@dataclass
class Seen:
    """One row as the formulas see it: float64 arrays of its tokens; lp carries the gradient, index 0 is never used."""

    rollout: str
    group: str
    reward: float
    agent: str
    truncated: bool
    lp: Tensor
    entropy: Tensor
    policy: Tensor  # sampled by the policy and owned by this row
    observed: Tensor  # tool output after the first reply, owned by this row
    old: Tensor | None
    sampler: Tensor
    ref: Tensor
    value: np.ndarray
    given: Tensor
    wrote: bool
    all_policy: np.ndarray


def see(model: Any, rows: list[Row]) -> list[Seen]:
    """Every row through transformers' own attention, alone."""
    out = []
    for row in rows:
        ids, s = torch.from_numpy(row["token_ids"].astype(np.int64)), row.scalars
        logits = model(ids[None], use_cache=False).logits[0]
        heat = torch.from_numpy(row["temperature"].astype(np.float64))
        log_p = (logits[:-1] / heat[1:, None]).log_softmax(-1)
        zero = torch.zeros(1, dtype=torch.float64)
        lp = torch.cat([zero, log_p.gather(1, ids[1:, None])[:, 0]])
        entropy = torch.cat([zero, -(log_p.exp() * log_p).sum(-1)])
        author = row["author"]
        after = np.cumsum(author == POL) > 0
        owned = np.arange(len(row)) >= (s.get("fork_position") or 0)
        real = np.arange(len(row)) > 0

        def column(name: str, row: Row = row) -> Tensor:
            return torch.from_numpy(np.nan_to_num(row[name].astype(np.float64)))

        out.append(
            Seen(
                s["trace_id"],
                s["group_id"],
                s["reward"],
                s["agent"],
                s["truncated"],
                lp,
                entropy,
                torch.from_numpy(row["sampled"] & real),
                torch.from_numpy((author == ENV) & after & owned & real),
                column("old_logprob") if "old_logprob" in row.columns else None,
                column("logprob"),
                column("ref_logprob"),
                row["value"].astype(np.float64),
                column("advantage"),
                bool((author == POL).any()),
                author == POL,
            )
        )
    return out


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


# ---- the presets

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


def gradients(step: Any, value: Tensor) -> list[Tensor]:
    return [g.clone() for g in torch.autograd.grad(value, list(step.parameters()))]


class Ranks:
    """A world of several ranks in one process: integer counts of every rank are known to each."""

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, {}

    def world(self, rank: int) -> World:
        ranks = self

        class Shared(World):
            def add_int(self, counts: np.ndarray) -> np.ndarray:
                ranks.parts[rank] = counts
                return sum(ranks.parts.values())

            def largest(self, number: int) -> int:
                return number

            def add_pairs(self, pairs: Any) -> Any:
                return pairs

        return Shared(rank=rank, size=self.size)


def laid(rows: list[Row], recipe: Recipe, policy: Policy, ranks: int) -> Iterator[Any]:
    """The works of every rank."""
    shared = Ranks(ranks)
    for final in (False, True):
        for rank in range(ranks):
            loader = Loader(MemoryRows(rows), recipe, policy, world=shared.world(rank), dtype=torch.float64)
            loaded = loader.step(0)
            if final:
                yield loaded.works


WAYS = (
    (Policy(tokens_per_batch=4096, packing="tree"), 1),
    (Policy(tokens_per_batch=64, packing="rows"), 1),
    (Policy(tokens_per_batch=64, packing="tree", seed=3), 2),
    (Policy(tokens_per_batch=100, packing="auto", seed=7), 4),
)


def test_every_preset_has_a_formula_here() -> None:
    from tracemask.recipe.load import preset_names

    assert set(PRESETS) == set(preset_names())


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("seed", "old", "spread"), [(0, False, 0.1), (1, True, 0.3), (2, True, 2.0)])
def test_a_preset_trains_by_its_paper_s_formula(name: str, seed: int, old: bool, spread: float) -> None:
    compare(Recipe.load(name), PRESETS[name], seed, old, spread)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("seed", "old", "spread"), [(3, False, 0.1), (4, True, 1.0)])
def test_an_option_trains_by_its_formula(name: str, seed: int, old: bool, spread: float) -> None:
    compare(Recipe.load(VARIANTS[name][0]), VARIANTS[name][1], seed, old, spread)


def compare(recipe: Recipe, formula: Formula, seed: int, old: bool, spread: float) -> None:
    """Loss, gradients and metrics of every way to lay the rows out, against the formula over each row alone."""
    rows = wild_rows(seed, old=old, spread=spread)
    model: Any = tiny("qwen3", seed=seed, tied=seed == 1)
    step = PolicyStep(model, recipe)
    model.set_attn_implementation("sdpa")
    expected = formula(see(model, rows))
    slopes = gradients(step, expected)
    scale = max(float(one.abs().max()) for one in slopes)
    assert scale > 0
    use_attention(model, "segments")
    metrics = []
    for policy, ranks in WAYS:
        step.zero_grad()
        pairs: dict[str, tuple[float, float]] = {}
        for works in laid(rows, recipe, policy, ranks):
            add(pairs, accumulate(step, works, World()))
        value = sum(recipe.components[c].coef * pairs[f"loss/{c}"][0] for c in recipe.components)
        assert value == pytest.approx(float(expected.detach()), rel=1e-11, abs=1e-12)
        for parameter, slope in zip(step.parameters(), slopes, strict=True):
            assert parameter.grad is not None
            assert float((parameter.grad - slope).abs().max()) <= 1e-12 * max(1.0, scale)
        metrics.append(pairs)
    for other in metrics[1:]:
        assert other.keys() == metrics[0].keys()
        for key, (one, count) in metrics[0].items():
            assert other[key][0] == pytest.approx(one, rel=1e-9, abs=1e-9), key
            assert other[key][1] == count or key.endswith("/max"), key
