"""The bytes and lines of a file, compressed or not; what a damaged file still holds comes before its error.

Knows no JSON.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, cast

from tracemask.core.errors import TraceError, UsageError

if TYPE_CHECKING:
    from zipfile import ZipFile

_BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"
_DAMAGE = (EOFError, OSError, zlib.error)


class _Steps(io.RawIOBase):
    """A decompressed stream, read in single steps: a step that fails takes no earlier one with it."""

    def __init__(self, step: Callable[[int], bytes], close: Callable[[], None]) -> None:
        self._step, self._close = step, close

    def close(self) -> None:
        """Closes the source, too."""
        if not self.closed:
            self._close()
        super().close()

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """One step of at most the buffer's size."""
        data = self._step(min(len(buffer), 1 << 16))
        buffer[: len(data)] = data
        return len(data)


def open_bytes(path: str) -> IO[bytes]:
    """A file for reading, .gz and .zst decompressed while it is read. Raises UsageError TM901."""
    try:
        if path.endswith(".gz"):
            import gzip

            packed = gzip.GzipFile(path)
            return cast("IO[bytes]", io.BufferedReader(_Steps(packed.read1, packed.close), _BUFFER))
        if path.endswith(".zst"):
            import pyarrow as pa

            stream = pa.input_stream(path, compression="zstd")
            return cast("IO[bytes]", io.BufferedReader(_Steps(stream.read, stream.close), _BUFFER))
        return open(path, "rb", buffering=_BUFFER)
    except OSError as error:
        raise UsageError("TM901", where=path, what=error.strerror or str(error)) from None


def open_archive(path: str, rel: str) -> ZipFile:
    """A zip for reading. Raises TraceError TM910 where its directory cannot be read."""
    import zipfile

    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise damaged(rel, error) from None


def lines_of(
    path: str, rel: str, start: int = 0, stop: int | None = None, *, offset: int = 0, line: int = 0
) -> Iterator[tuple[int, int, bytes | TraceError]]:
    """(unit, 1-based line, bytes) of the non-blank lines [start, stop); last the error TM910 of a file cut or damaged.

    offset, line: where unit `start` begins (its byte, the lines before it), as unit_ranges found; 0, 0: from the top.
    """
    unit = start if offset else 0
    number = line
    with open_bytes(path) as handle:
        if offset:
            handle.seek(offset)
        try:
            for number, raw in enumerate(handle, line + 1):
                if raw.isspace():
                    continue
                if unit >= start:
                    if stop is not None and unit >= stop:
                        return
                    yield unit, number, raw.removeprefix(_BOM) if number == 1 else raw
                unit += 1
        except _DAMAGE as error:
            if stop is None or unit < stop:
                yield unit, number + 1, damaged(f"{rel}:{number + 1}", error)


def whole(path: str, rel: str) -> bytes | TraceError:
    """The whole content without its byte order mark, or the error TM910 of a file cut or damaged."""
    try:
        with open_bytes(path) as handle:
            return handle.read().removeprefix(_BOM)
    except _DAMAGE as error:
        return damaged(rel, error)


def damaged(where: str, error: Exception) -> TraceError:
    """TM910 for bytes that cannot be read to their end."""
    return TraceError("TM910", where=where, what=f"the file cannot be read on: {error}", fix="write or copy it again")
