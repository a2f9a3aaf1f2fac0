"""The step's loss, gradient and metrics on 1, 2 and 4 gloo processes with skewed rollouts and an empty rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("loss_ranks_worker.py")
pytestmark = pytest.mark.distributed


def launch(world: int, folder: Path) -> dict[str, Any]:
    """Start `world` processes; what rank 0 wrote. Raises with their output where one fails."""
    store, out = folder / f"store{world}", folder / f"out{world}.json"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", str(WORKER)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(store), str(out)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(said)[-4000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return {world: launch(world, folder) for world in (1, 2, 4)}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["token_mean", "sequence_mean", "constant"])
def test_loss_gradient_and_metrics_do_not_depend_on_the_number_of_ranks(worlds: Any, name: str, world: int) -> None:
    one, many = worlds[1]["steps"][name], worlds[world]["steps"][name]
    assert many["loss"] == pytest.approx(one["loss"], rel=1e-12)
    assert many["gradient"] == pytest.approx(one["gradient"], rel=1e-9, abs=1e-12)
    assert list(many["metrics"]) == list(one["metrics"])
    for key, pair in one["metrics"].items():
        slack = 2 if key.endswith("/selected") else 0  # an empty micro-batch stands on two dummy slots
        assert many["metrics"][key] == pytest.approx(pair, rel=1e-9, abs=1e-9 + slack), key


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_without_loss_tokens_adds_a_real_zero_and_a_step_without_any_is_zero(worlds: Any, world: int) -> None:
    assert worlds[world]["ranks"] == [pytest.approx(0.5), 0.0]


@pytest.mark.parametrize("world", [2, 4])
def test_a_sharded_head_weight_gets_the_sum_over_ranks(worlds: Any, world: int) -> None:
    assert worlds[world]["sharded"] == pytest.approx(worlds[1]["steps"]["token_mean"]["gradient"], rel=1e-9, abs=1e-12)
