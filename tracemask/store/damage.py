"""What reading a damaged file may raise, said as TM508. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from struct import error as StructError

from tracemask.core.errors import StoreError


@cache
def damaging() -> tuple[type[Exception], ...]:
    """The errors by which readers of bytes say that these are not as expected."""
    import pyarrow as pa

    return (pa.ArrowException, StructError, ValueError, TypeError, LookupError, OSError, ArithmeticError, MemoryError)


def damaged(where: str, what: str, error: Exception, *, fix: str = "convert again") -> StoreError:
    """TM508 at `where`: `what`, and what its reader said."""
    said = str(error) or type(error).__name__
    return StoreError("TM508", where=where, what=f"{what}: {said}", fix=fix)


@contextmanager
def damage(where: str, what: str, *, fix: str = "convert again") -> Iterator[None]:
    """Turns what a damaged file raises into TM508; for what is done seldom, since it costs a microsecond."""
    try:
        yield
    except damaging() as error:
        raise damaged(where, what, error, fix=fix) from error
