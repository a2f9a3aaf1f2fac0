"""Many ranks give one process's gradient: DDP and FSDP2, tied and untied, skewed lengths, empty ranks, resharding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "train"))

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skewed rollouts and two small float32 models, tied and untied."""
    import torch
    from train_models import rollouts, tiny, write

    path = tmp_path_factory.mktemp("ranks")
    write(path / "shards", rollouts(groups=4, spread=10))
    for name, tied in (("tied", True), ("untied", False)):
        tiny("llama", tied=tied, dtype=torch.float32, norms="own").save_pretrained(path / name)
    return path


def launch(ranks: int, *arguments: str) -> dict[str, Any]:
    """What rank 0 of `ranks` printed."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(HERE / "train_ranks.py"), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, run.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.mark.parametrize(("ranks", "mode"), [(2, "ddp"), (2, "fsdp2"), (4, "fsdp2")])
def test_ranks_with_skewed_lengths_give_one_process_s_gradient(folder: Path, ranks: int, mode: str) -> None:
    """Unequal micro-batch counts, ranks without any, tied and untied; then a step that only one rank has work for."""
    found = launch(ranks, mode, str(folder), "gradient")
    for case in ("tied", "untied", "empty"):
        assert found[case]["names"]
        assert found[case]["worst"] < 1e-6
        assert found[case]["norm"] < 1e-6
        assert found[case]["seconds"] < 20
    counts = [[one[case] for one in found["batches"]] for case in range(3)]
    assert sorted(counts[0]) == ([1, 2] if ranks == 2 else [0, 1, 1, 1])
    assert sorted(counts[2]) == [0] * (ranks - 1) + [1]


def test_a_run_moves_between_one_and_two_ranks(folder: Path, tmp_path: Path) -> None:
    """1 → 2 → 1 ranks: the checkpoint reshards, the order goes on, and the weights are those of one process."""
    import torch
    from safetensors.torch import load_file
    from train_ranks import settings

    from tracemask.train.trainer import train

    out = tmp_path / "moved"
    train(settings(folder, "ddp", "tied", out=str(out), steps=1))
    launch(2, "fsdp2", str(folder), "run", str(out), "2")
    train(settings(folder, "ddp", "tied", out=str(out), steps=3))
    train(settings(folder, "ddp", "tied", out=str(tmp_path / "one"), steps=3))
    paths = (out / "model", tmp_path / "one" / "model", folder / "tied")
    moved, one, start = (load_file(str(path / "model.safetensors")) for path in paths)
    assert moved.keys() == one.keys()
    assert max(float((moved[name] - one[name]).abs().max()) for name in one) < 1e-5
    assert all(not torch.equal(moved[name], start[name]) for name in moved)
