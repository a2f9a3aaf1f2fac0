"""The passes of one batch: log-probs read before the first update, and gradients. Knows no file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tracemask.core.errors import TrainError
from tracemask.recipe import Recipe
from tracemask.train.batching import dummy
from tracemask.train.config import OldLogprobs, TrainConfig
from tracemask.train.distributed import World, is_ddp, no_sync
from tracemask.train.loader import Loaded
from tracemask.train.metrics import Pairs, add
from tracemask.train.step import Work, count_kept, read_logprobs


def padded(loader: Any, loaded: Loaded) -> list[Work]:
    """This rank's micro-batches and as many empty ones as the busiest rank has more. Collective."""
    missing = loader.world.largest(len(loaded.works)) - len(loaded.works)
    empty = dummy(list(loader.recipe.components), device=loader.world.device, dtype=loader.dtype)
    return [*loaded.works, *[empty] * missing]


def accumulate(module: nn.Module, works: list[Work], world: World) -> Pairs:
    """Backward over all micro-batches: gradients become the step's own, over all ranks. Returns this rank's metrics."""
    pairs: Pairs = {}
    counts = _kept(module, works, world)
    undo = float(world.size) if is_ddp(module) else 1.0
    for at, work in enumerate(works):
        with no_sync(module, last=at == len(works) - 1):
            total, output = module(work, entropy=True, counts=counts)
            (total * undo).backward()
        add(pairs, output.metrics)
        add(pairs, {f"{name}/max": (value, 1.0) for name, value in output.maxima.items()})
        add(pairs, {f"loss/{name}": (one.value, 0.0) for name, one in output.components.items()})
    return pairs


def _kept(module: nn.Module, works: list[Work], world: World) -> dict[str, float] | None:
    """Denominators of components that count after rejection: one log-prob pass, one all-reduce. Others: None."""
    recipe: Any = getattr(module, "module", module).recipe
    late = [name for name, one in recipe.components.items() if one.normalizer.count == "after_rejection"]
    if not late:
        return None
    kept = [count_kept(module, work) for work in works]
    total = world.add_int(np.asarray([sum(one[name] for one in kept) for name in late], np.int64))
    return {name: float(max(1, count)) for name, count in zip(late, total.tolist(), strict=True)}


def with_old(module: nn.Module, works: list[Work], config: TrainConfig, loader: Any) -> tuple[list[Work], float]:
    """Old log-probs as configured: the shard's, the sampler's, or read here; and whether they were read."""
    how = config.old
    if "old" not in loader.recipe.needs:
        return works, 0.0
    must_have_old(works, config, loader)
    if how is OldLogprobs.SAMPLER:
        return [replace(one, batch=replace(one.batch, old_logprob=None)) for one in works], 0.0
    if how is OldLogprobs.SHARD:
        return works, 0.0
    read = how is OldLogprobs.START or config.updates_per_batch > 1
    if how is OldLogprobs.AUTO:
        stored = not loader.world.largest(sum(_lacks(one, loader.recipe, "old_logprob") for one in works))
        sampled = not loader.world.largest(sum(_lacks(one, loader.recipe, "sampler_logprob") for one in works))
        read = not stored and (read or not sampled)
        if not stored and not read:
            works = [replace(one, batch=replace(one.batch, old_logprob=None)) for one in works]
    if not read:
        return works, 0.0
    fresh = [read_logprobs(module, one).to(loader.dtype) for one in works]
    return [replace(one, batch=replace(one.batch, old_logprob=lp)) for one, lp in zip(works, fresh, strict=True)], 1.0


_STATED = {OldLogprobs.SAMPLER: "sampler_logprob", OldLogprobs.SHARD: "old_logprob"}


def must_have_old(works: list[Work], config: TrainConfig, loader: Any) -> None:
    """TrainError TM603 where the run names the column of old log-probs, and trained tokens have none. Collective."""
    name = _STATED.get(config.old)
    if name is None or "old" not in loader.recipe.needs:
        return
    if loader.world.largest(sum(_lacks(one, loader.recipe, name) for one in works)):
        what = f"trained tokens have no {name.removeprefix('sampler_')}"
        fix = "--old auto or start, or `tracemask score --as old`"
        raise TrainError("TM603", where=f"--old {config.old.value}", what=what, fix=fix)


def _lacks(work: Work, recipe: Recipe, name: str) -> int:
    """1 when a target of a component that compares with the old policy has no such log-prob."""
    values = getattr(work.batch, name)
    wanted = torch.zeros(len(work.batch), dtype=torch.bool, device=work.batch.target_id.device)
    for component, weights in work.batch.weights.items():
        if "old" in recipe.components[component].needs:
            wanted |= weights != 0
    if values is not None:
        wanted &= torch.isnan(values)
    return int(wanted.any())
