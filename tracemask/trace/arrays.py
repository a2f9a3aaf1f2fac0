"""Token arrays in JSON: lists of numbers, or base64 of little-endian int32 / float32. Knows no model."""

from __future__ import annotations

import binascii
import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, cast

_LITTLE = sys.byteorder == "little"
_NUMBERS = {int, float, type(None)}


def token_ids(value: Any) -> list[int]:
    """Token ids from a list of integers or from base64 of little-endian int32, each in [0, 2**31).

    Raises ValueError.
    """
    if isinstance(value, str):
        packed = _unpack("i", value)
        ids: list[int] = packed.tolist()
    elif isinstance(value, list) and set(map(type, cast("list[Any]", value))) <= {int}:
        ids = cast("list[int]", value)
        try:
            packed = array("i", ids)
        except OverflowError:
            raise ValueError("a token id does not fit into 31 bits") from None
    else:
        raise ValueError("not a list of token ids: integers from 0 to 2147483647")
    if not packed.tobytes()[3 if _LITTLE else 0 :: 4].isascii():  # the sign bits, at memory speed
        raise ValueError("not a list of token ids: one is negative")
    return ids


def numbers(value: Any) -> list[float | None]:
    """Numbers or null from a list, or from base64 of little-endian float32 where NaN is null. Raises ValueError."""
    if isinstance(value, str):
        floats: list[float] = _unpack("f", value).tolist()
        if not math.isnan(sum(floats)):
            return cast("list[float | None]", floats)
        return [None if number != number else number for number in floats]
    if isinstance(value, list) and set(map(type, cast("list[Any]", value))) <= _NUMBERS:
        return cast("list[float | None]", value)
    raise ValueError("not a list of numbers")


def complete_numbers(value: Any) -> list[float]:
    """`numbers` without null. Raises ValueError."""
    found = numbers(value)
    if None in found:
        raise ValueError("a number is missing (null)")
    return cast("list[float]", found)


def ints_to_base64(values: Iterable[int]) -> str:
    """base64 of little-endian int32."""
    return _pack(array("i", values))


def floats_to_base64(values: Iterable[float | None]) -> str:
    """base64 of little-endian float32; None is written as NaN."""
    return _pack(array("f", (math.nan if value is None else value for value in values)))


def _unpack(kind: str, text: str) -> array[Any]:
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"neither a list of numbers nor base64: {error}") from None
    if len(raw) % 4:
        raise ValueError(f"base64 of {len(raw)} bytes is not a whole number of 4-byte values")
    out: array[Any] = array(kind)
    out.frombytes(raw)
    if not _LITTLE:
        out.byteswap()
    return out


def _pack(values: array[Any]) -> str:
    if not _LITTLE:
        values.byteswap()
    return b64encode(values.tobytes()).decode("ascii")
