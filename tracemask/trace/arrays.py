"""Token arrays in JSON: lists of numbers, or base64 of little-endian int32 / float32. Knows no model.

Lists stay lists; base64 becomes a Packed array, which is read like a list and compares equal to one.
"""

from __future__ import annotations

import binascii
import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

_LITTLE = sys.byteorder == "little"
_NUMBERS = {int, float, type(None)}
_LARGEST = int(sys.float_info.max)


class Packed(array):  # pyright: ignore[reportMissingTypeArgument]
    """int32 ("i") or float32 ("f") values in one piece of memory: numpy reads them without a loop.

    Equal to a list of the same values; slices, copies and pickles are Packed, a sum with a list is a list.
    """

    __slots__ = ()
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __eq__(self, other: object) -> bool:
        return self.tolist() == other if isinstance(other, list) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Packed(self.typecode, found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return [*self, *other]

    def __radd__(self, other: Any) -> Any:
        return [*other, *self]

    def __copy__(self) -> Packed:
        return Packed(self.typecode, self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Packed:
        return Packed(self.typecode, self)


def plain_list(values: Sequence[Any]) -> list[Any]:
    """The values as a list; a list as it is."""
    return values if isinstance(values, list) else list(values)


def token_ids(value: Any) -> Sequence[int]:
    """Token ids from a list of integers or from base64 of little-endian int32, each in [0, 2**31).

    Raises ValueError.
    """
    ids: Sequence[int]
    if isinstance(value, str):
        ids = packed = _unpack("i", value)
    elif isinstance(value, Packed) and value.typecode == "i":
        ids = packed = value
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


def numbers(value: Any) -> Sequence[float | None]:
    """Numbers or null from a list, or from base64 of little-endian float32 where NaN is null. Raises ValueError."""
    if isinstance(value, str):
        packed = _unpack("f", value)
        if _all_finite(packed):
            return packed
        return [None if number != number else number for number in packed.tolist()]
    if isinstance(value, Packed) and value.typecode == "f":
        return value
    if isinstance(value, list) and (kinds := set(map(type, cast("list[Any]", value)))) <= _NUMBERS:
        if int in kinds and any(type(number) is int and abs(number) > _LARGEST for number in cast("list[Any]", value)):
            raise ValueError("a number is beyond the range of floats")
        return cast("list[float | None]", value)
    raise ValueError("not a list of numbers")


def _all_finite(values: Packed) -> bool:
    """No NaN, infinity or number beyond 1e38: what has all upper exponent bits set, looked for at memory speed."""
    top = values.tobytes()[3 if _LITTLE else 0 :: 4]
    return b"\x7f" not in top and b"\xff" not in top


def complete_numbers(value: Any) -> Sequence[float]:
    """`numbers` without null. Raises ValueError."""
    found = numbers(value)
    if isinstance(found, list) and None in found:
        raise ValueError("a number is missing (null)")
    return cast("Sequence[float]", found)


def packed_ids(values: Iterable[int] = ()) -> Packed:
    """Token ids in [0, 2**31) in one piece of memory, 4 bytes each."""
    return cast("Packed", Packed("i", values))


def ints_to_base64(values: Iterable[int]) -> str:
    """base64 of little-endian int32."""
    return _pack(array("i", values))


def floats_to_base64(values: Iterable[float | None]) -> str:
    """base64 of little-endian float32; None is written as NaN."""
    return _pack(array("f", (math.nan if value is None else value for value in values)))


def _unpack(kind: str, text: str) -> Packed:
    raw = _bytes_of(text)
    if len(raw) % 4:
        raise ValueError(f"base64 of {len(raw)} bytes is not a whole number of 4-byte values")
    out = Packed(kind, raw)
    if not _LITTLE:
        out.byteswap()
    return out


def _bytes_of(text: str) -> bytes:
    """The bytes of standard base64 with its padding. The fast decoder also takes other spellings: they go the slow way,
    which says what is wrong."""
    if len(text) % 4 == 0 and "-" not in text and "_" not in text:
        try:
            return _fast_decoder()(text)
        except ValidationError:
            pass
    return _decode(text)


def _decode(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"neither a list of numbers nor base64: {error}") from None


@cache
def _fast_decoder() -> Callable[[str], bytes]:
    """pydantic's decoder, a dozen times faster than binascii; versions before 2.9 do not have it."""
    validator = TypeAdapter(bytes, config=ConfigDict(val_json_bytes="base64")).validator
    decode = cast("Callable[[str], bytes]", validator.validate_strings)
    return decode if decode("AAAA") == bytes(3) else _decode


def _pack(values: array[Any]) -> str:
    if not _LITTLE:
        values.byteswap()
    return b64encode(values.tobytes()).decode("ascii")
