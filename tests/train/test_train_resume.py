"""A run that was stopped, killed or damaged goes on bit for bit, or says why it does not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from train_models import rollouts, write
from train_runs import config, lines, weights

from tracemask.core.errors import TracemaskError, TrainError
from tracemask.train.trainer import StepReport, train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("data") / "shards", rollouts())


def test_a_run_cut_short_continues_bit_for_bit(data: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_every": 2, "steps": 5, "export": True, "schedule": "cosine", "warmup_steps": 2}
    train(config(data, tmp_path / "whole", **options))

    def stop(report: StepReport) -> None:
        if report.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(data, tmp_path / "cut", **options), observer=stop)
    assert [one["step"] for one in lines(tmp_path / "cut")] == [1, 2, 3]
    half = tmp_path / "cut" / "checkpoints" / ".step-00000004.tmp"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half a checkpoint")
    seen: list[int] = []
    train(config(data, tmp_path / "cut", **options), observer=lambda report: seen.append(report.step))
    assert seen == [3, 4, 5]  # step 3 is done again: its checkpoint was never written
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


_KILLED = """
import os, signal, sys
from tracemask.train.config import TrainConfig
from tracemask.train.trainer import train
def stop(report):
    if report.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
train(TrainConfig.model_validate_json(sys.argv[1]), observer=stop)
"""


def test_a_killed_process_continues_bit_for_bit(data: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_every": 1, "export": True}
    settings = config(data, tmp_path / "killed", **options)
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    run = subprocess.run([sys.executable, "-c", _KILLED, settings.model_dump_json()], env=env, timeout=120, check=False)
    assert run.returncode == -signal.SIGKILL
    train(settings)
    train(config(data, tmp_path / "whole", **options))
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert all(
        torch.equal(one, weights(tmp_path / "whole")[name]) for name, one in weights(tmp_path / "killed").items()
    )


def test_a_finished_run_is_not_trained_again(data: str, tmp_path: Path) -> None:
    train(config(data, tmp_path, steps=2))
    result = train(config(data, tmp_path, steps=2))
    assert result.metrics == {}
    assert [one["step"] for one in lines(tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"seed": 5}, "seed"), ({"groups_per_step": 1}, "groups_per_step"), ({"recipe": "dapo"}, "recipe")],
)
def test_a_checkpoint_of_another_order_or_recipe_is_refused(
    data: str, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    train(config(data, tmp_path, steps=1))
    with pytest.raises(TracemaskError, match=f"TM961.*{named}"):
        train(config(data, tmp_path, steps=2, **changes))
    with pytest.raises(TracemaskError, match="TM961"):
        train(config(data, tmp_path, steps=2, resume="never"))


@pytest.fixture(scope="module")
def two_steps(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, each with its checkpoint."""
    out = tmp_path_factory.mktemp("two") / "run"
    train(config(data, out, steps=2, save_every=1))
    return out


def flipped(content: bytes) -> bytes:
    """One bit of its middle byte turned over."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "random-0.pt", "state.json"])
@pytest.mark.parametrize("damage", [flipped, lambda content: b"\xff" + content, lambda content: b"", None])
def test_a_damaged_checkpoint_is_never_trained_on(
    data: str, two_steps: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    """A bit, a byte, everything, or the file itself; without that checkpoint the run goes on from the one before."""
    shutil.copytree(two_steps, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-00000002"
    if damage is None:
        (newest / name).unlink()
    else:
        (newest / name).write_bytes(damage((newest / name).read_bytes()))
    with pytest.raises(TrainError, match="step-00000002: TM961 the checkpoint does not load"):
        train(config(data, tmp_path / "run", steps=2))
    shutil.rmtree(newest)
    assert train(config(data, tmp_path / "run", steps=2)).taken == 1
    assert lines(tmp_path / "run") == lines(two_steps)


def test_a_kill_while_an_old_checkpoint_goes_leaves_no_half_of_one(
    data: str, two_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(two_steps, tmp_path / "run")
    remove = shutil.rmtree

    def killed(path: Any, *args: Any, **options: Any) -> None:
        if (Path(path) / "state.json").is_file():
            (Path(path) / "__0_0.distcp").unlink()
            raise KeyboardInterrupt
        remove(path, *args, **options)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        train(config(data, tmp_path / "run", steps=3, keep=1))
    monkeypatch.undo()
    folder = tmp_path / "run" / "checkpoints"
    assert all((one / "__0_0.distcp").is_file() for one in folder.glob("step-*"))
    train(config(data, tmp_path / "run", steps=4, keep=1))
    assert [one.name for one in folder.iterdir()] == ["step-00000004"]


def test_a_disk_too_full_for_a_checkpoint_is_said_and_leaves_none(data: str, two_steps: Path, tmp_path: Path) -> None:
    import resource

    shutil.copytree(two_steps, tmp_path / "run")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))  # what a full disk does to a large file
    try:
        with pytest.raises(TrainError, match="TM932 the checkpoint is not written"):
            train(config(data, tmp_path / "run", steps=3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    left = sorted(one.name for one in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-00000001", "step-00000002"]
    assert train(config(data, tmp_path / "run", steps=3)).taken == 1


@pytest.mark.parametrize("changes", [{"weight_decay": 0.5}, {"betas": (0.1, 0.2)}, {"eps": 0.1}, {"lr": 0.1}])
def test_a_run_goes_on_with_the_options_given_now(
    data: str, two_steps: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """The checkpoint has the moments; how fast they decay, and the weights, is the command's."""
    ends = []
    for name, more in (("as before", {}), ("changed", changes)):
        shutil.copytree(two_steps, tmp_path / name)
        train(config(data, tmp_path / name, steps=3, export=True, **more))
        ends.append(weights(tmp_path / name))
    one, other = ends
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("bad", [b"\x00\x00\x00\x00", b"[1]", b"{}", b"\xff\xfe"])
def test_a_line_of_metrics_that_no_run_wrote_is_named(data: str, two_steps: Path, tmp_path: Path, bad: bytes) -> None:
    shutil.copytree(two_steps, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + bad + b"\n")
    with pytest.raises(TrainError, match=r"metrics\.jsonl:3: TM961"):
        train(config(data, tmp_path / "run", steps=3))
