"""Sinks: what is hashed is what is written, memory stays bounded, and what a thread meets is said to the caller."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tracemask.core.errors import StoreError
from tracemask.store.behind import Behind
from tracemask.store.sink import LocalSink


@pytest.mark.parametrize("sizes", [[], [0], [1], [70_000], [5, 70_000, 6, 3_000_000, 0, 1], [40_000] * 60])
def test_the_hash_is_of_the_bytes_in_the_file(tmp_path: Path, sizes: list[int]) -> None:
    sink = LocalSink(tmp_path, "x")
    for k, size in enumerate(sizes):
        sink.write(bytes([k % 251]) * size)
    expected = b"".join(bytes([k % 251]) * size for k, size in enumerate(sizes))
    size, sha256 = sink.commit()
    assert (tmp_path / "x").read_bytes() == expected
    assert (size, sha256) == (len(expected), hashlib.sha256(expected).hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_pieces_of_any_type_and_number_are_written_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = [np.int32, np.uint8, np.float32, np.bool_, np.int64]
    sink, expected = LocalSink(tmp_path, "x"), []
    for n, size in ((3000, 100), (5, 500_000), (1, 0), (0, 0), (2, 10), (40, 9_000)):
        pieces = [rng.integers(0, 2, size).astype(kinds[i % 5]) for i in range(n)]
        whole = b"".join(piece.tobytes() for piece in pieces)
        assert sum(map(sink.write, pieces)) == len(whole)
        expected.append(whole)
    whole = b"".join(expected)
    assert sink.commit() == (len(whole), hashlib.sha256(whole).hexdigest())
    assert (tmp_path / "x").read_bytes() == whole


def test_a_write_that_takes_only_a_part_is_continued(tmp_path: Path) -> None:
    class Slow(io.FileIO):
        def write(self, data: memoryview) -> int:  # type: ignore[override]
            return super().write(data[: rng.randrange(len(data)) + 1])

    rng = random.Random(0)
    sink, expected = LocalSink(tmp_path, "x"), random.Random(1).randbytes(3_500_000)
    name = next(tmp_path.iterdir())
    sink._file.close()
    sink._file = Slow(name, "wb")
    for at in range(0, len(expected), 350_000):
        for start in range(at, at + 350_000, 7_000):
            sink.write(expected[start : start + 7_000])
    assert sink.commit() == (len(expected), hashlib.sha256(expected).hexdigest())
    assert (tmp_path / "x").read_bytes() == expected


def test_a_long_file_is_brought_to_the_disk_while_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(threading.current_thread().name), real(handle))[1])
    sink = LocalSink(tmp_path, "x")
    piece = bytes(1 << 20)
    for _ in range(40):
        sink.write(piece)
    sink.commit()
    assert len(set(synced)) == 2
    assert synced[-2:] == [threading.current_thread().name] * 2  # the file whole, then its folder


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_in_a_thread_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    sink = LocalSink(tmp_path, "x")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(LocalSink, "_write", fail)
    with pytest.raises(StoreError, match="TM932 Input/output error"):
        for _ in range(40):
            sink.write(bytes(1 << 20))
        sink.commit()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_no_thread_outlives_its_sink(tmp_path: Path) -> None:
    assert behind() == []
    for end in ("commit", "abort"):
        sink = LocalSink(tmp_path, "x")
        for _ in range(20):
            sink.write(bytes(1 << 20))
        assert len(behind()) >= 2
        getattr(sink, end)()
        assert behind() == []


def behind() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tracemask-behind"]


def test_what_is_written_after_an_abort_is_dropped(tmp_path: Path) -> None:
    """Arrow's streams write what they still hold when they are freed, which is after the sink's end."""
    sink = LocalSink(tmp_path, "x")
    sink.write(bytes(5 << 20))
    sink.abort()
    assert sink.write(bytes(9 << 20)) == 9 << 20
    assert behind() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_does_not_start_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException
) -> None:
    """An interrupt meets the caller while it waits for the thread, which then runs."""
    real, started = threading.Thread.start, itertools.count(1)

    def start(self: threading.Thread) -> None:
        last = next(started) == number
        if not last or isinstance(error, KeyboardInterrupt):
            real(self)
        if last:
            raise error

    monkeypatch.setattr(threading.Thread, "start", start)
    sink = LocalSink(tmp_path, "x")
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        for _ in range(20):
            sink.write(bytes(1 << 20))
        sink.commit()
    with contextlib.suppress(RuntimeError, KeyboardInterrupt):
        sink.write(bytes(5 << 20))  # a footer, from a `with` that is left
    sink.abort()
    deadline = time.monotonic() + 5
    while behind() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert behind() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_sync_that_begins_at_the_end_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The system tells a failed sync once: who begins one must hear it, however late it began."""
    real_write, real_sync = LocalSink._write, os.fsync

    def slow(self: LocalSink, view: memoryview) -> None:
        time.sleep(0.01)
        real_write(self, view)

    def fail_beside(handle: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_sync(handle)

    monkeypatch.setattr("tracemask.store.sink._SYNCED", 16 << 20)
    monkeypatch.setattr(LocalSink, "_write", slow)
    monkeypatch.setattr(os, "fsync", fail_beside)
    sink = LocalSink(tmp_path, "x")
    for _ in range(16):
        sink.write(bytes(1 << 20))
    if end == "commit":
        with pytest.raises(StoreError, match="TM932 Input/output error"):
            sink.commit()
    sink.abort()
    assert list(tmp_path.iterdir()) == []
    assert not any(thread.name == "tracemask-behind" for thread in threading.enumerate())


def test_memory_that_was_written_may_be_used_again_at_once(tmp_path: Path) -> None:
    sink, memory, expected = LocalSink(tmp_path, "x"), bytearray(700_000), hashlib.sha256()
    for k in range(60):
        memory[:] = bytes([k]) * len(memory)
        expected.update(memory)
        sink.write(memory)
    assert sink.commit()[1] == expected.hexdigest()


def test_memory_stays_bounded_however_slow_the_disk_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, real = threading.Event(), LocalSink._write
    monkeypatch.setattr(LocalSink, "_write", lambda self, view: (go.wait(), real(self, view))[1])
    sink, written = LocalSink(tmp_path, "x"), 0

    def write() -> None:
        nonlocal written
        for _ in range(40):
            written += sink.write(bytes(1 << 20))

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    assert written <= 16 << 20
    go.set()
    writer.join()
    assert sink.commit()[0] == 40 << 20


def test_work_behind_is_in_order_and_what_follows_is_done_after_an_error_too() -> None:
    seen: list[int] = []
    followed: list[int] = []

    def work(piece: int) -> None:
        if piece == 5:
            raise ValueError("five")
        seen.append(piece)

    behind = Behind(work, then=followed.append)
    with pytest.raises(ValueError, match="five"):
        for k in range(8):
            behind.give(k)
        behind.settle()
    behind.close()
    assert seen == list(range(5))
    assert followed[:6] == list(range(6))


def test_what_follows_may_fail_and_is_said() -> None:
    def follow(piece: int) -> None:
        raise OSError(piece)

    behind = Behind(lambda _: None, then=follow)
    behind.give(1)
    with pytest.raises(OSError, match="1"):
        behind.settle()
    behind.close()


def test_waiting_for_work_behind_never_misses_its_end() -> None:
    done: list[int] = []
    behind = Behind(done.append)
    for k in range(3000):
        behind.give(k)
        if k % 3 == 0:
            behind.settle()
            assert len(done) == k + 1
    behind.close()
    assert done == list(range(3000))
