"""Ray schedules the same ranges: the same bytes, also when a worker is killed in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_rows import ROLLOUTS, TOKENIZER, files

from tracemask.core.errors import TracemaskError
from tracemask.store.convert import RenderConfig, convert

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
RENDER = RenderConfig(str(TOKENIZER))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A local Ray of two workers, started once for this module; Ray's packaging of the folder is off."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ray") / "undisturbed"
    convert(str(ROLLOUTS), str(out), render=RENDER, rows_per_shard=1)
    return out


def workers() -> list[int]:
    """Process ids of Ray workers of this test that are converting right now."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::convert_range"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if _is_ours(pid)]


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def test_ray_gives_the_same_bytes_also_when_workers_are_killed(cluster: Any, undisturbed: Path, tmp_path: Path) -> None:
    killed: list[int] = []
    stop = threading.Event()

    def kill_two() -> None:
        while not stop.is_set() and len(killed) < 2:
            for pid in workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                time.sleep(1)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_two)
    killer.start()
    try:
        convert(str(ROLLOUTS), str(tmp_path / "out"), render=RENDER, rows_per_shard=1, engine="ray", workers=2)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert files(tmp_path / "out") == files(undisturbed)


def test_an_error_in_a_ray_task_is_the_same_error(cluster: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}\n{broken\n')
    with pytest.raises(TracemaskError) as error:
        convert(str(log), str(tmp_path / "out"), render=RENDER, engine="ray", on_error="fail")
    assert error.value.code == "TM910"
    assert "a.jsonl:2" in error.value.where
