"""`%` and str.format with provenance; the format must be the template's own. Knows no template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from tracemask.render.fields import Items, Record
from tracemask.render.provenance import Text, cat, plain, sub, tag_of, tagged
from tracemask.render.spelling import SCALARS, representation, text_of
from tracemask.render.tags import Untraceable, check_width, coarse

_PRINTF = re.compile(r"%(?:\(([^()]*)\))?([#0\- +]*)(\*|\d+)?(?:\.(\*|\d+))?[hlL]?(.)", re.DOTALL)


def printf(form: str, values: Any) -> str:
    """`form % values` with provenance; the format itself must be the template's own."""
    literal_only(form, "%")
    form = plain(form)
    for match in _PRINTF.finditer(form):
        if "*" in match.group(3, 4):
            raise Untraceable("a width taken from the arguments of %")
        for number in match.group(3, 4):
            check_width(int(number or 0))
    keyed: Any = values
    whole = form % values
    rest = iter(values) if isinstance(values, tuple) else iter((values,))
    out: list[str] = []
    at = 0
    for match in _PRINTF.finditer(form):
        out.append(form[at : match.start()])
        at = match.end()
        name, kind = match.group(1, 5)
        spec = match.group(0) if name is None else "%" + match.group(0)[len(name) + 3 :]
        out.append("%" if kind == "%" else _printf_one(next(rest) if name is None else keyed[name], spec, kind))
    out.append(form[at:])
    spelled = cat(out)
    if plain(spelled) != whole:
        raise Untraceable("%")
    return spelled


def literal_only(form: str, construct: str) -> None:
    """Refuse a format string that is not the template's own."""
    if isinstance(form, Text) and any(tag is not None for _, tag in form._runs):
        raise Untraceable(f"{construct} with a field as the format")


def _printf_one(value: Any, spec: str, kind: str) -> str:
    if kind == "s":
        text = text_of(value)
        if spec == "%s" or not isinstance(text, Text):
            return text if spec == "%s" else spec % plain(text)
        filled = spec % plain(text)
        kept = text if "." not in spec else sub(text, 0, int(spec[:-1].partition(".")[2] or 0))
        pad = len(filled) - len(kept)
        return cat((kept, " " * pad) if "-" in spec else (" " * pad, kept))
    if kind in "ra":
        if spec != "%r":
            return _flagged(spec % (value,), value)
        return representation(value)
    return _flagged(spec % (value,), value)


def _flagged(text: str, value: Any) -> str:
    tag = tag_of(value)
    return text if tag is None else tagged(text, coarse(tag))


_SPEC = re.compile(r"(?:(.)?([<>^=]))?[-+ ]?[zZ]?#?(0)?(\d+)?[,_]?(?:\.(\d+))?([a-zA-Z%])?\Z", re.DOTALL)


class TextFormatter(Formatter):
    """str.format with provenance; fields are reached through `reach`, which refuses unsafe attributes."""

    def __init__(self, reach: Callable[[str, Sequence[Any], Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self._reach = reach

    def spell(self, form: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The formatted text."""
        return self._spell(form, args, kwargs, [0], 1)

    def _spell(
        self, form: str, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: list[int | None], depth: int
    ) -> str:
        if depth < 0:
            raise ValueError("Max string recursion exceeded")
        literal_only(form, "str.format")
        out: list[str] = []
        for text, name, spec, conversion in self.parse(plain(form)):
            out.append(text)
            if name is not None:
                value = self._reach(_numbered(name, numbers), args, kwargs)
                inner = self._spell(spec, args, kwargs, numbers, depth - 1) if spec else ""
                out.append(_formatted(value, plain(inner), conversion))
        return cat(out)


def _numbered(name: str, numbers: list[int | None]) -> str:
    head = re.match(r"[^.\[]*", name)
    first = head.group(0) if head else ""
    if first == "":
        if numbers[0] is None:
            raise ValueError("cannot switch from manual field specification to automatic field numbering")
        name = f"{numbers[0]}{name}"
        numbers[0] += 1
    elif first.isdigit():
        if numbers[0]:
            raise ValueError("cannot switch from manual field specification to automatic field numbering")
        numbers[0] = None
    return name


def _formatted(value: Any, spec: str, conversion: str | None) -> str:
    if conversion == "r":
        value = representation(value)
    elif conversion == "s":
        value = text_of(value)
    elif conversion == "a":
        value = _flagged(ascii(value), value)
    elif conversion is not None:
        raise ValueError(f"Unknown conversion specifier {conversion!r}")
    if not spec:
        return text_of(value) if isinstance(value, (str, Record, Items, *SCALARS)) else _plain_format(value)
    match = _SPEC.match(spec)
    if match is None:
        raise Untraceable(f"the format specification {spec!r}")
    fill, align, zero, width, precision, _ = match.groups()
    for number in (width, precision):
        check_width(int(number or 0))
    if not isinstance(value, Text):
        return _flagged(format(value, spec), value)
    filled = format(plain(value), spec)
    kept = sub(value, 0, int(precision)) if precision is not None else value
    pad = len(filled) - len(kept)
    fill, align = (fill or ("0" if zero else " ")), align or "<"
    left = {"<": 0, ">": pad, "^": pad // 2}[align]
    return cat((fill * left, kept, fill * (pad - left)))


def _plain_format(value: Any) -> str:
    return text_of(value) if type(value) in (bool, type(None), list, dict, tuple) else format(value, "")
