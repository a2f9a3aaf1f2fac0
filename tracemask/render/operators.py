"""What the generated code calls for `+ - * / // % **` and slices: provenance kept, sizes bounded. Knows no template."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tracemask.render.fields import Items, Record, number, show_path
from tracemask.render.formatting import printf
from tracemask.render.markup import Safe, safe_plus
from tracemask.render.provenance import Text, cat, tag_of
from tracemask.render.tags import LimitExceeded, Untraceable, check_size, coarse

MAX_BITS = 4096
MAX_ITEMS = 1 << 20


def plus(values: Sequence[Any]) -> Any:
    """`a + b + c`."""
    for value in values:
        kind = type(value)
        if kind is not str and kind is not Text:
            break
    else:
        return cat(values)
    total = values[0]
    for value in values[1:]:
        total = _plus(total, value)
    return total


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, Safe) or isinstance(right, Safe):
        return safe_plus(left, right)
    if isinstance(left, str) and isinstance(right, str):
        return cat((left, right))
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        _check_items(len(left) + len(right))
    try:
        return _number(operator.add, left, right)
    except TypeError as error:
        raise TypeError(f"{error}{_culprit(left, right)}") from None


def _culprit(*values: Any) -> str:
    """Names the field that an operation could not take."""
    for value in values:
        tag = value._tag if isinstance(value, (Record, Items)) else None
        if tag is not None:
            steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in tag.path).lstrip(".")
            place = f"message {tag.source}, {steps}" if tag.source >= 0 else show_path(-1, tag.path)
            return f" ({place})"
    return ""


def _number(apply: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    result = apply(left, right)
    if type(left) is int and type(right) is int:
        return result
    if type(result) is int or type(result) is float:
        tag = tag_of(left) or tag_of(right)
        return result if tag is None else number(result, coarse(tag))
    return result


def times(left: Any, right: Any) -> Any:
    """`a * b`."""
    for many, count in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(count, int):
            size = len(many) * max(count, 0)
            check_size(size) if isinstance(many, str) else _check_items(size)
    if isinstance(left, Safe) or isinstance(right, Safe):
        raise Untraceable("the safe filter's result repeated with *")
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return _number(operator.mul, left, right)


def power(left: Any, right: Any) -> Any:
    """`a ** b`."""
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        _check_bits(left.bit_length() * right)
    return _number(operator.pow, left, right)


def modulo(left: Any, right: Any) -> Any:
    """`a % b`: remainder or printf."""
    if isinstance(left, Safe):
        raise Untraceable("the safe filter's result as a format of %")
    if isinstance(left, str):
        return printf(left, right)
    return _number(operator.mod, left, right)


def minus(left: Any, right: Any) -> Any:
    """`a - b`."""
    return _number(operator.sub, left, right)


def divided(left: Any, right: Any) -> Any:
    """`a / b`."""
    return _number(operator.truediv, left, right)


def floored(left: Any, right: Any) -> Any:
    """`a // b`."""
    return _number(operator.floordiv, left, right)


def negative(value: Any) -> Any:
    """`-a`."""
    tag = tag_of(value)
    return -value if tag is None else number(-value, coarse(tag))


def sliced(context: Any, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """`a[start:stop:step]`."""
    result = value[start:stop:step]
    if isinstance(result, (list, tuple, str)):
        context.progress.spend(len(result) >> 3)
    return result


def _check_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise LimitExceeded(f"a list of more than {MAX_ITEMS} elements")


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise LimitExceeded(f"a number of more than {MAX_BITS} bits")
