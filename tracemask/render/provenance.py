"""Strings that remember which field of which message each character came from. Knows no template.

A `Text` is a str whose characters are covered by runs `(length, tag)`; tag None is a literal of the template, else a
`Tag`. Everything that a template can do with a str keeps the runs or raises `Untraceable` naming the construct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tracemask.render.tags import MAX_CHARS, At, Run, Tag, Untraceable, changed_runs, check_size, check_width, cut_runs

plain_slice = str.__getitem__


def plain(text: str) -> str:
    """The same characters as an exact str."""
    return text if type(text) is str else plain_slice(text, slice(None))


class Text(str):
    """A str with provenance. `_runs` cover it exactly once, in order; they are never changed in place."""

    __slots__ = ("_runs",)
    _runs: Sequence[Run]

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return cat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return cat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: Any) -> str:
        if not isinstance(count, int):
            return NotImplemented
        check_size(len(self) * max(count, 0))
        return cat((self,) * max(count, 0))

    def __rmul__(self, count: Any) -> str:
        return self.__mul__(count)

    def __getitem__(self, key: Any) -> str:
        if not isinstance(key, slice):
            key = range(len(self))[key]
            return sub(self, key, key + 1)
        start, stop, step = key.indices(len(self))
        if step == 1:
            return sub(self, start, max(start, stop))
        return cat([sub(self, index, index + 1) for index in range(start, stop, step)])

    def __iter__(self) -> Iterator[str]:
        return (sub(self, index, index + 1) for index in range(len(self)))

    def __format__(self, spec: str) -> str:
        if spec:
            raise Untraceable("a format specification on a field")
        return self

    def lstrip(self, chars: str | None = None) -> str:
        return sub(self, len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return sub(self, 0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None) -> str:
        left = str.lstrip(self, chars)
        start = len(self) - len(left)
        return sub(self, start, start + len(str.rstrip(left, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        return sub(self, len(prefix), len(self)) if str.startswith(self, prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return sub(self, 0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return pieces(self, str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        parts = str.rsplit(self, sep, maxsplit)
        if sep is not None:
            return pieces(self, parts, sep)
        found: list[str] = []
        end = len(self)
        for part in reversed(parts):
            start = str.rindex(self, part, 0, end)
            found.append(sub(self, start, start + len(part)))
            end = start
        return found[::-1]

    def splitlines(self, keepends: Any = False) -> list[str]:
        found: list[str] = []
        start = 0
        for line, shown in zip(str.splitlines(self, True), str.splitlines(self, keepends), strict=True):
            found.append(sub(self, start, start + len(shown)))
            start += len(line)
        return found

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, middle, after = pieces(self, str.partition(self, sep), "")
        return before, middle, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, middle, after = pieces(self, str.rpartition(self, sep), "")
        return before, middle, after

    def replace(self, old: str, new: str, count: Any = -1, /) -> str:
        str.replace("", old, new, count)  # refuses what str refuses
        if old:
            if old not in self:
                return self
            return join(new, pieces(self, str.split(self, old, count), old))
        limit = len(self) + 1 if count < 0 else min(count, len(self) + 1)
        parts: list[str] = []
        for index in range(len(self) + 1):
            if index < limit:
                parts.append(new)
            parts.append(sub(self, index, index + 1))
        return cat(parts)

    def join(self, items: Iterable[str], /) -> str:
        return join(self, items)

    def center(self, width: Any, fill: str = " ", /) -> str:
        return padded(self, str.center(self, check_width(width), fill), fill)

    def ljust(self, width: Any, fill: str = " ", /) -> str:
        return padded(self, str.ljust(self, check_width(width), fill), fill)

    def rjust(self, width: Any, fill: str = " ", /) -> str:
        return padded(self, str.rjust(self, check_width(width), fill), fill)

    def zfill(self, width: Any, /) -> str:
        filled = str.zfill(self, check_width(width))
        sign = 1 if self[:1] in ("+", "-") and len(filled) > len(self) else 0
        zeros = "0" * (len(filled) - len(self))
        return cat((sub(self, 0, sign), zeros, sub(self, sign, len(self))))

    def expandtabs(self, tabsize: Any = 8) -> str:
        if "\t" in self:
            check_width(tabsize)
            raise Untraceable("str.expandtabs on text with tabs")
        return self

    def upper(self) -> str:
        return mapped(self, str.upper, "upper")

    def lower(self) -> str:
        return mapped(self, str.lower, "lower")

    def casefold(self) -> str:
        return mapped(self, str.casefold, "casefold")

    def swapcase(self) -> str:
        return mapped(self, str.swapcase, "swapcase")

    def title(self) -> str:
        return mapped(self, str.title, "title")

    def capitalize(self) -> str:
        return mapped(self, str.capitalize, "capitalize")

    def translate(self, table: Any, /) -> str:
        entries = table.values() if isinstance(table, Mapping) else table if isinstance(table, list | tuple) else ()
        if isinstance(table, Text) or any(isinstance(entry, Text) for entry in entries):
            raise Untraceable("str.translate with a field in its table")
        return mapped(self, lambda part: str.translate(part, table), "translate")

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise Untraceable("str.encode")


new_text = str.__new__


def make(text: str, runs: Sequence[Run]) -> Text:
    """A Text of these characters and runs; the caller vouches that the runs cover it."""
    made = new_text(Text, text)
    made._runs = runs
    return made


def literal(text: str) -> Text:
    """A template literal as Text, so that its methods keep the provenance of their arguments."""
    return make(text, ((len(text), None),))


def tagged(text: str, tag: Any) -> Text:
    """All of `text` from one place."""
    return make(text, ((len(text), tag),))


def runs_of(text: str) -> Sequence[Run]:
    """The runs of a Text, or one literal run for a plain str."""
    return text._runs if isinstance(text, Text) else ((len(text), None),)


def tag_of(value: Any) -> Tag | None:
    """The first tag in a value, None for what came from the template alone."""
    if isinstance(value, Text):
        for _, tag in value._runs:
            tag = tag.tag if type(tag) is At else tag
            if type(tag) is Tag:
                return tag
        return None
    return getattr(value, "_tag", None)


def cat(parts: Sequence[str]) -> str:
    """The parts one after the other; a plain str if none of them carries provenance."""
    runs: list[Run] = []
    size = 0
    traced = False
    for part in parts:
        length = len(part)
        size += length
        if type(part) is str:
            if length:
                runs.append((length, None))
        else:
            traced = True
            runs += part._runs  # pyright: ignore[reportAttributeAccessIssue]
    if size > MAX_CHARS:
        check_size(size)
    if not traced:
        return "".join(parts)
    made = new_text(Text, "".join(parts))
    made._runs = runs
    return made


def sub(text: Text, start: int, end: int) -> str:
    """Characters [start, end) of a Text with their runs."""
    size = len(text)
    if end >= size:
        if start <= 0:
            return text
        end = size
    if start >= end:
        return ""
    runs = text._runs
    if len(runs) == 1:
        return make(plain_slice(text, slice(start, end)), ((end - start, runs[0][1]),))
    return make(plain_slice(text, slice(start, end)), cut_runs(runs, start, end))


def join(separator: str, items: Iterable[str]) -> str:
    """str.join with provenance; refuses what str.join refuses."""
    parts: list[str] = []
    size = 0
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise TypeError(f"sequence item {index}: expected str instance, {type(item).__name__} found")
        if index and separator:
            parts.append(separator)
        parts.append(item)
        size += len(separator) + len(item)
        check_size(size)
    return cat(parts)


def pieces(text: Text, parts: Iterable[str], sep: str | None) -> list[str]:
    """The slices of `text` that a plain split gave, found again from the left."""
    found: list[str] = []
    at = 0
    for part in parts:
        if sep is None:
            at = str.index(text, part, at)
        found.append(sub(text, at, at + len(part)))
        at += len(part) + (0 if sep is None else len(sep))
    return found


def padded(text: Text, filled: str, fill: str) -> str:
    """`filled` is `text` between copies of the fill character: give each its own provenance."""
    extra = len(filled) - len(text)
    if extra <= 0:
        return text
    cuts = (0, extra, extra // 2, extra - extra // 2)
    left = next(cut for cut in cuts if plain_slice(filled, slice(cut, cut + len(text))) == text)
    return cat((fill * left, text, fill * (extra - left)))


def mapped(text: Text, change: Callable[[str], str], name: str) -> str:
    """A change of letters, run by run; refused where a letter's result depends on the run beside it."""
    whole = change(plain(text))
    runs = text._runs
    if len(runs) == 1:
        return make(whole, ((len(whole), runs[0][1]),))
    changed = changed_runs(plain(text), whole, runs, change)
    if changed is not None:
        return make(whole, changed)
    if len(whole) == len(text):
        return make(whole, runs)
    raise Untraceable(f"str.{name} whose result depends on the text beside it")
