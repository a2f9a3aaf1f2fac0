"""Sinks: what is hashed is what is written, and what a thread meets is said to the caller."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tracemask.core.errors import StoreError
from tracemask.store import beside, room
from tracemask.store.folder import open_folder, put
from tracemask.store.sink import LocalSink

MB = 1 << 20
Take = Callable[[LocalSink, list[bytes]], None]


def streamed(sink: LocalSink, pieces: Iterable[bytes]) -> None:
    """The pieces as Arrow writes them, each final at once."""
    with sink.stream() as out:
        for piece in pieces:
            out.write(piece)
            sink.advance()


def written(sink: LocalSink, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        sink.write(piece)


@pytest.mark.parametrize("take", [streamed, written])
@pytest.mark.parametrize("sizes", [[], [0], [1], [70_000], [5, 70_000, 6, 9_000_000, 0, 1, 6_000_000], [40_000] * 600])
def test_the_hash_is_of_the_bytes_in_the_file(tmp_path: Path, sizes: list[int], take: Take) -> None:
    rng = random.Random(0)
    pieces = [rng.randbytes(size) for size in sizes]
    sink = LocalSink(tmp_path, "x")
    take(sink, pieces)
    assert [path.name for path in tmp_path.iterdir()] != ["x"]
    expected = b"".join(pieces)
    assert sink.commit() == (len(expected), hashlib.sha256(expected).hexdigest())
    assert (tmp_path / "x").read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("take", [streamed, written])
def test_an_object_has_the_bytes_and_the_hash_of_a_file(tmp_path: Path, take: Take) -> None:
    pieces = [random.Random(k).randbytes(k * 90_000) for k in range(9)]
    there, here = open_folder("memory://sinks").sink("x"), LocalSink(tmp_path, "x")
    take(here, pieces)
    take(there, pieces)  # type: ignore[arg-type]
    assert here.commit() == there.commit()
    assert (tmp_path / "x").read_bytes() == open_folder("memory://sinks").read("x")


def test_a_write_that_takes_only_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, real = random.Random(0), os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[: rng.randrange(len(data)) + 1]))
    sink, expected = LocalSink(tmp_path, "x"), random.Random(1).randbytes(3_500_000)
    written(sink, [expected[at : at + 350_000] for at in range(0, len(expected), 350_000)])
    assert sink.commit() == (len(expected), hashlib.sha256(expected).hexdigest())
    assert (tmp_path / "x").read_bytes() == expected


def test_a_read_that_gives_only_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, real = random.Random(0), os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda handle, into, at: real(handle, [into[0][: rng.randrange(len(into[0])) + 1]], at)
    )
    sink, expected = LocalSink(tmp_path, "x"), random.Random(1).randbytes(9_500_000)
    streamed(sink, [expected[:6_000_000], expected[6_000_000:]])
    assert sink.commit() == (len(expected), hashlib.sha256(expected).hexdigest())


def test_a_file_that_somebody_cut_is_said(tmp_path: Path) -> None:
    sink = LocalSink(tmp_path, "x")
    streamed(sink, [bytes(3 * MB)])
    os.truncate(next(tmp_path.iterdir()), MB)
    with pytest.raises(StoreError, match=f"TM932 the file has {MB} bytes where {3 * MB} were written"):
        sink.commit()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_long_file_is_hashed_and_brought_to_the_disk_while_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(threading.current_thread().name), real(handle))[1])
    sink = LocalSink(tmp_path, "x")
    with sink.stream() as out:
        for _ in range(40):
            out.write(bytes(MB))
            sink.advance()
        deadline = time.monotonic() + 20
        while sink._digest.done < 36 * MB and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sink._digest.done >= 36 * MB
    sink.commit()
    assert len(set(synced)) == 2
    assert synced[-2:] == [threading.current_thread().name] * 2  # the file whole, then its folder


@pytest.mark.parametrize("call", ["preadv", "fsync"])
def test_a_disk_that_fails_in_a_thread_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    sink, before = LocalSink(tmp_path, "x"), threads()
    with pytest.raises(StoreError, match="TM932 Input/output error"):
        streamed(sink, [bytes(MB)] * 40)
        sink.commit()
    sink.abort()
    assert list(tmp_path.iterdir()) == []
    assert ended(before)


@pytest.mark.parametrize("long", [False, True])
def test_a_file_that_the_system_refuses_is_said(tmp_path: Path, long: bool) -> None:
    """A real limit, in a process of its own: what Arrow writes and what this package writes meet it alike."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tracemask.core.errors import StoreError\n"
        "from tracemask.store.sink import LocalSink\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, 9 << 20))\n"
        "for way in ('stream', 'write'):\n"
        "    sink = LocalSink(Path(sys.argv[1]), 'x')\n"
        "    try:\n"
        "        if way == 'write':\n"
        "            sink.write(bytes(int(sys.argv[2])))\n"
        "        else:\n"
        "            with sink.stream() as out:\n"
        "                for _ in range(8):\n"
        "                    out.write(bytes(int(sys.argv[2]) // 8))\n"
        "                    sink.advance()\n"
        "        print(way, sink.commit()[0])\n"
        "    except StoreError as error:\n"
        "        print(way, error.code, error.what)\n"
        "        sink.abort()\n"
    )
    size = (64 if long else 8) * MB
    command = [sys.executable, "-c", script, str(tmp_path), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = "TM932 File too large" if long else str(size)
    assert done.stdout.splitlines() == [f"stream {said}", f"write {said}"]
    assert [path.name for path in tmp_path.iterdir()] == ([] if long else ["x"])


def test_no_thread_outlives_its_sink(tmp_path: Path) -> None:
    before = threads()
    for end in ("commit", "abort"):
        sink = LocalSink(tmp_path, "x")
        streamed(sink, [bytes(MB)] * 20)
        assert threads() == before + 2
        getattr(sink, end)()
        assert ended(before)


def test_a_short_file_needs_no_thread(tmp_path: Path) -> None:
    before = threads()
    sink = LocalSink(tmp_path, "x")
    streamed(sink, [bytes(MB)] * 3)
    assert threads() == before
    sink.commit()


def threads() -> int:
    """How many threads this process runs, those included that no Python object stands for."""
    return len(os.listdir("/proc/self/task"))


def ended(before: int) -> bool:
    """Whether there are soon no more threads than `before`: a thread has done its work a moment before it is gone."""
    deadline = time.monotonic() + 5
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    return threads() <= before


def test_an_abort_within_the_stream_leaves_nothing(tmp_path: Path) -> None:
    """A shard's writer that Arrow still holds ends after it, into a stream that is closed."""
    sink, before = LocalSink(tmp_path, "x"), threads()
    schema = pa.schema([("a", pa.int64())])
    with contextlib.suppress(ZeroDivisionError), sink.stream() as out:
        writer = pa.ipc.new_file(out, schema)
        writer.write_batch(pa.record_batch([pa.array(range(MB))], schema=schema))
        sink.advance()
        raise ZeroDivisionError
    sink.abort()
    del writer
    assert ended(before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_does_not_start_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException
) -> None:
    """An interrupt meets the caller when the thread is there and nobody has noted it."""
    started = itertools.count(1)

    def start(run: Callable[[], None], arguments: tuple[()]) -> None:
        last = next(started) == number
        if not last or isinstance(error, KeyboardInterrupt):
            start_new_thread(run, arguments)
        if last:
            raise error

    monkeypatch.setattr(beside, "start_new_thread", start)
    sink, before = LocalSink(tmp_path, "x"), threads()
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        streamed(sink, [bytes(MB)] * 20)
    sink.abort()
    assert ended(before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_bytecode_leaves_nothing_and_nobody_waits(tmp_path: Path, every: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("store_interrupt.py")), str(tmp_path), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["points"] > 500 / every
    assert found["wrong"] == []


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_sync_that_begins_at_the_end_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The system tells a failed sync once: who begins one must hear it, however late it began."""
    real_sync = os.fsync

    def fail_beside(handle: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_sync(handle)

    monkeypatch.setattr(os, "fsync", fail_beside)
    sink, before = LocalSink(tmp_path, "x"), threads()
    streamed(sink, [bytes(5 * MB)])
    if end == "commit":
        with pytest.raises(StoreError, match="TM932 Input/output error"):
            sink.commit()
    sink.abort()
    assert list(tmp_path.iterdir()) == []
    assert ended(before)


def test_a_folder_that_refuses_the_removal_too_does_not_hide_what_it_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk that turns read-only does while it is written."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(StoreError, match="TM932 Read-only file system"):
        put(open_folder(tmp_path), "x", b"x")


def test_room_for_a_long_file_is_made_before_its_first_byte(tmp_path: Path) -> None:
    sink = LocalSink(tmp_path, "x")
    with sink.stream(at_least=8 * MB) as out:
        (temporary,) = tmp_path.iterdir()
        found = temporary.stat()
        assert found.st_size == 0
        if found.st_blocks == 0:
            pytest.skip("this file system reserves nothing")
        assert found.st_blocks * 512 >= 8 * MB
        out.write(bytes(9 * MB))
    assert sink.commit()[0] == 9 * MB


def test_a_disk_without_room_for_a_file_is_said_before_a_byte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(room, "_fallocate", lambda: full)
    sink = LocalSink(tmp_path, "x")
    with pytest.raises(StoreError, match="TM932 No space left.*free some space"), sink.stream(at_least=MB):
        raise AssertionError("the stream opened")
    sink.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reserve", [None, lambda *_: -1])
def test_a_file_system_that_reserves_nothing_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserve: Callable[..., int] | None
) -> None:
    ctypes.set_errno(errno.EOPNOTSUPP)
    monkeypatch.setattr(room, "_fallocate", lambda: reserve)
    sink = LocalSink(tmp_path, "x")
    with sink.stream(at_least=MB) as out:
        out.write(b"abc")
    assert sink.commit()[0] == 3
