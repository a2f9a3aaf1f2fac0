"""Converts in forked children and kills some of them: run by test_store_convert as a program. Prints one JSON object.

Arguments: a folder to work in, how many kills must hit a running conversion, a seed. Each dataset's conversion gets a
SIGKILL at a random moment, one to three times, before a run may finish; its bytes must be those of the undisturbed run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from store_rows import ROLLOUTS, TOKENIZER, files

import tracemask.render.renderer  # noqa: F401  (loaded before the forks, so that a child starts with the work)
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.sink import TEMPORARY


def work(out: Path) -> None:
    """One conversion into many small shards."""
    convert(str(ROLLOUTS), str(out), render=RenderConfig(str(TOKENIZER)), rows_per_shard=3)


def child(out: Path) -> int:
    """Starts a conversion in a fork; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def finish(out: Path) -> None:
    """Runs a conversion to its end."""
    _, status = os.waitpid(child(out), 0)
    if status:
        raise SystemExit(f"the conversion failed: {status}")


def main(root: Path, kills: int, seed: int) -> dict[str, int]:
    """What happened: kills that hit a running conversion, leftovers seen, datasets that differ."""
    rng = random.Random(seed)
    start = time.perf_counter()
    finish(root / "undisturbed")
    whole = time.perf_counter() - start
    expected = files(root / "undisturbed")
    seen = {"killed": 0, "partial": 0, "temporaries": 0, "different": 0, "runs": 0}
    out = root / "killed"
    while seen["killed"] < kills:  # a kill after the end of a short run does not count
        for _ in range(rng.randint(1, 3)):
            pid = child(out)
            time.sleep(rng.uniform(0.05, 1.0) * whole)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            seen["killed"] += status == signal.SIGKILL
            left = list(files(out)) if out.exists() else []
            seen["partial"] += bool(left) and "manifest.json" not in left
            seen["temporaries"] += any(name.startswith(TEMPORARY) for name in left)
        finish(out)
        seen["runs"] += 1
        seen["different"] += files(out) != expected
        shutil.rmtree(out)
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
