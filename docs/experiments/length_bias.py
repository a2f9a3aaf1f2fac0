"""Claim 1: with a sequence-mean normalizer failed rollouts drift longer and right ones shorter.

Built to show it: the policy acts, then sees a coin flip that decides the reward (so nothing it does matters), then
writes tokens until it stops. Length never pays. All three normalizers see the same rewards; only the denominator of the
policy loss differs.
"""

from __future__ import annotations

from typing import Any

import torch
from toy import Tiny, draw, logprobs

from tracemask import loss
from tracemask.recipe import Recipe

VOCAB, BOS, RIGHT, WRONG, STOP, LONGEST = 16, 0, 1, 2, 3, 64
VARIANTS = {
    "sequence mean": "sequence_mean",
    "token mean": "token_mean",
    "constant": {"name": "constant", "length": LONGEST},
}


def recipe(normalizer: str | dict[str, Any]) -> Recipe:
    """REINFORCE on group-normalised rewards under one normalizer."""
    return Recipe.load(
        {
            "name": "length_bias",
            "advantage": {"estimator": "group_mean_std"},
            "components": {"rl": {"term": "reinforce", "normalizer": normalizer}},
        }
    )


@torch.no_grad()
def play(model: Tiny, rollouts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids [B, T], mask of sampled tokens [B, T], who was right [B]."""
    cache, first = model.empty(), torch.full((rollouts, 1), BOS)
    action = draw(model(first, cache)[:, -1])
    right = torch.rand(rollouts) < 0.5
    told = torch.where(right, RIGHT, WRONG)
    model(action[:, None], cache, 1)
    logits = model(told[:, None], cache, 2)[:, -1]
    ids, alive = [first[:, 0], action, told], torch.ones(rollouts, dtype=torch.bool)
    mask = [torch.zeros(rollouts), torch.ones(rollouts), torch.zeros(rollouts)]
    for place in range(LONGEST):
        token = torch.where(alive, draw(logits), STOP)
        ids.append(token)
        mask.append(alive.float())
        alive = alive & (token != STOP)
        if not alive.any() or place == LONGEST - 1:
            break
        logits = model(token[:, None], cache, 3 + place)[:, -1]
    return torch.stack(ids, 1), torch.stack(mask, 1), right


def run(variant: str, seed: int, *, steps: int = 150, rollouts: int = 128, group: int = 8) -> dict[str, list[float]]:
    """Mean length of failed and of right rollouts at each step."""
    torch.manual_seed(seed)
    rules, model = recipe(VARIANTS[variant]), Tiny(VOCAB, LONGEST + 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    lengths: dict[str, list[float]] = {"failed": [], "right": []}
    groups = torch.arange(rollouts) // group
    for _ in range(steps):
        ids, mask, right = play(model, rollouts)
        out = loss.from_logprobs(rules, logprobs(model, ids), mask=mask, rewards=right.float(), group=groups)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        written = mask.sum(1)
        lengths["failed"].append(float(written[~right].mean()))
        lengths["right"].append(float(written[right].mean()))
    return lengths
