"""The garbage collector at rest while a batch is rendered. Knows nothing of what is rendered."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Automatic collection is off inside, and back on after where it was on before.

    A batch makes a hundred thousand small objects that live until its samples stand, none of them in large cycles:
    each full collection between would walk them, and every module of the process, and free next to nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
