"""Where each message stands in one rendered text and how many of its characters are there. Knows no token id."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from tracemask.core.vocab import Origin
from tracemask.render.control import Control, Mark
from tracemask.render.manner import object_of
from tracemask.render.parts import REASONING_TAGS
from tracemask.render.text import RenderedText

BODY = frozenset({Origin.CONTENT, Origin.REASONING, Origin.TOOL_CALL})
_TAGS = re.compile("|".join(re.escape(tag) for pair in REASONING_TAGS for tag in pair))


@dataclass(slots=True)
class Extent:
    """One message's place: [first, last) of what its loop iteration wrote, [own_first, own_last) of its own text there.

    characters: rendered characters of content, reasoning and tool calls, wherever they stand; calls: those of calls by
    (number of the call, "function", "name" or "arguments"), shorter where one stretch spells more. -1: nowhere.
    """

    first: int = -1
    last: int = -1
    own_first: int = -1
    own_last: int = -1
    characters: dict[Origin, int] = field(default_factory=dict)
    calls: dict[tuple[str | int, ...], int] = field(default_factory=dict)


class Layout:
    """An index over one RenderedText: extents by message, control tokens of the template, ends of blocks."""

    def __init__(self, rendered: RenderedText, count: int, control: Control) -> None:
        self.rendered = rendered
        self.text = rendered.text
        self.marks: list[Mark] = control.marks(rendered)
        self.mark_starts = [mark.start for mark in self.marks]
        self.extents = [Extent() for _ in range(count)]
        self._body_starts: list[int] = []
        self._body_sources: list[int] = []
        self._interrupted: set[int] = set()
        self._read()
        firsts = sorted(extent.first for extent in self.extents if extent.first >= 0)
        self._firsts = firsts

    def _read(self) -> None:
        extents, starts, sources, calls = self.extents, self._body_starts, self._body_sources, Origin.TOOL_CALL
        closed: set[int] = set()
        speaking = -1
        for start, end, message, source, origin, path, _coarse in self.rendered.spans:
            if message >= 0:
                extent = extents[message]
                if extent.first < 0:
                    extent.first = start
                extent.last = end
            if source >= 0 and origin in BODY:
                if source != speaking:
                    if source in closed and message in (source, -1):
                        self._interrupted.add(source)
                    closed.add(speaking)
                    speaking = source
                starts.append(start)
                sources.append(source)
                extent = extents[source]
                extent.characters[origin] = extent.characters.get(origin, 0) + end - start
                if origin is calls:
                    part = path[1:4]
                    extent.calls[part] = extent.calls.get(part, 0) + end - start
                if message == source or message == -1:
                    if extent.own_first < 0:
                        extent.own_first = start
                    extent.own_last = end
        for extent in extents:
            if extent.first < 0 and extent.own_first >= 0:
                extent.first, extent.last = extent.own_first, extent.own_last

    def marked(self, more: Sequence[Mark]) -> Layout:
        """The same text with further control tokens."""
        made = copy(self)
        made.marks = sorted({*self.marks, *more})
        made.mark_starts = [mark.start for mark in made.marks]
        return made

    def marks_within(self, start: int, end: int) -> list[Mark]:
        """The control tokens that begin in characters [start, end)."""
        return self.marks[bisect_left(self.mark_starts, start) : bisect_left(self.mark_starts, end)]

    def block_end(self, message: int) -> int:
        """Where the next message's block begins, or the end of the text."""
        at = bisect_left(self._firsts, self.extents[message].last)
        return self._firsts[at] if at < len(self._firsts) else len(self.text)

    def foreign_after(self, message: int, at: int) -> int:
        """Where the first text of another message stands at or after `at`, or the end of the text."""
        starts, sources = self._body_starts, self._body_sources
        for entry in range(bisect_left(starts, at), len(starts)):
            if sources[entry] != message:
                return starts[entry]
        return len(self.text)

    def own_end(self, message: int, start: int) -> int:
        """Where the message's own text ends, or the text of another one interrupts it."""
        extent = self.extents[message]
        if not self.interrupted(message):
            return extent.own_last
        limit = self.foreign_after(message, max(start, extent.own_first))
        own = (span for span in self.rendered.spans if span.source == message and span.origin in BODY)
        return max((span.end for span in own if span.end <= limit), default=start)

    def interrupted(self, message: int) -> bool:
        """Another message's text stands inside this one's: no engine has seen the reply so."""
        return message in self._interrupted

    def visible(self, message: int, origin: Origin) -> int:
        """Rendered characters of one field that are no white space and no reasoning tag."""
        total = 0
        for span in self.rendered.spans:
            if span.source == message and span.origin is origin:
                total += _visible(self.text[span.start : span.end])
        return total


def missing_fields(layout: Layout, message: int, chat: Mapping[str, Any]) -> list[Origin]:
    """The fields of a chat message of which characters other than white space and reasoning tags were dropped."""
    have = layout.extents[message].characters
    lost: list[Origin] = [Origin.CONTENT] if layout.interrupted(message) else []
    content = content_text(chat.get("content"))
    if (
        not lost
        and have.get(Origin.CONTENT, 0) < len(content)
        and layout.visible(message, Origin.CONTENT) < _visible(content)
    ):
        lost.append(Origin.CONTENT)
    reasoning = reasoning_text(chat)
    if (
        reasoning
        and have.get(Origin.REASONING, 0) < len(reasoning)
        and layout.visible(message, Origin.REASONING) < _visible(reasoning)
    ):
        lost.append(Origin.REASONING)
    calls = chat.get("tool_calls")
    if calls:
        shown = layout.extents[message].calls
        if any(_call_lost(shown, index, call) for index, call in enumerate(calls)):
            lost.append(Origin.TOOL_CALL)
    return lost


def content_text(content: Any) -> str:
    """The text of a chat message's content: a string, or the text of its parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return ""


def reasoning_text(chat: Mapping[str, Any]) -> str:
    """The reasoning of a chat message under whichever key it has."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        value = chat.get(key)
        if isinstance(value, str):
            return value
    return ""


def _visible(text: str) -> int:
    return sum(map(len, _TAGS.sub("", text).split())) if "<" in text or "[" in text else sum(map(len, text.split()))


def _call_lost(shown: Mapping[tuple[str | int, ...], int], index: int, call: Mapping[str, Any]) -> bool:
    """Fewer characters of a call's name or of its arguments are there than any faithful spelling has."""
    get, function = shown.get, call.get("function")
    whole = get((), 0) + get((index,), 0)
    if function is None:
        function, name = call, get((index, "name"), 0)
        have = sum(count for path, count in shown.items() if path[:2] == (index, "arguments"))
    else:
        whole += get((index, "function"), 0)
        name, have = get((index, "function", "name"), 0), get((index, "function", "arguments"), 0)
    arguments = function.get("arguments")
    if whole + name < len(function.get("name") or ""):
        return True
    have += whole
    return not (isinstance(arguments, str) and have >= len(arguments)) and have < _least(_parsed(arguments))


def _parsed(arguments: Any) -> Any:
    """The object that a string of arguments spells, which some templates print instead; else `arguments`."""
    value = object_of(arguments) if isinstance(arguments, str) else None
    return arguments if value is None else value


def _least(value: Any) -> int:
    """Characters of a JSON value that every spelling shows: of keys and strings what is no white space."""
    if isinstance(value, str):
        return _visible(value) if value.strip() != "{}" else 0
    if isinstance(value, Mapping):
        return sum(_visible(key) + _least(item) for key, item in value.items())
    return sum(map(_least, value)) if isinstance(value, list | tuple) else 0
