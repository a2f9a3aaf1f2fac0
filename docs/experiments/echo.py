"""Claim 3: cross-entropy on observations (ECHO) helps where they teach the dynamics, and not where they are arbitrary.

Built to show it: a hidden mapping of 64 digits must be guessed digit by digit. After each guess the environment prints
either the digit and its true image (informative) or three random digits (arbitrary). `echo` adds 0.1 · cross-entropy on
what was printed, over its own denominator; `plain` is the same policy gradient alone.
"""

from __future__ import annotations

import torch
from toy import Tiny, draw, logprobs

from tracemask import loss
from tracemask.recipe import Recipe

DIGITS = 64
VARIANTS = ("plain, informative", "echo, informative", "plain, arbitrary", "echo, arbitrary")


def recipe(echo: bool) -> Recipe:
    """REINFORCE summed per rollout, with or without cross-entropy on observations."""
    components: dict[str, object] = {"rl": {"term": "reinforce", "normalizer": "sum_per_rollout"}}
    if echo:
        components["ce"] = {"term": "ce", "coef": 0.1, "normalizer": "token_mean", "select": [{"sampled": False}]}
    return Recipe.load({"name": "echo_toy", "advantage": {"estimator": "group_mean_std"}, "components": components})


def run(variant: str, seed: int, *, steps: int = 400, rollouts: int = 64, group: int = 8) -> dict[str, list[float]]:
    """Mean reward at each step."""
    torch.manual_seed(seed)
    echo, informative = variant.startswith("echo"), variant.endswith("informative")
    rules, model = recipe(echo), Tiny(DIGITS + 1, 8, layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    mapping, groups, rewards = torch.randperm(DIGITS), torch.arange(rollouts) // group, []
    for _ in range(steps):
        with torch.no_grad():
            digit = torch.randint(0, DIGITS, (rollouts // group,)).repeat_interleave(group)
            ask = torch.stack([digit, torch.full_like(digit, DIGITS)], 1)
            guess = draw(model(ask)[:, -1])
            truth = torch.cat([ask, mapping[digit][:, None]], 1)
            printed = truth if informative else torch.randint(0, DIGITS, (rollouts, 3))
            ids = torch.cat([ask, guess[:, None], printed], 1)
            reward = (guess == mapping[digit]).float()
        weights = {"rl": torch.zeros(ids.shape)}
        weights["rl"][:, 2] = 1.0
        if echo:
            weights["ce"] = torch.zeros(ids.shape)
            weights["ce"][:, 3:] = 1.0
        out = loss.from_logprobs(rules, logprobs(model, ids), weights=weights, rewards=reward, group=groups)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        rewards.append(float(reward.mean()))
    return {"reward": rewards}
