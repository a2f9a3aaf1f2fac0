"""How values become characters: output, `~`, repr, tojson, `%`, str.format, with provenance. Knows no template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from jinja2.runtime import Undefined

from tracemask.render.provenance import (
    Flag,
    Items,
    LimitExceeded,
    Null,
    Real,
    Record,
    Run,
    Tag,
    Text,
    Untraceable,
    Whole,
    cat,
    check_width,
    coarse,
    make,
    plain,
    sub,
    tag_of,
    tagged,
)

MAX_INDENT = 64
_PRINTABLE = (str, int, float, complex, type(None), list, dict, tuple, range, Undefined, Null)
_SCALARS = (Whole, Real, Flag, Null)


def text_of(value: Any) -> str:
    """str(value) with provenance: what `{{ value }}`, `~` and the string filter print."""
    kind = type(value)
    if kind is Text or kind is str:
        return value
    if kind is list or kind is dict or kind is tuple or kind is Record:
        return representation(value)
    if not isinstance(value, _PRINTABLE):
        raise Untraceable(f"printing a {kind.__name__}")
    return str(value)


def concatenated(values: Sequence[Any]) -> str:
    """The `~` operator over all its operands."""
    return cat([text_of(value) for value in values])


def representation(value: Any) -> str:
    """repr(value); what stands in it keeps its field, and brackets of the template's own containers are literals."""
    if isinstance(value, Text):
        return _quoted(value)
    if _is_one_field(value):
        return tagged(repr(value._raw), coarse(value._tag))
    if isinstance(value, _SCALARS):
        return tagged(repr(value), value._tag)
    kind = type(value)
    if kind is dict or kind is Record:
        pairs = [cat((representation(key), ": ", representation(item))) for key, item in value.items()]
        return cat(("{", *_between(pairs), "}"))
    if kind is list:
        return cat(("[", *_between([representation(item) for item in value]), "]"))
    if kind is tuple:
        inner = _between([representation(item) for item in value])
        return cat(("(", *inner, ",)" if len(value) == 1 else ")"))
    if not isinstance(value, _PRINTABLE):
        raise Untraceable(f"printing a {kind.__name__}")
    return repr(value)


def _is_one_field(value: Any) -> bool:
    """True for a container of a field; a whole message has many fields, each spelled on its own."""
    return type(value) is Items or (type(value) is Record and value._message < 0)


def _between(parts: Sequence[str]) -> list[str]:
    spread: list[str] = []
    for index, part in enumerate(parts):
        if index:
            spread.append(", ")
        spread.append(part)
    return spread


def _quoted(text: Text) -> str:
    whole = str.__repr__(text)
    mark = whole[0]
    other = '"' if mark == "'" else "'"
    return _escaped(text, whole, lambda part: repr(other + part)[2:-1] if mark == "'" else repr("'" + part)[2:-1])


def _escaped(text: Text, whole: str, inner: Callable[[str], str]) -> str:
    """`whole` is `text` escaped between two marks; each mark belongs to the characters beside it."""
    runs = list(text._runs)
    if len(runs) <= 1:
        return tagged(whole, runs[0][1] if runs else None)
    out: list[Run] = [(1, runs[0][1])]
    at = 0
    parts: list[str] = [whole[0]]
    for length, tag in runs:
        part = inner(str.__getitem__(text, slice(at, at + length)))
        out.append((len(part), tag))
        parts.append(part)
        at += length
    out.append((1, runs[-1][1]))
    parts.append(whole[-1])
    if "".join(parts) != whole:
        raise Untraceable("an escape whose result depends on the text beside it")
    return make(whole, out)


def json_text(
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    """The tojson filter as transformers defines it; keys, values and punctuation of a field belong to the field."""
    _check_indent(indent)
    options = {
        "ensure_ascii": ensure_ascii,
        "indent": plain(indent) if isinstance(indent, str) else indent,
        "separators": tuple(plain(each) for each in separators) if separators else separators,
        "sort_keys": sort_keys,
    }
    kind = type(value)
    if _is_one_field(value):
        return tagged(json.dumps(value._raw, **options), value._tag)
    if kind is str:
        return json.dumps(value, **options)
    if kind is Text and len(value._runs) == 1:
        return tagged(json.dumps(value, **options), value._runs[0][1])
    if not _holds_field(value):
        return json.dumps(value, **options)
    return cat(_json_parts(value, options, 0))


def _check_indent(indent: Any) -> None:
    if (isinstance(indent, int) and indent > MAX_INDENT) or (isinstance(indent, str) and len(indent) > MAX_INDENT):
        raise LimitExceeded(f"a JSON indent of more than {MAX_INDENT}")


def _holds_field(value: Any) -> bool:
    if isinstance(value, (Text, Record, Items, *_SCALARS)):
        return True
    if isinstance(value, dict):
        return any(_holds_field(key) or _holds_field(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(_holds_field(item) for item in value)


def _json_parts(value: Any, options: dict[str, Any], depth: int) -> list[str]:
    """The pieces of a container that the template built around fields."""
    if isinstance(value, Text):
        encode = json.encoder.encode_basestring_ascii if options["ensure_ascii"] else json.encoder.encode_basestring
        return [_escaped(value, encode(value), lambda part: encode(part)[1:-1])]
    if _is_one_field(value) and (options["indent"] is None or not value):
        return [tagged(json.dumps(value._raw, **options), value._tag)]
    if isinstance(value, _SCALARS):
        return [tagged(json.dumps(_raw(value), **options), value._tag)]
    if not isinstance(value, (dict, list, tuple)):
        return [json.dumps(value, **options)]
    tag = value._tag if isinstance(value, (Record, Items)) else None
    return _json_container(value, options, depth, tag)


def _raw(value: Any) -> Any:
    return None if isinstance(value, Null) else bool(value) if isinstance(value, Flag) else value


def _json_container(value: Any, options: dict[str, Any], depth: int, tag: Tag | None) -> list[str]:
    indent = options["indent"]
    step = " " * indent if isinstance(indent, int) else indent
    item_mark, key_mark = options["separators"] or ((",", ": ") if indent is not None else (", ", ": "))
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    if not value:
        return [_mark(opening + closing, tag)]
    line = "" if step is None else "\n" + step * (depth + 1)
    last = "" if step is None else "\n" + step * depth
    out = [_mark(opening + line, tag)]
    pairs = (sorted(value.items()) if options["sort_keys"] else value.items()) if isinstance(value, dict) else None
    for index, entry in enumerate(pairs if pairs is not None else value):
        if index:
            out.append(_mark(item_mark + line, tag))
        if pairs is not None:
            key, entry = entry
            out += _json_key(key, options) if isinstance(key, Text) else [_mark(_json_key(key, options)[0], tag)]
            out.append(_mark(key_mark, tag))
        out += _json_parts(entry, options, depth + 1)
    out.append(_mark(last + closing, tag))
    return out


def _json_key(key: Any, options: dict[str, Any]) -> list[str]:
    if isinstance(key, str):
        return _json_parts(key, options, 0)
    return [json.dumps({key: 0}, ensure_ascii=options["ensure_ascii"])[1:-4]]


def _mark(text: str, tag: Tag | None) -> str:
    return text if tag is None else tagged(text, tag)


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
        return text_of(value) if isinstance(value, (str, Record, Items, *_SCALARS)) else _plain_format(value)
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
