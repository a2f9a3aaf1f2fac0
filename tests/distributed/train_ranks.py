"""Run by torch.distributed.run: gradients of many ranks against one process, on skewed rollouts. Prints one JSON line.

Arguments: mode (ddp | fsdp2), folder with shards and models, kind of check (gradient | run).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tracemask.train.build import build
from tracemask.train.config import TrainConfig
from tracemask.train.distributed import World, clip, launched
from tracemask.train.feed import loader_of
from tracemask.train.trainer import train
from tracemask.train.update import accumulate, padded


def settings(folder: Path, mode: str, model: str, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "data": [str(folder / "shards")],
        "model": str(folder / model),
        "recipe": "echo",
        "groups_per_step": 3,
        "tokens_per_batch": 100,
        "lr": 1e-3,
        "steps": 3,
        "parallel": mode,
        "out": str(folder / "out"),
    }
    return TrainConfig.of({**base, **changes})


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradient(config: TrainConfig, world: World) -> tuple[dict[str, Tensor], float, int]:
    """Gradients by name, their norm when clipped to 0.05, and this rank's own micro-batches."""
    loader = loader_of(config, world)
    policies = build(config, loader, world)
    loaded = loader.step(0)
    accumulate(policies.module, padded(loader, loaded), world)
    inner: nn.Module = getattr(policies.module, "module", policies.module)
    norm = clip(list(inner.parameters()), 0.05)
    found = {name: whole(one.grad).clone() for name, one in inner.named_parameters() if one.grad is not None}
    return found, norm, len(loaded.works)


def compare(config: TrainConfig, world: World) -> dict[str, Any]:
    """Largest relative difference to the same step in one process, of clipped gradients and of the norm."""
    started = time.monotonic()
    got, norm, batches = gradient(config, world)
    seconds = time.monotonic() - started
    expected, single, _ = gradient(config, World())
    scale = max(float(one.abs().max()) for one in expected.values())
    worst = max(float((got[name] - one).abs().max()) for name, one in expected.items()) / scale
    return {
        "names": got.keys() == expected.keys(),
        "worst": worst,
        "norm": abs(norm - single) / single,
        "micro_batches": batches,
        "seconds": seconds,
    }


def main() -> None:
    mode, folder, check = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    with launched("cpu") as world:
        found: dict[str, Any] = {}
        if check == "gradient":
            for model in ("tied", "untied"):
                found[model] = compare(settings(folder, mode, model), world)
            # one group, one tree: every other rank has nothing
            found["empty"] = compare(
                settings(folder, mode, "tied", groups_per_step=1, tokens_per_batch=4000, packing="tree"), world
            )
        else:
            config = settings(folder, mode, "tied", out=sys.argv[4], steps=int(sys.argv[5]), save_every=1)
            result = train(config)
            found["run"] = {"steps": result.steps, "metrics": result.metrics}
        batches: list[Any] = [None] * world.size
        torch.distributed.all_gather_object(batches, [one.get("micro_batches") for one in found.values()])
        if world.first:
            print("RESULT " + json.dumps({**found, "batches": batches}), flush=True)


if __name__ == "__main__":
    main()
