"""How values become characters: output, `~` and repr, with provenance. Knows no template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jinja2.runtime import Undefined

from tracemask.render.fields import Flag, Items, Null, Real, Record, Whole
from tracemask.render.provenance import Text, cat, make, tagged
from tracemask.render.tags import Run, Untraceable, coarse

_PRINTABLE = (str, int, float, complex, type(None), list, dict, tuple, range, Undefined, Null)
SCALARS = (Whole, Real, Flag, Null)


def text_of(value: Any) -> str:
    """str(value) with provenance: what `{{ value }}`, `~` and the string filter print."""
    kind = type(value)
    if kind is Text or kind is str:
        return value
    if kind is list or kind is dict or kind is Record or isinstance(value, tuple):
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
        if hasattr(value, "__html__"):
            raise Untraceable("the repr of the safe filter's result")
        return _quoted(value)
    if is_one_field(value):
        return tagged(repr(value._raw), coarse(value._tag))
    if isinstance(value, SCALARS):
        return tagged(repr(value), value._tag)
    kind = type(value)
    if kind is dict or kind is Record:
        pairs = [cat((representation(key), ": ", representation(item))) for key, item in value.items()]
        return cat(("{", *_between(pairs), "}"))
    if kind is list:
        return cat(("[", *_between([representation(item) for item in value]), "]"))
    if isinstance(value, tuple):  # groupby's pairs are tuples of a kind of their own
        inner = _between([representation(item) for item in value])
        return cat(("(", *inner, ",)" if len(value) == 1 else ")"))
    if not isinstance(value, _PRINTABLE):
        raise Untraceable(f"printing a {kind.__name__}")
    return repr(value)


def is_one_field(value: Any) -> bool:
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
    return escaped_text(text, whole, lambda part: repr(other + part)[2:-1] if mark == "'" else repr("'" + part)[2:-1])


def escaped_text(text: Text, whole: str, inner: Callable[[str], str]) -> str:
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
