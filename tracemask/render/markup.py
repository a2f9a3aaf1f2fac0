"""Text marked by the safe and escape filters: escapes what is joined to it, as Markup does. Knows no template."""

from __future__ import annotations

from typing import Any

from markupsafe import escape as escape_html

from tracemask.render.provenance import Text, cat, make, mapped, plain, runs_of
from tracemask.render.tags import Untraceable


class Safe(Text):
    """A Text with Markup's habit: `+` escapes the other operand. What else Markup does differently is refused."""

    __slots__ = ()

    def __html__(self) -> str:
        return self

    def __str__(self) -> str:
        return unmarked(self)

    def __mod__(self, values: Any) -> str:
        raise Untraceable("the safe filter's result as a format of %")

    def __add__(self, other: Any) -> str:
        return safe_plus(self, other)

    def __radd__(self, other: Any) -> str:
        return safe_plus(other, self)

    def __getitem__(self, key: Any) -> str:
        raise Untraceable("a slice of the safe filter's result")

    def __iter__(self) -> Any:
        raise Untraceable("a loop over the safe filter's result")


def _refuse(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Untraceable(f"{name} of the safe filter's result")

    return refuse


for _name in (
    *("capitalize", "casefold", "center", "encode", "expandtabs", "join", "ljust", "lower", "lstrip", "partition"),
    *("removeprefix", "removesuffix", "replace", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
    *("strip", "swapcase", "title", "translate", "upper", "zfill"),
):
    setattr(Safe, _name, _refuse(_name))


def mark_safe(text: str) -> Safe:
    """`text | safe`."""
    made = str.__new__(Safe, text)
    made._runs = runs_of(text)
    return made


def unmarked(text: Text) -> Text:
    """The same characters without the mark."""
    return make(plain(text), text._runs)


def escaped(text: str) -> Safe:
    """HTML-escaped text, marked safe; what is safe already stays."""
    if isinstance(text, Safe):
        return text
    if not isinstance(text, Text):
        return mark_safe(str(escape_html(text)))
    return mark_safe(mapped(text, lambda part: str(escape_html(part)), "escape"))


def safe_plus(left: Any, right: Any) -> Safe:
    """`left + right` where one of them is safe."""
    if not isinstance(left, str) or not isinstance(right, str):
        raise TypeError(f"unsupported operand types for +: {type(left).__name__!r} and {type(right).__name__!r}")
    return mark_safe(cat((escaped(left), escaped(right))))
