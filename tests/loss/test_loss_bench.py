"""The GPU bench, tried out without one: every section runs, and what one loses costs no other its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "gpu.py"


def bench(out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", str(BENCH), "--device", "cpu", "--size", "tiny", "--out", str(out)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=280)
    return done.returncode, json.loads(out.read_text())


@pytest.mark.slow
def test_every_section_of_the_gpu_bench_runs_and_reports(tmp_path: Path) -> None:
    code, report = bench(tmp_path / "gpu.json")
    assert {one["section"]: one["ended"] for one in report["sections"]} == dict.fromkeys(
        ("head", "table 128", "train"), "finished"
    )
    assert all(one["passed"] for one in report["checks"].values()), report["checks"]
    assert {row["head"] for row in report["rows"] if "ms" in row} >= {"tracemask", "naive", "tracemask, ce only"}
    assert report["checked"]
    assert code == 0


@pytest.mark.slow
def test_a_section_out_of_time_is_said_and_the_report_is_there(tmp_path: Path) -> None:
    code, report = bench(tmp_path / "gpu.json", "--seconds", "1")
    assert [one["ended"] for one in report["sections"]] == ["no time left"] * 3
    assert (code, report["checked"], report["rows"]) == (1, False, [])
