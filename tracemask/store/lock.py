"""One writer a folder: a lock that names its owner. Knows no dataset.

Local folders: an advisory lock of the operating system, free again the moment its owner dies, however it dies.
Object stores: a lock object with the owner's name; a killed owner leaves it behind, and `force` takes it over.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracemask.core.errors import StoreError
from tracemask.store.folder import Folder, put
from tracemask.store.sink import write_errors

LOCK = ".tracemask.lock"


def owner() -> dict[str, object]:
    """Who holds a lock: host and process."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


@contextmanager
def locked(folder: Folder, *, force: bool = False) -> Iterator[None]:
    """Holds the folder's lock. StoreError TM930, naming the owner, where another process holds it.

    force: take over a lock object left in an object store. A local lock is never taken from a living process.
    """
    folder.make()
    path = folder.local(LOCK)
    with _file_lock(Path(path)) if path else _object_lock(folder, force=force):
        yield


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    import fcntl

    with write_errors(str(path)):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(str(path), path.read_bytes()) from None
        if not path.exists() or os.fstat(handle).st_ino != path.stat().st_ino:
            raise _held(str(path), b"")  # another owner finished in between and took its lock file away
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(owner()).encode(), 0)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


@contextmanager
def _object_lock(folder: Folder, *, force: bool) -> Iterator[None]:
    mine = json.dumps({**owner(), "token": os.urandom(8).hex()}).encode()
    if folder.size(LOCK) is not None and not force:
        raise _held(f"{folder.path}/{LOCK}", folder.read(LOCK))
    put(folder, LOCK, mine)
    if folder.read(LOCK) != mine:
        raise _held(f"{folder.path}/{LOCK}", folder.read(LOCK))
    try:
        yield
    finally:
        if folder.size(LOCK) is not None and folder.read(LOCK) == mine:
            folder.remove(LOCK)


def _held(where: str, content: bytes) -> StoreError:
    try:
        holder = json.loads(content)
        who = f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    fix = "wait for it or write elsewhere; on an object store --force takes a dead owner's lock"
    return StoreError("TM930", where=where, what=f"{who} is writing here", fix=fix)
