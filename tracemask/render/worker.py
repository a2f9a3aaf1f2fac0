"""The process in which strangers' templates run: bounded memory and CPU time, no files. Started by `isolation.py`."""

from __future__ import annotations

import gc
import os
import resource
import signal
import struct
import sys
from datetime import date
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.render.engine import Engine, Job
from tracemask.render.wire import DONE, HEADER, pack_refused, pack_rendered, unpack_request

MEMORY = 512 << 20  # bytes of address space
CPU_SECONDS = 1.2  # of one render or one compilation
LENGTH = struct.Struct("<I")


def bound_process() -> None:
    """Take away what rendering never needs. Called once, after every import."""
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))


def start_clock() -> None:
    """The kernel ends this process if the work that follows takes more than CPU_SECONDS, wherever it is stuck."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(usage.ru_utime + usage.ru_stime + CPU_SECONDS) + 2
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))


def stop_clock() -> None:
    """The work is done."""
    signal.setitimer(signal.ITIMER_PROF, 0)


def read(count: int) -> bytes:
    """`count` bytes from the process that started this one; exits when it is gone."""
    parts: list[bytes] = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write(answer: bytes) -> None:
    """All of an answer."""
    view = memoryview(answer)
    while view:
        view = view[os.write(1, view) :]


def compiled(engines: dict[int, Engine], request: Any) -> bytes:
    """Compile a template and keep it under its number."""
    number, source, name, tokens, day = request
    try:
        engines[number] = Engine(source, name=name, tokens=tokens, day=date.fromisoformat(day))
    except RenderError as error:
        return pack_refused(error)
    return HEADER.pack(DONE, 0, 0, 0, 0)


def rendered(engine: Engine, job: Any) -> bytes:
    """Render one conversation."""
    try:
        return pack_rendered(engine.render(Job(*job)))
    except RenderError as error:
        return pack_refused(error)
    except (MemoryError, RecursionError, OverflowError) as error:
        what = f"the rendered text is too large ({type(error).__name__})"
        return pack_refused(RenderError("TM922", where=engine.name, what=what, fix="shorten the conversation"))


def main() -> None:
    """Serve until the other side closes the pipe: ("compile", …) or ("render", number, jobs), an answer for each."""
    sys.setrecursionlimit(1000)
    gc.freeze()
    gc.set_threshold(50_000)  # a render makes many small objects and no cycles
    engines: dict[int, Engine] = {}
    bound_process()
    write(HEADER.pack(DONE, 0, 0, 0, 0))
    while True:
        (length,) = LENGTH.unpack(read(LENGTH.size))
        verb, *rest = unpack_request(read(length))
        if verb == "compile":
            start_clock()
            answer = compiled(engines, rest)
            stop_clock()
            write(answer)
            continue
        number, jobs = rest
        for job in jobs:
            start_clock()
            answer = rendered(engines[number], unpack_request(job))
            stop_clock()
            write(answer)


if __name__ == "__main__":
    main()
