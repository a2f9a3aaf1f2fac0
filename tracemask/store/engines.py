"""Engines: who converts which range when. They schedule and nothing else; bytes come from `convert_range`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any

from tracemask.core.errors import MissingExtra, StoreError, TracemaskError
from tracemask.store.manifest import Receipt
from tracemask.store.plan import Range
from tracemask.store.work import Tell, Work, convert_range

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

_LOOK = 0.2  # seconds between looks at what the workers have done
_RETRIES = 3  # of a Ray task whose worker died; a range is the same work each time


def local(work: Work, ranges: Sequence[Range], tell: Tell, *, workers: int) -> Iterator[Receipt]:
    """In this process (one worker), or in a pool of spawned processes; receipts as they are done."""
    if workers == 1 or len(ranges) <= 1:
        for span in ranges:
            yield convert_range(work, span, tell)
        return
    context = get_context("spawn")
    units = context.Value("q", 0)
    pool = ProcessPoolExecutor(
        min(workers, len(ranges)), mp_context=context, initializer=_start_worker, initargs=(units,)
    )
    told = 0
    try:
        with _deferred(), _interrupts(signal.SIG_BLOCK):
            waiting: set[Future[Receipt]] = {pool.submit(_in_worker, work, span) for span in ranges}
        while waiting:
            done, waiting = wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
            if (now := units.value) > told:
                tell(now - told)
                told = now
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise _died() from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """What a worker process knows. units: those that became rows in all workers together."""

    units: Synchronized[int]
    interrupted = False


def _start_worker(units: Synchronized[int]) -> None:
    """One thread a worker, and no worker outlives its parent: an orphan would go on writing beside the next run."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _Worker.units = units
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_worker(work: Work, span: Range) -> Receipt:
    def tell(units: int) -> None:
        with _Worker.units.get_lock():
            _Worker.units.value += units

    try:
        with _interrupts(signal.SIG_UNBLOCK):
            if _Worker.interrupted:
                raise KeyboardInterrupt
            return convert_range(work, span, tell)
    except KeyboardInterrupt:
        _Worker.interrupted = True  # what waits in the queue is not begun
        raise


@contextmanager
def _interrupts(how: int) -> Iterator[None]:
    """Holds Ctrl-C back, or lets it through, for a while. A worker is born deaf to it and hears it at work alone, where
    it cleans up: between two tasks, or while it imports, it could only print a traceback."""
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deferred() -> Iterator[None]:
    """Holds an interrupt back to the end: where other threads take signals, the mask of this one does not stop it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        signal.raise_signal(signal.SIGINT)


def ray_tasks(work: Work, ranges: Sequence[Range], tell: Tell, *, workers: int) -> Iterator[Receipt]:
    """As Ray tasks, `workers` at a time. Uses the cluster that is connected, or starts a local one and stops it again.

    Tells nothing between receipts: progress moves by shards.
    On a cluster, inputs and output must be reachable under the same path from every node.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtra.named("ray", "ray") from None
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield from _run_tasks(ray, work, ranges, workers)
    finally:
        if started:
            ray.shutdown()


def _run_tasks(ray: Any, work: Work, ranges: Sequence[Range], workers: int) -> Iterator[Receipt]:
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(convert_range)
    shared = ray.put(work)
    todo = iter(ranges)
    running = [task.remote(shared, span) for span in islice(todo, workers)]
    while running:
        done, running = ray.wait(running, num_returns=1)
        try:
            receipt = ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, TracemaskError):
                raise cause from None
            raise
        except (
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.NodeDiedError,
            ray.exceptions.OutOfMemoryError,
        ) as error:
            raise _died() from error
        yield receipt
        if (span := next(todo, None)) is not None:
            running.append(task.remote(shared, span))


def _died() -> StoreError:
    fix = "run again: finished shards are kept; with less memory, use fewer workers or smaller shards"
    return StoreError("TM934", what="a worker process died (out of memory, or killed)", fix=fix)
