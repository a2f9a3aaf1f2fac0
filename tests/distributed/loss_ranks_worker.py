"""One rank of the loss tests: `loss_ranks_worker.py RANK WORLD STORE OUT`. Rank 0 writes what it saw as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "loss"))

from loss_recipes import recipe, rl
from loss_world import batch, lay, rollouts, run, weight

from tracemask import loss
from tracemask.loss.denominators import all_reduced
from tracemask.loss.metrics import merged

RECIPES = {
    "token_mean": recipe(rl=rl("ppo"), ce=rl("ce", coef=0.1)),
    "sequence_mean": recipe(rl=rl("gspo", "sequence_mean"), ce=rl("ce", "sequence_mean", coef=0.1)),
    "constant": recipe(rl=rl("ppo", {"name": "constant", "length": 128}), ce=rl("ce", coef=0.1)),
}
SHARES = {  # which rollouts each rank holds: skewed, and one rank with none where there are four
    1: [list(range(8))],
    2: [[1], [0, 2, 3, 4, 5, 6, 7]],
    4: [[4], [1, 5], [], [0, 2, 3, 6, 7]],
}


def step(name: str, rank: int, world: int) -> dict[str, Any]:
    """Loss and gradient of the whole step, as DDP would see them: averaged over ranks, the average undone."""
    everything = rollouts()
    mine = [everything[i] for i in SHARES[world][rank]]
    lay(RECIPES[name], mine, reduce=all_reduced())
    micros = [[one] for one in mine] or [[]]
    w = weight()
    value, moved, outputs = run(RECIPES[name], micros, w)
    moved = moved * world  # total · world …
    dist.all_reduce(moved)
    moved /= world  # … and the average that DDP takes
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    metrics = merged(out.metrics for out in outputs)
    pairs = torch.tensor([list(pair) for pair in metrics.values()], dtype=torch.float64)
    dist.all_reduce(pairs)
    return {
        "loss": total.item(),
        "gradient": moved.flatten().tolist(),
        "metrics": dict(zip(metrics, pairs.tolist())),
    }


def ranks_case(rank: int, world: int) -> list[float]:
    """Rank 0 has no loss token, the last one four; then nobody has any."""
    values = [0.5, 0.5, 0.25, 0.75] if rank == world - 1 else [1.0, 1.0]
    out = []
    for masked in (rank != world - 1, True):
        lp = -torch.tensor(values, dtype=torch.float64).requires_grad_()
        mask = torch.full((len(values),), not masked)
        result = loss.from_logprobs(RECIPE_CE, lp, mask=mask, reduce=all_reduced())
        (moved,) = torch.autograd.grad(result.total, lp)
        assert torch.isfinite(moved).all()
        assert not masked or moved.eq(0).all()
        total = result.total.detach().clone()
        dist.all_reduce(total)
        out.append(total.item())
    return out


RECIPE_CE = recipe(ce=rl("ce"))


def sharded_head(rank: int, world: int) -> list[float]:
    """The head weight as a DTensor split over ranks: its gradient is the sum over ranks, split the same way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    everything = rollouts()
    mine = [everything[i] for i in SHARES[world][rank]]
    lay(RECIPES["token_mean"], mine, reduce=all_reduced())
    mesh = init_device_mesh("cpu", (world,))
    w = distribute_tensor(weight().detach(), mesh, [Shard(0)]).requires_grad_()
    hidden, made = batch(mine)
    loss.from_hidden(RECIPES["token_mean"], hidden, w, made).total.backward()
    assert w.grad is not None
    return w.grad.full_tensor().flatten().tolist()


def main() -> None:
    rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    result = {name: step(name, rank, world) for name in RECIPES}
    seen: dict[str, Any] = {"steps": result, "ranks": ranks_case(rank, world), "sharded": sharded_head(rank, world)}
    if rank == 0:
        Path(out).write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
