"""Token arrays in JSON: lists of numbers, or base64 of little-endian int32 / float32. Knows no model."""

from __future__ import annotations

import binascii
import math
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

_SWAP = sys.byteorder != "little"


def ints_from_base64(value: Any) -> Any:
    """A base64 string of little-endian int32 as a list of ints; anything else unchanged. Raises ValueError."""
    return _unpack("i", value).tolist() if isinstance(value, str) else value


def floats_from_base64(value: Any) -> Any:
    """A base64 string of little-endian float32 as a list (NaN: None, missing); else unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    numbers = _unpack("f", value).tolist()
    return [None if number != number else number for number in numbers]


def ints_to_base64(values: Iterable[int]) -> str:
    """base64 of little-endian int32."""
    return _pack(array("i", values))


def floats_to_base64(values: Iterable[float | None]) -> str:
    """base64 of little-endian float32; None is written as NaN."""
    return _pack(array("f", (math.nan if value is None else value for value in values)))


def _unpack(kind: str, text: str) -> array[Any]:
    try:
        raw = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"neither a list of numbers nor base64: {error}") from None
    if len(raw) % 4:
        raise ValueError(f"base64 of {len(raw)} bytes is not a whole number of 4-byte values")
    out: array[Any] = array(kind)
    out.frombytes(raw)
    if _SWAP:
        out.byteswap()
    return out


def _pack(values: array[Any]) -> str:
    if _SWAP:
        values.byteswap()
    return b64encode(values.tobytes()).decode("ascii")
