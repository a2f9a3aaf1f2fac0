"""Claim 2: observation tokens in the policy gradient ruin the policy, and a mask shifted by one hurts.

Built to show it: the policy repeats a digit as a query, reads 24 random tokens and a clue, then must repeat the
clue. Two tokens it sampled, 25 it only read. Only the mask differs.
"""

from __future__ import annotations

import torch
from toy import Tiny, draw, logprobs

from tracemask import loss
from tracemask.recipe import Recipe

DIGITS, NOISE = 8, 24
VOCAB = 2 * DIGITS + 16
VARIANTS = ("sampled tokens", "every token", "shifted by one")
RECIPE = {
    "name": "observation_mask",
    "advantage": {"estimator": "group_mean_std"},
    "components": {"rl": {"term": "reinforce", "normalizer": "token_mean"}},
}


@torch.no_grad()
def play(model: Tiny, rollouts: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [B, 2 + NOISE + 2] (digit, query, noise, clue, answer) and rewards [B]."""
    digit = torch.randint(0, DIGITS, (rollouts // group,)).repeat_interleave(group)
    cache = model.empty()
    query = draw(model(digit[:, None], cache)[:, -1])
    clue = torch.randint(0, DIGITS, (rollouts,))
    noise = torch.randint(2 * DIGITS, VOCAB, (rollouts, NOISE))
    read = torch.cat([query[:, None], noise, (DIGITS + clue)[:, None]], 1)
    for place in range(read.shape[1]):
        logits = model(read[:, place : place + 1], cache, 1 + place)[:, -1]
    answer = draw(logits)
    reward = 0.5 * (query == digit) + 0.5 * (answer == clue)
    return torch.cat([digit[:, None], read, answer[:, None]], 1), reward


def mask_of(variant: str, ids: torch.Tensor) -> torch.Tensor:
    """Which tokens are in the loss [B, T]."""
    sampled = torch.zeros(ids.shape)
    sampled[:, 1] = sampled[:, -1] = 1.0
    if variant == "every token":
        sampled[:, 1:] = 1.0
    if variant == "shifted by one":
        sampled = sampled.roll(1, 1)
        sampled[:, 0] = 0.0
    return sampled


def run(variant: str, seed: int, *, steps: int = 300, rollouts: int = 128, group: int = 8) -> dict[str, list[float]]:
    """Mean reward at each step."""
    torch.manual_seed(seed)
    rules, model = Recipe.load(RECIPE), Tiny(VOCAB, NOISE + 8, layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    groups, rewards = torch.arange(rollouts) // group, []
    for _ in range(steps):
        ids, reward = play(model, rollouts, group)
        mask = mask_of(variant, ids)
        out = loss.from_logprobs(rules, logprobs(model, ids), mask=mask, rewards=reward, group=groups)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        rewards.append(float(reward.mean()))
    return {"reward": rewards}
