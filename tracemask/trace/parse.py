"""JSON text to values: orjson where it is exact, the standard json where it would change or refuse a value.

Knows no trace. Exactness: integers of any size, NaN and Infinity as Python writes them, lone surrogate escapes.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import orjson

DEEP = 200
"""Levels of containers that a value may nest (254 where nothing else is odd about it)."""
_CONTAINERS = {dict, list}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_RUN = b"0" * 19
_SAMPLED = 200  # below it, looking at every byte is as fast
_LONG_INTEGER = re.compile(rb"(?<![\d.eE+])-?\d{19,}(?![\d.eE])")
_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(raw: bytes) -> Any:
    """The value of one UTF-8 JSON text. Raises ValueError with a short reason, also where it nests too deep."""
    value = loads_with_route(raw)[0]
    if too_deep(value):
        raise ValueError(f"nested deeper than {DEEP} levels")
    return value


def loads_with_route(raw: bytes) -> tuple[Any, bool]:
    """(value, whether the standard json had to read it: only then can a string hold a lone surrogate).

    Its depth is not looked at: `too_deep` is for whoever keeps what he does not know.
    """
    if not may_hold_long_integer(raw):
        try:
            return orjson.loads(raw), False
        except orjson.JSONDecodeError:
            pass
    return _loads_exactly(raw), True


def loads_text(text: str) -> Any:
    """`loads` of a string that may hold lone surrogates."""
    return loads(text.encode("utf-8", "surrogatepass"))


def too_deep(value: Any) -> bool:
    """Whether containers nest deeper than DEEP, so that a walk may come near Python's own limit."""
    try:
        orjson.dumps(value)
        return False  # its own limit is 254, and it is a hundred times faster than the walk
    except TypeError:
        return _deeper(value, DEEP)


def _deeper(value: Any, levels: int) -> bool:
    """Level by level, so that no depth is too much to ask about."""
    level: list[Any] = [value]
    while level and levels > 0:
        levels -= 1
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                inner.extend(value for value in item.values() if type(value) is dict or type(value) is list)
            elif type(item) is list and not _CONTAINERS.isdisjoint(map(type, item)):
                inner.extend(value for value in item if type(value) is dict or type(value) is list)
        level = inner
    return bool(level)


def may_hold_long_integer(raw: bytes) -> bool:
    """orjson reads integers beyond 64 bits as floats. A run of 19 digits is looked for at memory speed first.

    Every third byte is looked at before that: a run of 19 digits shows at least six of its own in a row.
    """
    if len(raw) > _SAMPLED and b"000000" not in raw[::3].translate(_DIGITS):
        return False
    return _LONG_RUN in raw.translate(_DIGITS) and _LONG_INTEGER.search(raw) is not None


def _loads_exactly(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        reason = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        raise ValueError(f"{reason} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as error:  # integers of more than 4300 digits
        raise ValueError(str(error).split(";")[0]) from None


def replace_surrogates(value: Any, where: str = "") -> tuple[Any, list[str]]:
    """(value with every lone surrogate as U+FFFD, the field paths where there was one).

    Only values from `loads` that orjson refused can hold one; others come back as they are, unwalked by the caller.
    """
    found: list[str] = []
    return _replaced(value, where, found), found


def _replaced(value: Any, where: str, found: list[str]) -> Any:
    if isinstance(value, str):
        clean = _SURROGATE.sub(REPLACEMENT, value)
        if clean != value:
            found.append(where)
        return clean
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {
            _replaced(key, f"{where}.{key!a}" if where else repr(key), found): _replaced(
                item, f"{where}.{key}" if where else key, found
            )
            for key, item in items
        }
    if isinstance(value, list):
        return [_replaced(item, f"{where}[{index}]", found) for index, item in enumerate(cast("list[Any]", value))]
    return value
