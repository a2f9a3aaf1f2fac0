"""Work that a thread of its own does while its caller goes on. Knows no file."""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue


class Beside:
    """Does `work` in a thread, as often as it is asked to.

    Nothing here is locked by Python code: threads and pools of the library, interrupted between a lock and its use,
    leave it locked, and who then waits for them waits for ever.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._asked: SimpleQueue[bool] = SimpleQueue()  # False: to end
        self._told: SimpleQueue[BaseException | None] = SimpleQueue()  # what the work met
        self.started = self._ended = self._busy = False

    def ask(self) -> None:
        """Has the work begin unless it is not done with the last; raises what that met."""
        if not self.started:
            start_new_thread(self._run, ())
            self.started = True
        if self._busy and self._told.empty():
            return
        self.wait()
        self._busy = True
        self._asked.put(True)

    def wait(self) -> None:
        """Waits until what was asked is done; raises what it met."""
        if self._busy:
            found = self._told.get()
            self._busy = False
            if found is not None:
                raise found

    def end(self) -> None:
        """Waits for what was asked, and for the end of the thread; may be called again where it was interrupted."""
        self._asked.put(False)  # in any case: an interrupt may have come between a start and its being noted
        while self.started and not self._ended:
            self._told.get()

    def _run(self) -> None:
        while self._asked.get():
            try:
                self._work()
            except BaseException as error:  # the caller's to judge
                self._told.put(error)
            else:
                self._told.put(None)
        self._ended = True
        self._told.put(None)
