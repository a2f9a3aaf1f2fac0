"""Work on pieces of bytes, in order, in a thread beside the caller's. Knows no file and no hash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue


class Behind:
    """Calls `work` on each piece given, one after the other, at most `backlog` pieces behind the caller.

    Hashing, writing and syncing release the interpreter, so they run while the next piece is made. What `work` raises
    stops it for good, and is raised by the next `give` or `settle`.
    """

    def __init__(self, work: Callable[[memoryview], object], *, backlog: int = 16) -> None:
        self._work = work
        self._pieces: Queue[memoryview | None] = Queue(backlog)
        self._settled = threading.Condition()
        self._given = self._done = 0  # bytes
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tracemask-behind", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            if self._error is None:
                try:
                    self._work(piece)
                except BaseException as error:
                    self._error = error
            size = len(piece)
            del piece
            with self._settled:
                self._done += size
                self._settled.notify_all()

    def give(self, piece: memoryview) -> None:
        """Takes a piece; its memory must stay as it is until it is settled."""
        self._raise()
        self._given += len(piece)
        self._pieces.put(piece)

    def settle(self, size: int | None = None) -> None:
        """Waits until the work on the first `size` bytes is done; None: on all."""
        goal = self._given if size is None else min(size, self._given)
        with self._settled:
            while self._done < goal:
                self._settled.wait()
        self._raise()

    @property
    def idle(self) -> bool:
        """Whether all that was given is done."""
        return self._done == self._given

    def close(self, *, drop: bool = False) -> None:
        """Ends the thread. drop: what waits is not worked on any more."""
        if drop and self._error is None:
            self._error = RuntimeError("dropped")
        self._pieces.put(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
