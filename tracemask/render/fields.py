"""Values of a conversation that know their field: dicts, lists, numbers, booleans, nulls. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracemask.core.vocab import Origin
from tracemask.render.provenance import Text, new_text, tagged
from tracemask.render.tags import Tag, coarse, new_tag


class Record(dict[Any, Any]):
    """A dict of a field; every value in it belongs under `_tag`. `_message`: index of a whole message, else -1.

    `_raw` is the plain value, for spelling the whole of it, `_json` its usual spelling once it was asked for.
    """

    __slots__ = ("_json", "_message", "_raw", "_tag")
    _tag: Tag
    _raw: Any
    _message: int

    def __str__(self) -> str:
        return tagged(repr(self._raw), coarse(self._tag))

    def copy(self) -> Record:
        made = Record(self)
        made._tag, made._message, made._raw = self._tag, self._message, self._raw
        return made


class Items(list[Any]):
    """A list of a field; every element in it belongs under `_tag`. `_raw` and `_json` are as a Record's."""

    __slots__ = ("_json", "_raw", "_tag")
    _tag: Tag
    _raw: Any

    def __str__(self) -> str:
        return tagged(repr(self._raw), coarse(self._tag))


class Whole(int):
    """An int of a field."""

    _tag: Tag | None

    def __str__(self) -> str:
        return tagged(int.__repr__(self), self._tag)


class Real(float):
    """A float of a field."""

    _tag: Tag | None

    def __str__(self) -> str:
        return tagged(float.__repr__(self), self._tag)


class Flag(int):
    """A boolean of a field: True and False cannot carry a tag. The environment's tests take it for what it is."""

    _tag: Tag

    def __repr__(self) -> str:
        return "True" if self else "False"

    def __str__(self) -> str:
        return tagged(repr(self), coarse(self._tag))


class Null:
    """A null of a field: equal to None, false, and printed as the field's."""

    __slots__ = ("_tag",)

    def __init__(self, tag: Tag) -> None:
        self._tag = tag

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or type(other) is Null

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "None"

    def __str__(self) -> str:
        return tagged("None", coarse(self._tag))


def number(value: int | float, tag: Tag | None) -> Any:
    """A number that carries a tag; the plain number where there is none."""
    if tag is None or isinstance(value, bool):
        return value
    made = Whole(value) if isinstance(value, int) else Real(value)
    made._tag = tag
    return made


_FIELD = Origin.FIELD
_REASONING = (Origin.REASONING, ("reasoning_content",))
_KNOWN: dict[str, tuple[Origin, tuple[str]]] = {
    "role": (_FIELD, ("role",)),
    "name": (_FIELD, ("name",)),
    "tool_call_id": (_FIELD, ("tool_call_id",)),
    "content": (Origin.CONTENT, ("content",)),
    "reasoning_content": _REASONING,
    "reasoning": _REASONING,
    "thinking": _REASONING,
    "tool_calls": (Origin.TOOL_CALL, ("tool_calls",)),
    "tools": (Origin.TOOLS, ("tools",)),
}
"""Origin and path of the fields that chat messages have; their keys are the format's own and carry no provenance."""


def wrap(value: Any, source: int, origin: Origin, path: tuple[str | int, ...]) -> Any:
    """A JSON value with provenance, all the way down. Keys of dicts belong to the field that they name."""
    return wrap_tagged(value, new_tag(Tag, (source, origin, path, False)))


def wrap_tagged(value: Any, tag: Tag) -> Any:
    """A JSON value under `tag`; what is inside it gets longer paths."""
    kind = type(value)
    if kind is str:
        made = new_text(Text, value)
        made._runs = ((len(value), tag),)
        return made
    if kind is dict:
        return wrapped_dict(value, tag)
    if kind is list or kind is tuple:
        source, origin, path, _ = tag
        items = Items(
            [
                wrap_tagged(item, new_tag(Tag, (source, origin, path + (index,), False)))
                for index, item in enumerate(value)
            ]
        )
        items._tag, items._raw = tag, value if kind is list else list(value)
        return items
    if value is None:
        return Null(tag)
    if kind is bool:
        flag = Flag(value)
        flag._tag = tag
        return flag
    if kind is int or kind is float:
        return number(value, tag)
    for base in (str, int, float):
        if isinstance(value, base):
            return wrap_tagged("".join((value,)) if isinstance(value, str) else base(value), tag)
    if isinstance(value, Mapping):
        return wrap_tagged(dict(value), tag)
    raise TypeError(f"{kind.__name__} at {show_path(tag.source, tag.path)} is not a JSON value")


def wrapped_dict(value: dict[Any, Any], tag: Tag) -> Record:
    """A dict under `tag`; a key and its value share one tag."""
    source, origin, path, _ = tag
    record = Record()
    record._tag, record._message, record._raw = tag, -1, value
    for key, item in value.items():
        inner = new_tag(Tag, (source, origin, path + (key,), False))
        if type(key) is str:
            name = new_text(Text, key)
            name._runs = ((len(key), inner),)
            key = name
        record[key] = wrap_tagged(item, inner)
    return record


def wrap_message(message: dict[str, Any], index: int) -> Record:
    """One chat message; its fields are tagged by name, reasoning by its standard one."""
    record = Record()
    record._tag, record._message, record._raw = new_tag(Tag, (index, _FIELD, (), False)), index, message
    for key, value in message.items():
        known = _KNOWN.get(key)
        origin, path = known or (_FIELD, (key,))
        tag = new_tag(Tag, (index, origin, path, False))
        if type(value) is str:
            text = new_text(Text, value)
            text._runs = ((len(value), tag),)
            value = text
        else:
            value = wrap_tagged(value, tag)
        record[key if known else tagged(key, tag)] = value
    return record


def show_path(source: int, path: Sequence[str | int]) -> str:
    """`messages[1].tool_calls[0].function`, as a reader would write it."""
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"messages[{source}]{shown}" if source >= 0 else shown.lstrip(".")
