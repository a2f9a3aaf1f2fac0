"""What feeds a run: the loader of a dataset, or the follower of a folder that fills, as configured. Loads no weight."""

from __future__ import annotations

import math
from typing import Any

import torch

from tracemask.core.errors import TrainError
from tracemask.recipe import Recipe
from tracemask.store.fetch import is_pipe
from tracemask.store.opening import open_named
from tracemask.train.config import TrainConfig
from tracemask.train.distributed import World
from tracemask.train.follow import Follower
from tracemask.train.loader import Loader, Policy

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}  # of parameters and batches


def recipe_of(config: TrainConfig) -> Recipe:
    """The recipe, with the run's staleness limit in place of its own where one is given."""
    recipe = Recipe.load(config.recipe)
    if config.max_staleness is None:
        return recipe
    limit = recipe.off_policy.model_copy(update={"max_staleness": config.max_staleness})
    return recipe.model_copy(update={"off_policy": limit})


def loader_of(config: TrainConfig, world: World) -> Any:
    """The Loader that a configuration describes, or the Follower of a folder that fills."""
    token_bytes = None
    if config.tokenizer is not None:
        from tracemask.render.tokenizer import Tokenizer

        token_bytes = Tokenizer.load(config.tokenizer).id_bytes
    policy = _policy(config)
    shared: dict[str, Any] = {"world": world, "dtype": DTYPES[config.dtype], "token_bytes": token_bytes}
    if config.follow:
        assert config.steps is not None
        return Follower(
            config.data[0], recipe_of(config), policy, steps=config.steps, timeout=config.follow_timeout, **shared
        )
    for path in filter(is_pipe, config.data):
        what, fix = "training reads its data again and again, a pipe only once", "write it to a file, and name that"
        raise TrainError("TM900", where=path, what=what, fix=fix)
    return Loader(open_named(config.data, columns=config.columns), recipe_of(config), policy, **shared)


def _policy(config: TrainConfig) -> Policy:
    return Policy(
        groups_per_step=config.groups_per_step,
        tokens_per_batch=config.tokens_per_batch,
        packing=config.packing,
        overlong=config.overlong,
        shuffle=config.shuffle,
        seed=config.seed,
        policy_version=config.policy_version,
    )


def steps_of(config: TrainConfig, loader: Any) -> int:
    """Steps of the whole run."""
    if config.steps is not None:
        return config.steps
    exact = round((config.epochs or 1.0) * loader.steps_per_epoch, 6)  # 0.07 · 100 is 7.000000000000001
    return max(1, math.ceil(exact))
