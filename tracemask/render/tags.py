"""Where characters came from: tags, runs of characters under one tag, and the limits of a render. Knows no `Text`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracemask.core.vocab import Origin

MAX_CHARS = 1 << 24  # no intermediate or final text may be longer: 16 Mi characters


class Untraceable(Exception):
    """A construct whose characters cannot be followed to their field. `construct` names it for the reader."""

    def __init__(self, construct: str) -> None:
        super().__init__(construct)
        self.construct = construct


class LimitExceeded(Exception):
    """A template asked for more characters, steps or depth than a chat template can need."""


class Tag(NamedTuple):
    """Where characters came from: message `source` (-1: none), kind of field, path in it; `coarse`: no finer."""

    source: int
    origin: Origin
    path: tuple[str | int, ...]
    coarse: bool = False


class At(NamedTuple):
    """A tag whose position was fixed before the characters reached the output (a loop inside a set block)."""

    message: int
    tag: Tag | None


class Mark(NamedTuple):
    """The zero-length tag that opens or closes a generation block."""

    opens: bool


Run = tuple[int, Any]
new_tag = tuple.__new__


def coarse(tag: Tag | None) -> Tag | None:
    """The same place, marked as no finer than the field."""
    return None if tag is None else Tag(tag.source, tag.origin, tag.path, True)


def check_size(chars: int) -> None:
    """Raise LimitExceeded if a text would be longer than any chat can be."""
    if chars > MAX_CHARS:
        raise LimitExceeded(f"a text of more than {MAX_CHARS} characters")


def check_width(width: Any) -> Any:
    """A width or count, refused where it asks for more than MAX_CHARS."""
    if isinstance(width, int) and abs(width) > MAX_CHARS:
        raise LimitExceeded(f"a width of {'more than ' if width > 0 else 'less than -'}{MAX_CHARS}")
    return width


def cut_runs(runs: Sequence[Run], start: int, end: int) -> list[Run]:
    """The runs of characters [start, end), which are not empty."""
    kept: list[Run] = []
    at = 0
    for length, tag in runs:
        low = start if start > at else at
        at += length
        high = end if end < at else at
        if high > low:
            kept.append((high - low, tag))
        if at >= end:
            break
    return kept


def changed_runs(text: str, whole: str, runs: Sequence[Run], change: Callable[[str], str]) -> list[Run] | None:
    """The runs of `whole`, which is change(text); None where the runs changed one by one do not give it."""
    changed: list[Run] = []
    at = 0
    parts: list[str] = []
    for length, tag in runs:
        part = change(text[at : at + length])
        parts.append(part)
        changed.append((len(part), tag))
        at += length
    return changed if "".join(parts) == whole else None
