"""Checkpoints that survive a kill at any point and any number of ranks, and the safetensors export. Knows no data.

A checkpoint is written beside its final name and renamed when complete, and renamed again before it is removed, so a
folder `step-N` is always whole. It names the sha256 of its files, so what a disk or a copy damaged is never trained on.
torch.distributed.checkpoint holds model and optimizer under names free of any wrapper, so that it loads into one
process, DDP or FSDP2 alike.
"""

from __future__ import annotations

import io
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
from tracemask.core.fingerprint import file_sha256, fingerprint
from tracemask.core.whole import sync
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
    """Write `step-N` (model, optimizer, `state`, each rank's random state); keep the newest `keep`. Collective.

    Raises TrainError TM932 where it cannot be written; what was written of it is removed, older ones stay.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    final = folder / f"step-{step:08d}"
    temporary = folder / f".step-{step:08d}.tmp"
    if world.first:
        for left in folder.glob(".step-*"):  # of a kill
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.wait()
    weights, moments = get_state_dict(module, optimizer)
    with _writing(temporary):
        with _alone(world):
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=temporary, no_dist=world.size == 1)
        _write_random(temporary, world)
        world.wait()
        whole = {**state, "files": _digests(temporary, sorted(one.name for one in temporary.iterdir()), world)}
        if world.first:
            document = {**whole, "seal": fingerprint(whole)}
            (temporary / STATE).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            _sync_files(temporary)
            _remove(final)
            os.replace(temporary, final)
            sync(folder)
    if world.first:
        for _, old in complete(folder)[:-keep]:
            _remove(old)
    world.wait()
    return final


def _write_random(folder: Path, world: World) -> None:
    """This rank's random states."""
    states = {f"random-{world.rank}.pt": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"random-cuda-{world.rank}.pt"] = torch.cuda.get_rng_state(world.device)
    for name, state in states.items():
        buffer = io.BytesIO()
        torch.save(state, buffer)
        (folder / name).write_bytes(buffer.getvalue())


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """TM932 for what keeps `folder` from being written, which is then removed."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except (CheckpointException, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        causes = [one for one, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
        for cause in causes:
            if isinstance(cause, KeyboardInterrupt):  # torch takes it for a failure to write
                raise cause from None
        what = f"the checkpoint is not written: {_last_line(causes[0])}"
        raise TrainError("TM932", where=str(folder), what=what, fix="make room; the one before is whole") from error


def _digests(folder: Path, names: list[str], world: World) -> dict[str, str]:
    """name → sha256 of the files `names`; "" for one that is not there. Collective: each rank reads its share."""
    mine = names[world.rank :: world.size]
    read = {name: file_sha256(folder / name) if (folder / name).is_file() else "" for name in mine}
    return {name: digest for part in world.gathered(read) for name, digest in part.items()}


def _remove(folder: Path) -> None:
    """Out of sight first: a kill while files go must not leave half a `step-N`."""
    if folder.exists():
        hidden = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def _alone(world: World) -> Iterator[None]:
    """torch warns that it assumes a single process; with one rank that is what we told it."""
    with warnings.catch_warnings():
        if world.size == 1:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _sync_files(folder: Path) -> None:
    """Brings a folder's files and their names to the disk."""
    for path in folder.iterdir():
        if path.is_file():
            sync(path)
    sync(folder)


def state_of(path: Path) -> dict[str, Any]:
    """The run's own state as saved. Raises TM961 where it is missing or not what was written."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(state, dict) or state.pop("seal", None) != fingerprint(state):
        raise _broken(path, f"{STATE} is not what was written, or an earlier version wrote it")
    return state


def load(path: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Fill model, optimizer and this rank's random state from `path`, saved by any number of ranks. Collective.

    The optimizer keeps its own options (betas, eps, weight decay): the run's are the command's. Raises TM961, before
    anything is filled, where a file is not what was written.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    files = state_of(path)["files"]
    damaged = [name for name, digest in _digests(path, sorted(files), world).items() if digest != files[name]]
    if damaged:
        raise _broken(path, f"{', '.join(damaged)} is missing or not what was written")
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    weights, moments = get_state_dict(module, optimizer)
    state = {"model": weights, "optimizer": moments}
    try:
        with _alone(world):
            dcp.load(state, checkpoint_id=path, no_dist=world.size == 1)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise _broken(path, _last_line(error)) from error
    set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
    random = path / f"random-{world.rank}.pt"
    if random.is_file():
        torch.set_rng_state(torch.load(random, weights_only=True))
    random = path / f"random-cuda-{world.rank}.pt"
    if random.is_file() and world.device.type == "cuda":
        torch.cuda.set_rng_state(torch.load(random, weights_only=True), world.device)


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _broken(path: Path, why: str) -> TrainError:
    what, fix = f"the checkpoint does not load: {why}", "remove it, and the one before is taken; or another --out"
    return TrainError("TM961", where=str(path), what=what, fix=fix)


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
        _sync_files(temporary)
        _swap(temporary, folder)
        sync(folder.parent)
    world.wait()


def _swap(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`; a reader that has files open keeps the old ones."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)
