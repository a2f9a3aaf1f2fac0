"""What a template writes before a reply and behind it, learned once per kind of reply. Knows no region."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.conversation import Conversation
from tracemask.render.layout import content_text, missing_fields, reasoning_text
from tracemask.render.manner import REASONING_NAMES
from tracemask.render.parts import REASONING_TAGS, open_reasoning
from tracemask.render.probe import PROBE_CHAT
from tracemask.render.switches import Switches

MAX_LEARNED = 4096


class Prompt(NamedTuple):
    """What the template writes before a reply of one kind. text: from the message's block on.

    exact: the prompt is a prefix of the render in which the reply is the last message; later renders that drop it
    (an empty reasoning block) change nothing. known: False where the template refuses to write one.
    tail: what follows the reply's last character while it is the last message; ends: a stop is in it.
    opened: the closer of a reasoning block that the prompt leaves open. silent: the fields of which the template prints
    nothing, not even while the reply is the last message.
    """

    text: str
    exact: bool
    known: bool = True
    tail: str = ""
    ends: bool = False
    opened: str | None = None
    silent: frozenset[Origin] = frozenset()


@dataclass
class Prompts:
    """Generation prompts by kind of reply: whatever a prompt may depend on, kwargs, tools, system text, the message
    before, the fields of the reply. stops: ids that end a reply."""

    stops: frozenset[int]
    _learned: dict[tuple[object, ...], Prompt] = field(default_factory=dict)
    _headers: dict[str, str] = field(default_factory=dict)
    _switches: Switches = field(default_factory=Switches)

    def before(self, conversation: Conversation, k: int) -> Prompt:
        """The generation prompt before message k, learned from this turn where its kind is new."""
        known = conversation.prompts.get(k)
        if known is None:
            known = conversation.prompts[k] = self._prompt_of_kind(conversation, k)
        return known

    def _prompt_of_kind(self, conversation: Conversation, k: int) -> Prompt:
        key = (*_kind(conversation, k), self._switches.seen(conversation, k))
        if key not in self._learned:
            if len(self._learned) >= MAX_LEARNED:
                self._learned.clear()
            learned = self._learn(conversation, k)
            self._learned[key] = learned._replace(opened=open_reasoning(learned.text))
        return self._learned[key]

    def _learn(self, conversation: Conversation, k: int) -> Prompt:
        try:
            context = conversation.layout(k, prompt=True).text
            own = conversation.layout(k + 1)
        except RenderError:
            return Prompt("", exact=False, known=False)
        extent = own.extents[k]
        start = extent.first
        lost = missing_fields(own, k, conversation.chat[k])
        silent = frozenset(origin for origin in lost if not extent.characters.get(origin))
        if start < 0:
            return Prompt("", exact=False, known=False, silent=silent)
        after = max(extent.own_last, min(len(context), extent.last))
        tail = own.text[after : extent.last]
        ends = any(mark.id in self.stops for mark in own.marks[bisect_left(own.mark_starts, after) :])
        if own.text.startswith(context):
            return Prompt(context[start:], exact=True, tail=tail, ends=ends, silent=silent)
        if context.startswith(own.text[:start]):
            return Prompt(context[start:], exact=False, tail=tail, ends=ends, silent=silent)
        before = conversation.layout(k).text
        if context.startswith(before):
            return Prompt(context[len(before) :], exact=False, tail=tail, ends=ends, silent=silent)
        return Prompt("", exact=False, known=False, tail=tail, ends=ends, silent=silent)

    def header(self, conversation: Conversation) -> str:
        """The generation prompt after a plain user message; Gemma 4 writes it in history where it prompts with none."""
        key = json.dumps(dict(conversation.kwargs), sort_keys=True, default=str) if conversation.kwargs else ""
        if key not in self._headers:
            probe = replace(conversation, chat=PROBE_CHAT, tools=None)
            self._headers[key] = self.before(probe, 1).text
        return self._headers[key]


def _kind(conversation: Conversation, k: int) -> tuple[object, ...]:
    message = conversation.chat[k]
    return (
        conversation.kind,
        conversation.chat[k - 1].get("role") if k else None,
        min(k, 2),
        *_said(message),
        _ending(message.get("tool_calls")),
        _caller(conversation, k),
    )


def _said(message: Mapping[str, Any]) -> tuple[object, ...]:
    """What of content and reasoning a template can see at once: is there a field, text, only white space, a tag."""
    content = message.get("content")
    text, reasoning = content_text(content), reasoning_text(message)
    tags = tuple(tag in text for pair in REASONING_TAGS for tag in pair) if "<" in text or "[" in text else ()
    given = any(message.get(name) is not None for name in REASONING_NAMES)
    return type(content), bool(text), bool(text.strip()), tags, given, bool(reasoning), bool(reasoning.strip())


def _ending(calls: Sequence[Mapping[str, Any]] | None) -> tuple[object, ...]:
    """What the last call ends with: templates spell a string, a number and a flag each in their own manner."""
    if not calls:
        return ()
    function = calls[-1].get("function") or calls[-1]
    last: Any = function.get("arguments")
    kinds: list[object] = [type(last)]
    while isinstance(last, Mapping | list) and last:
        last = last[next(reversed(last))] if isinstance(last, Mapping) else last[-1]
        kinds.append(type(last))
    return (*kinds, bool(last), len(calls) > 1)


def _caller(conversation: Conversation, k: int) -> tuple[object, ...]:
    """What the reply said whose tools answered just before message k: Gemma 4 closes a turn that says something."""
    at = k - 1
    while at >= 0 and conversation.chat[at].get("role") == "tool":
        at -= 1
    return _said(conversation.chat[at]) if 0 <= at < k - 1 else ()
