"""Checkpoints that survive a kill at any point and any number of ranks, and the safetensors export. Knows no data.

A checkpoint is written beside its final name and renamed when complete, so a folder `step-N` is always whole.
torch.distributed.checkpoint holds model and optimizer under names free of any wrapper, so that it loads into one
process, DDP or FSDP2 alike.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracemask.core.errors import TrainError
from tracemask.train.distributed import World
from tracemask.train.model import quiet

STATE = "state.json"
_NAME = re.compile(r"step-(\d{8})$")


def complete(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the whole checkpoints in `folder`, oldest first."""
    if not folder.is_dir():
        return []
    named = [(match, path) for path in folder.iterdir() if (match := _NAME.match(path.name))]
    return sorted((int(match[1]), path) for match, path in named)


def save(
    folder: Path,
    *,
    step: int,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    world: World,
    keep: int,
) -> Path:
    """Write `step-N` (model, optimizer, `state`, each rank's random state); keep the newest `keep`. Collective."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    final = folder / f"step-{step:08d}"
    temporary = folder / f".step-{step:08d}.tmp"
    if world.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.wait()
    weights, moments = get_state_dict(module, optimizer)
    with _alone(world):
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=temporary, no_dist=world.size == 1)
    torch.save(torch.get_rng_state(), temporary / f"random-{world.rank}.pt")
    if world.device.type == "cuda":
        torch.save(torch.cuda.get_rng_state(world.device), temporary / f"random-cuda-{world.rank}.pt")
    world.wait()
    if world.first:
        (temporary / STATE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        _sync(temporary)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        _sync(folder)
        for _, old in complete(folder)[:-keep]:
            shutil.rmtree(old)
    world.wait()
    return final


@contextmanager
def _alone(world: World) -> Iterator[None]:
    """torch warns that it assumes a single process; with one rank that is what we told it."""
    with warnings.catch_warnings():
        if world.size == 1:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _sync(folder: Path) -> None:
    """Flush a folder's files and its own entry to disk."""
    for path in [*(one for one in folder.iterdir() if one.is_file()), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def state_of(path: Path) -> dict[str, Any]:
    """The run's own state as saved. Raises TM961 where it is missing or not JSON."""
    try:
        return json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise _broken(path, str(error)) from error


def load(path: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Fill model, optimizer and this rank's random state from `path`, saved by any number of ranks. Collective."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    weights, moments = get_state_dict(module, optimizer)
    state = {"model": weights, "optimizer": moments}
    try:
        with _alone(world):
            dcp.load(state, checkpoint_id=path, no_dist=world.size == 1)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise _broken(path, (str(error).strip().splitlines() or [type(error).__name__])[-1]) from error
    set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    own = path / f"random-{world.rank}.pt"
    if own.is_file():
        torch.set_rng_state(torch.load(own, weights_only=True))
    own = path / f"random-cuda-{world.rank}.pt"
    if own.is_file() and world.device.type == "cuda":
        torch.cuda.set_rng_state(torch.load(own, weights_only=True), world.device)


def _broken(path: Path, why: str) -> TrainError:
    return TrainError(
        "TM961",
        where=str(path),
        what=f"the checkpoint does not load: {why}",
        fix="remove it, or train with --resume never",
    )


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def export(folder: Path, *, module: nn.Module, model: Any, source: str | None, step: int, world: World) -> None:
    """Write `model` (inside `module`) as safetensors that transformers loads; tied weights once, tokenizer beside it.

    Collective: FSDP shards are gathered on rank 0. source: the folder the model came from. A peft model exports its
    adapters. The folder is replaced whole; its `step.json` says after which step it was written.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(module, options=options)
    if world.first:
        own = {name.removeprefix("model."): value for name, value in weights.items() if name.startswith("model.")}
        if getattr(model.config, "tie_word_embeddings", False):
            own = {name: value for name, value in own.items() if not name.endswith("lm_head.weight")}
        temporary = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        used = model.config._attn_implementation
        model.config._attn_implementation = "sdpa"  # the exported folder must load without us
        with quiet():
            model.save_pretrained(temporary, state_dict=own)
        model.config._attn_implementation = used
        for name in _TOKENIZER_FILES:
            if source is not None and (Path(source) / name).is_file():
                shutil.copyfile(Path(source) / name, temporary / name)
        (temporary / "step.json").write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")
        _sync(temporary)
        _swap(temporary, folder)
        _sync(folder.parent)
    world.wait()


def _swap(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`; a reader that has files open keeps the old ones."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)
