"""Batches for people with a trainer of their own: traces, rows or a dataset in, micro-batches out. Knows no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracemask.loss.batch import Batch
from tracemask.recipe import Recipe
from tracemask.store.pack import Overlong
from tracemask.train.config import Packing
from tracemask.train.loader import Loaded, Loader, Policy
from tracemask.train.sources import rows_of


def prepare(
    source: Any,
    recipe: Recipe | str | dict[str, Any],
    *,
    tokens_per_batch: int = 8192,
    groups_per_step: int | None = None,
    packing: Packing | str = Packing.AUTO,
    overlong: Overlong | str = Overlong.ERROR,
    seed: int = 0,
    shuffle: bool = False,
    policy_version: int | None = None,
    renderer: Any = None,
    columns: Mapping[str, str] | None = None,
    tokenizer: Any = None,
) -> Iterator[Batch]:
    """Micro-batches for `loss.from_hidden`, one pass over `source`, without files.

    source: a dataset or its path, rows, or traces (with `renderer`). Their losses add up: one optimizer step takes all
    batches of a step (default: everything is one step; with groups_per_step, count batches by `steps`).
    Raises what the recipe and the packing raise.
    """
    for loaded in steps(
        source,
        recipe,
        policy=Policy(
            groups_per_step, tokens_per_batch, Packing(packing), Overlong(overlong), shuffle, seed, policy_version
        ),
        renderer=renderer,
        columns=columns,
        tokenizer=tokenizer,
    ):
        for work in loaded.works:
            yield work.batch


def steps(
    source: Any,
    recipe: Recipe | str | dict[str, Any],
    *,
    policy: Policy | None = None,
    renderer: Any = None,
    columns: Mapping[str, str] | None = None,
    tokenizer: Any = None,
) -> Iterator[Loaded]:
    """The steps of one epoch, each with its micro-batches."""
    token_bytes = None if tokenizer is None else tokenizer.id_bytes
    dataset = rows_of(source, renderer=renderer, columns=columns)
    loader = Loader(dataset, Recipe.load(recipe), policy or Policy(), token_bytes=token_bytes)
    for index in range(loader.steps_per_epoch):
        yield loader.step(index)
