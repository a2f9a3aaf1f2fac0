"""What in-memory values must not hold that JSON texts never do: objects, lone surrogates, rings, bottomless nesting.

Knows no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from tracemask.core.errors import TraceError
from tracemask.trace.parse import DEEP


def refuse_unstorable(value: Any, where: str, depth: int = 0) -> None:
    """Raises TraceError TM911 at the first value below `where` that could be neither tokenized nor stored.

    `where` itself may be an object: a field of a model, which checks it.
    """
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
            if not isinstance(key, str):
                raise TraceError("TM911", where=where, what=f"key {key!r} is no string", fix="use strings as keys")
            if not key.isascii():
                refuse_unstorable(key, f"{where}.{key.encode('ascii', 'backslashreplace').decode()}")
            if not isinstance(item, int | float):
                refuse_unstorable(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        for index, item in enumerate(() if _PLAIN.issuperset(map(type, items)) else items):
            refuse_unstorable(item, f"{where}[{index}]", depth + 1)
    elif depth and not (value is None or isinstance(value, int | float | BaseModel)):
        raise not_json(value, where)


def not_json(value: Any, where: str) -> TraceError:
    """TM911 for an object that has no one spelling in JSON: its words may hold an address, or an order that changes."""
    fix = "give a string, number, list or dict: .item(), .tolist(), .model_dump()"
    return TraceError("TM911", where=where, what=f"JSON has no {type(value).__name__}", fix=fix)


_PLAIN = {int, float, bool, type(None)}
