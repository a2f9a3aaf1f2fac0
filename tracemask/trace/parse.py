"""JSON text to values: orjson where it is exact, the standard json where it would change or refuse a value.

Knows no trace. Exactness: integers of any size, NaN and Infinity as Python writes them, lone surrogate escapes.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import orjson

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_RUN = b"0" * 19
_LONG_INTEGER = re.compile(rb"(?<![\d.eE+])-?\d{19,}(?![\d.eE])")
_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(raw: bytes) -> Any:
    """The value of one UTF-8 JSON text. Raises ValueError with a short reason."""
    return loads_with_route(raw)[0]


def loads_with_route(raw: bytes) -> tuple[Any, bool]:
    """(value, whether the standard json had to read it: only then can a string hold a lone surrogate)."""
    if not may_hold_long_integer(raw):
        try:
            return orjson.loads(raw), False
        except orjson.JSONDecodeError:
            pass
    return _loads_exactly(raw), True


def loads_text(text: str) -> Any:
    """`loads` of a string that may hold lone surrogates."""
    return loads(text.encode("utf-8", "surrogatepass"))


def may_hold_long_integer(raw: bytes) -> bool:
    """orjson reads integers beyond 64 bits as floats. A run of 19 digits is looked for at memory speed first."""
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
