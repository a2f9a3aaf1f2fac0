"""Interrupts a sink between bytecodes, one a forked child: run by test_store_sink as a program. Prints one JSON object.

Arguments: a folder to work in, every how many bytecodes. What a child leaves beside the whole file, or threads, is
listed by the place of its interrupt; so is a child that does not end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa  # noqa: F401  (loaded before the forks, so that a child starts with the work)

from tracemask.store.sink import LocalSink

PIECES = [bytes(1_500_000)] * 7
TRACED = ("sink.py", "beside.py")


def work(folder: Path) -> None:
    """One long file, its hash and its sync beside."""
    sink = LocalSink(folder, "x")
    try:
        with sink.stream() as out:
            for piece in PIECES:
                out.write(piece)
                sink.advance()
        sink.commit()
    finally:
        if sys.exc_info()[0] is not None:
            sink.abort()


@contextmanager
def interrupt(point: int) -> Iterator[list[str]]:
    """Raises KeyboardInterrupt before bytecode `point`; yields the places passed."""
    passed: list[str] = []

    def step(frame: FrameType, event: str, _: Any) -> Any:
        name = os.path.basename(frame.f_code.co_filename)
        if name not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed.append(f"{name}:{frame.f_lineno}")
            if len(passed) == point:
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it when tracing begins
    sys.settrace(step)
    try:
        yield passed
    finally:
        sys.settrace(None)


def child(folder: Path, point: int) -> dict[str, Any]:
    """What one interrupted run leaves."""
    before = len(os.listdir("/proc/self/task"))
    place = ""
    try:
        with interrupt(point) as passed:
            work(folder)
    except KeyboardInterrupt:
        place = passed[-1]
    deadline = time.monotonic() + 5
    while (threads := len(os.listdir("/proc/self/task")) - before) and time.monotonic() < deadline:
        time.sleep(0.001)
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    return {"place": place, "threads": threads, "files": files}


def forked(folder: Path, point: int) -> dict[str, Any] | None:
    """What `child` says; None where it does not end."""
    folder.mkdir()
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(here, json.dumps(child(folder, point)).encode())
        finally:
            os._exit(0)
    os.close(here)
    ready, _, _ = select.select([there], [], [], 20)
    said = os.read(there, 1 << 16) if ready else b""
    os.close(there)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return json.loads(said) if said else None


def main(root: Path, every: int) -> dict[str, Any]:
    """The points tried, and those at which something was left or nobody came back."""
    with interrupt(-1) as passed:
        (root / "whole").mkdir()
        work(root / "whole")
    wrong = []
    points = range(1, len(passed) + 1, every)
    whole: list[dict[str, int]] = [{}, {"x": sum(map(len, PIECES))}]
    for point in points:
        found = forked(root / str(point), point)
        if found is None or found["threads"] or found["files"] not in whole:
            wrong.append((passed[point - 1], found))
    return {"points": len(points), "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
