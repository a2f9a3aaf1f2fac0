"""Runs templates in a worker process that can be killed: the near side of the pipe. Knows no Jinja."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from tracemask.core.errors import RenderError
from tracemask.render.text import RenderedText
from tracemask.render.wire import HEADER, pack_request, unpack_answer

ANSWER_SECONDS = 30.0  # of wall time; the worker's own CPU limit is far below
MAX_ANSWER = 1 << 29
MAX_TEMPLATES = 256  # compiled in one worker before it is replaced
PASSED = (
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
)  # of the environment; secrets in it are none of a template's business
SET = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
PIPE_BYTES = 1 << 20
LENGTH = struct.Struct("<I")

Definition = tuple[str, str, dict[str, str], str]  # source, name, tokens, ISO date
Outcome = RenderedText | RenderError


class Died(Exception):
    """The worker is gone or speaks nonsense. `why` is for the reader."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _packed(job: tuple[Any, ...]) -> bytes | RenderError:
    try:
        return pack_request(job)
    except RenderError as error:
        return error
    except RecursionError:
        return RenderError("TM922", what="a conversation is nested too deeply", fix="flatten it")


class Worker:
    """One warm process. Thread-safe: one conversation with it at a time. A template that kills it gets TM922; the next
    request finds a new one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def check(self, key: str, definition: Definition) -> None:
        """Compile a template. Raises RenderError if it does not compile."""
        with self._lock:
            self._guarded(definition[1], lambda: self._number(key, definition))

    def render(self, key: str, definition: Definition, jobs: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """One outcome for each job, in order; `key` identifies the definition."""
        packed = [_packed(job) for job in jobs]
        sent = [each for each in packed if isinstance(each, bytes)]
        outcomes: list[Outcome] = []
        with self._lock:
            while len(outcomes) < len(sent):
                try:
                    self._guarded(definition[1], lambda: self._run(key, definition, sent[len(outcomes) :], outcomes))
                except RenderError as error:
                    outcomes.append(error)
        answers = iter(outcomes)
        return [next(answers) if isinstance(each, bytes) else each for each in packed]

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._numbers.clear()
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if self._owner == os.getpid():  # a forked child must not end its parent's worker
            process.kill()
            process.wait()

    def __del__(self) -> None:
        self.close()

    def _guarded(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Died as death:
            self.close()
            raise RenderError(
                "TM922",
                where=name or "template",
                what=f"the template's worker was ended: {death.why}",
                fix="no chat template needs this; do not trust it",
            ) from None

    def _number(self, key: str, definition: Definition) -> int:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        number = self._numbers.get(key)
        if number is not None:
            return number
        if len(self._numbers) >= MAX_TEMPLATES:
            self.close()
        number = len(self._numbers)
        self._send(("compile", number, *definition))
        outcome = self._receive()
        self._numbers[key] = number
        if isinstance(outcome, RenderError):
            del self._numbers[key]
            raise outcome
        return number

    def _run(self, key: str, definition: Definition, jobs: Sequence[bytes], outcomes: list[Outcome]) -> None:
        self._send(("render", self._number(key, definition), list(jobs)))
        for _ in jobs:
            outcome = self._receive()
            if outcome is None:
                raise Died("it answered another question")
            outcomes.append(outcome)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._owner = os.getpid()
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join([root, *(each for each in sys.path if each)])
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracemask.render.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={name: os.environ[name] for name in PASSED if name in os.environ} | {"PYTHONPATH": path, **SET},
            )
            self._widen_pipes(self._process)
            self._await_start()
        return self._process

    @staticmethod
    def _widen_pipes(process: subprocess.Popen[bytes]) -> None:
        """Room for a few renders, so that the worker goes on while its answers are read. Only a matter of speed."""
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError, AttributeError):  # not on Linux, or beyond what the system allows
                fcntl.fcntl(cast(Any, pipe).fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def _await_start(self) -> None:
        """The worker says that its limits are in place; where it cannot, no template is to blame."""
        try:
            self._read(HEADER.size)
        except Died as death:
            self.close()
            raise RenderError(
                "TM921",
                where="template worker",
                what=f"the process in which templates run cannot start: {death.why}",
                fix='run on Linux with the same Python, or pass sandbox="inline" for a template you trust',
            ) from None

    def _send(self, request: Any) -> None:
        body = pack_request(request)
        pipe = self._started().stdin
        assert pipe is not None, "opened above"
        view = memoryview(LENGTH.pack(len(body)) + body)
        try:
            while view:
                view = view[pipe.write(view) or 0 :]
        except OSError as error:
            raise Died(f"its pipe is closed ({error.strerror})") from None

    def _receive(self) -> RenderedText | RenderError | None:
        kind, *sizes = HEADER.unpack(self._read(HEADER.size))
        if sum(sizes) > MAX_ANSWER:
            raise Died("its answer is too large")
        body = self._read(sum(sizes))
        try:
            return unpack_answer(kind, (sizes[0], sizes[1], sizes[2], sizes[3]), body)
        except (ValueError, TypeError, IndexError, KeyError):
            raise Died("its answer cannot be read") from None

    def _cause(self) -> str:
        process = self._process
        assert process is not None, "it was just read from"
        try:
            code = process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if -code in (signal.SIGPROF, signal.SIGXCPU):
            return "it used up its CPU time"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def _read(self, count: int) -> bytes:
        pipe = self._process.stdout if self._process is not None else None
        assert pipe is not None, "opened before anything is read"
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        parts: list[bytes] = []
        while count:
            if not waiting.poll(ANSWER_SECONDS * 1000):
                raise Died(f"no answer within {ANSWER_SECONDS:.0f} s")
            part = os.read(pipe.fileno(), min(count, 1 << 20))
            if not part:
                raise Died(self._cause())
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


@lru_cache(maxsize=1)
def _worker_of(_process: int) -> Worker:
    return Worker()


def shared_worker() -> Worker:
    """The worker of this process, started at its first request; a forked child gets its own."""
    return _worker_of(os.getpid())
