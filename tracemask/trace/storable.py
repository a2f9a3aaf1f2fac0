"""What in-memory values must not hold that JSON texts never do: lone surrogates, rings, bottomless nesting.

Knows no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.parse import DEEP


def refuse_unstorable(value: Any, where: str, depth: int = 0) -> None:
    """Raises TraceError TM911 at the first value below `where` that could be neither tokenized nor stored."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise TraceError(
                    "TM911", where=where, what=f"lone surrogate at character {error.start}", fix="replace it by U+FFFD"
                ) from None
    elif depth > DEEP:
        raise TraceError("TM911", where=where.split(".")[0], what="nested too deep", fix=f"at most {DEEP} levels")
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if isinstance(key, str) and not key.isascii():
                refuse_unstorable(key, f"{where}.{key.encode('ascii', 'backslashreplace').decode()}")
            if not isinstance(item, int | float):
                refuse_unstorable(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list) and not (value and isinstance(value[0], int | float)):
        for index, item in enumerate(cast("list[Any]", value)):
            refuse_unstorable(item, f"{where}[{index}]", depth + 1)
