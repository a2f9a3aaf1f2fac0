"""One writer a folder: a lock that names its owner. Knows no dataset.

Local folders: an advisory lock of the operating system, free again the moment its owner dies, however it dies.
Object stores: a lock object that its owner writes again every few seconds. One that was not written for a minute, by
the store's own clock, is a dead owner's and is taken over.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.store.folder import Folder, put
from tracemask.store.sink import write_errors

LOCK = ".tracemask.lock"
BEAT, LAPSE = 10.0, 60.0  # seconds between two writes of a lock object, and after which it is a dead owner's


def owner() -> dict[str, object]:
    """Who holds a lock: host and process."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


@contextmanager
def locked(folder: Folder, *, force: bool = False) -> Iterator[None]:
    """Holds the folder's lock. StoreError TM930, naming the owner, where another process holds it.

    force: take over a lock object whatever its age. A local lock is never taken from a living process.
    """
    folder.make()
    path = folder.local(LOCK)
    with _file_lock(Path(path)) if path else _object_lock(folder, force=force):
        yield


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with write_errors(str(path)):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with write_errors(str(path)):
            _take(handle, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _take(handle: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _held(str(path), path.read_bytes()) from None
    if not path.exists() or os.fstat(handle).st_ino != path.stat().st_ino:
        raise _held(str(path), b"")  # another owner finished in between and took its lock file away
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(owner()).encode(), 0)
    except OSError:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def _object_lock(folder: Folder, *, force: bool) -> Iterator[None]:
    mine = json.dumps({**owner(), "token": os.urandom(8).hex()}).encode()
    where = f"{folder.path}/{LOCK}"
    if folder.size(LOCK) is not None and not force:
        age = _age(folder)
        if age is None or age < LAPSE:
            raise _held(where, folder.read(LOCK), age=age, lapses=True)
    put(folder, LOCK, mine)
    if folder.read(LOCK) != mine:
        raise _held(where, folder.read(LOCK), lapses=True)
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(folder, mine, done), daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
        if folder.size(LOCK) is not None and folder.read(LOCK) == mine:
            folder.remove(LOCK)


def _beat(folder: Folder, mine: bytes, done: threading.Event) -> None:
    """Writes the lock again until `done`, or until it is another's."""
    while not done.wait(BEAT):
        try:
            if folder.read(LOCK) != mine:
                return
            put(folder, LOCK, mine)
        except TracemaskError:
            continue  # the store does not answer: the next beat may


def _age(folder: Folder) -> float | None:
    """Seconds since the lock was last written; None where the store does not say. Both times are the store's."""
    probe = f"{LOCK}.{os.urandom(8).hex()}"
    put(folder, probe, b"")
    try:
        now, then = folder.modified(probe), folder.modified(LOCK)
    finally:
        folder.remove(probe)
    return None if now is None or then is None else (now - then).total_seconds()


def _held(where: str, content: bytes, *, age: float | None = None, lapses: bool = False) -> StoreError:
    try:
        holder = json.loads(content)
        who = f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    fix = "wait for it, or write elsewhere"
    if lapses and age is not None:
        fix += f"; if it was killed, run again in {max(1, round(LAPSE - age))} s: its lock lapses then"
    elif lapses:
        fix += "; if it was killed, remove the lock object, or --force to replace the dataset"
    return StoreError("TM930", where=where, what=f"{who} is writing here", fix=fix)
