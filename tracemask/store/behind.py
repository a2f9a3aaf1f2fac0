"""Work on pieces, in order, in a thread beside the caller's. Knows no file and no hash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Behind(Generic[T]):
    """Calls `work` on each piece given, one after the other; then `then`, whether or not the work was done.

    Hashing, writing and syncing release the interpreter, so they run while the next piece is made. What `work` raises
    stops it for good, and is raised by the next `give` or `settle`. One thread at a time may give or settle.
    """

    def __init__(self, work: Callable[[T], object], *, then: Callable[[T], object] | None = None) -> None:
        self._work, self._then = work, then
        self._pieces: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._given = self._done = 0
        self._goal: int | None = None  # how much of it the caller waits for
        self._reached = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tracemask-behind", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # an interrupt, too: the thread may run, and nobody else knows of it
            self._pieces.put(None)
            raise

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                try:
                    if self._error is None:
                        self._work(piece[0])
                finally:
                    if self._then is not None:
                        self._then(piece[0])
            except BaseException as error:
                self._error = error
            del piece
            self._done += 1
            if self._goal is not None and self._done >= self._goal:
                self._reached.set()

    def give(self, piece: T) -> None:
        """Takes a piece; its memory must stay as it is until its work is done."""
        self._raise()
        self._given += 1
        self._pieces.put((piece,))

    def settle(self) -> None:
        """Waits until all that was given is done."""
        if self._done < self._given:
            self._reached.clear()
            self._goal = self._given
            if self._done < self._goal:  # else it got there before it could see the goal
                self._reached.wait()
            self._goal = None
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
