"""One process or many: reductions over ranks and the wrapping by DDP or FSDP2. Knows modules and numbers, no data.

Denominators are global, so gradients are summed, never averaged: DDP's mean is undone by the world size, FSDP2 is told
to divide by 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tracemask.core.errors import TrainError
from tracemask.train.metrics import Pairs, add, is_maximum

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class World:
    """This process among `size`; rank 0 writes. size 1 needs no process group."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """This rank writes files and shows progress."""
        return self.rank == 0

    def add_int(self, counts: np.ndarray) -> np.ndarray:
        """Exact element-wise sum of int64 counts over ranks: one all-reduce."""
        return self._reduce(np.asarray(counts, np.int64), dist.ReduceOp.SUM)

    def largest(self, number: int) -> int:
        """The largest `number` over ranks."""
        return int(self._reduce(np.asarray([number], np.int64), dist.ReduceOp.MAX)[0])

    def _reduce(self, values: np.ndarray, how: Any) -> np.ndarray:
        if self.size == 1:
            return values
        tensor = torch.from_numpy(values.copy()).to(self.device)
        dist.all_reduce(tensor, op=how)
        return tensor.cpu().numpy()

    def add_pairs(self, pairs: Pairs) -> Pairs:
        """(sum, count) metrics over ranks; every rank gets the same, and maxima stay maxima."""
        if self.size == 1:
            return pairs
        total: Pairs = {}
        for one in self.gathered(pairs):
            add(total, one)
        return {name: (value, 1.0 if is_maximum(name) else count) for name, (value, count) in total.items()}

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's `value`, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def same(self, value: Any) -> Any:
        """Rank 0's `value` on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def launched(device: str = "auto") -> Iterator[World]:
    """The world that torch.distributed.run describes, or a world of one; a group we started is ended again."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainError("TM900", what="device cuda, but torch sees no GPU", fix="--device cpu")
    chosen = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(chosen)
    if ranks == 1:
        yield World(device=chosen)
        return
    ours = not dist.is_initialized()
    if ours:
        options: dict[str, Any] = {"device_id": chosen} if cuda else {}  # NCCL must not guess the GPU from the rank
        dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT, **options)
    try:
        yield World(rank, ranks, chosen)
    finally:
        if ours:
            dist.destroy_process_group()


def wrap(
    module: nn.Module, layers: list[nn.Module], *, world: World, parallel: str, dtype: str = "float32"
) -> nn.Module:
    """`module`, whose forward is the whole step, for `world`: unchanged for one rank, else DDP or FSDP2 (sharded).

    layers: the decoder layers, each its own FSDP unit; everything else, head and embeddings, belongs to the root,
    whose forward makes the head's weight a plain tensor (tied embeddings included).
    """
    if world.size == 1:
        return module
    if parallel == "ddp":
        ids = [world.device.index] if world.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=ids)
    return _fully_shard(module, layers, world, dtype)


def _fully_shard(module: nn.Module, layers: list[nn.Module], world: World, dtype: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    options: dict[str, Any] = {"mesh": init_device_mesh(world.device.type, (world.size,))}
    if dtype == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(module, **options)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # on every one: the root alone gives half the gradient
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return module


def is_ddp(module: nn.Module) -> bool:
    """Does backward average over ranks, so that the loss must be multiplied by the world size."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def no_sync(module: nn.Module, *, last: bool) -> Any:
    """Accumulate without communication on all micro-batches but the last (DDP); FSDP2 reduces each."""
    return nullcontext() if last or not is_ddp(module) else module.no_sync()  # type: ignore[operator]


def clip(parameters: list[nn.Parameter], norm: float | None) -> float:
    """Scale gradients to at most `norm` (None: leave them) and return their global norm before."""
    from torch.distributed.tensor import DTensor

    total = torch.nn.utils.clip_grad_norm_(parameters, float("inf") if norm is None else norm)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)
