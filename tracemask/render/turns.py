"""What the policy sampled in a render: from the generation prompt's end to the first stop. Knows no token stream."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tracemask.core.errors import RenderError
from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Origin
from tracemask.render.control import Control, Mark
from tracemask.render.conversation import Conversation
from tracemask.render.layout import Layout, content_text, missing_fields, reasoning_text
from tracemask.render.parts import REASONING_TAGS, empty_reasoning, open_reasoning

PROBE_REPLY = "tracemask probes this reply"
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


class Region(NamedTuple):
    """Characters [start, end) of a rendered text that one reply stands for; [stop, end) is its stop, empty if none.

    prompt_end: where the generation prompt ends; up to `start` follows what the template puts in without anyone
    sampling it: an empty reasoning block, a header that it repeats.
    opened: the closer of a reasoning block that the prompt left open. stopped_early: a stop stands inside.
    prompted: the whole generation prompt stands before it. prefill: where characters of the reply's own message begin
    that the prompt writes already ("<think>\\n"), else -1; prefill_marks: the template's control tokens among them.
    """

    message: int
    prompt_end: int
    start: int
    stop: int
    end: int
    approximate: bool
    opened: str | None
    stopped_early: bool
    stop_id: int | None
    prompted: bool = True
    prefill: int = -1
    prefill_marks: tuple[Mark, ...] = ()


@dataclass
class Turns:
    """Finds regions. Generation prompts are learned once per kind of turn, then verified by provenance.

    A kind is what a prompt may depend on: kwargs, tools, system text, the message before, the fields of the reply.
    """

    control: Control
    stops: frozenset[int]
    _learned: dict[tuple[object, ...], Prompt] = field(default_factory=dict)
    _headers: dict[str, str] = field(default_factory=dict)

    def region(self, conversation: Conversation, layout: Layout, k: int, *, cut_short: bool = False) -> Region | None:
        """The region of message k in `layout`; None where the template wrote nothing for it."""
        extent = layout.extents[k]
        if extent.first < 0:
            return None
        prompt = self.prompt(conversation, k)
        prompt_end, fits = self._start(layout, k, prompt)
        literal_end = extent.own_first if extent.own_first >= prompt_end else extent.last
        start, repeated = self._inserted(conversation, layout.text, prompt_end, literal_end)
        stop, end, stop_id = self._end(layout, k, start, cut_short, prompt.tail)
        first, last = bisect_left(layout.mark_starts, start), bisect_left(layout.mark_starts, stop)
        region = Region(
            message=k,
            prompt_end=prompt_end,
            start=start,
            stop=stop,
            end=end,
            approximate=repeated or not (fits or (prompt.exact and k + 1 < len(layout.extents))),
            opened=prompt.opened if fits else None,
            stopped_early=first < last and any(mark.id in self.stops for mark in layout.marks[first:last]),
            stop_id=stop_id,
            prompted=fits,
            **self._prefill(layout, extent.own_first, prompt_end),
        )
        if k + 1 < len(layout.extents) and (region.stopped_early or layout.interrupted(k)):
            return self._judged_in_own(conversation, layout, region, cut_short)
        return region

    def _judged_in_own(self, conversation: Conversation, layout: Layout, region: Region, cut_short: bool) -> Region:
        """The region where later messages print characters of this reply again (Gemma 4: the name of its tool)."""
        conversation.counter.fallbacks += 1
        k = region.message
        own_layout = conversation.layout(k + 1)
        own = self.region(conversation, own_layout, k, cut_short=cut_short)
        if own is None:
            return region
        said = own_layout.text[own.start : own.stop]
        if not layout.text.startswith(said, region.start):
            return region
        stop = end = region.start + len(said)
        index = bisect_left(layout.mark_starts, stop)
        stop_id = None
        if index < len(layout.marks) and layout.marks[index].start == stop and layout.marks[index].id in self.stops:
            stop_id, end = layout.marks[index].id, layout.marks[index].end
        return region._replace(stop=stop, end=end, stop_id=stop_id, stopped_early=own.stopped_early)

    # ------------------------------------------------------------------ start

    def _prefill(self, layout: Layout, own_first: int, prompt_end: int) -> dict[str, Any]:
        """Fields of a region whose generation prompt ends inside the message's own text."""
        if not 0 <= own_first < prompt_end:
            return {}
        found = self.control.pattern.finditer(layout.text, own_first, prompt_end) if self.control.pattern else ()
        marks = tuple(Mark(match.start(), match.end(), self.control.id_of[match[0]]) for match in found)
        return {"prefill": own_first, "prefill_marks": marks}

    def _inserted(self, conversation: Conversation, text: str, start: int, end: int) -> tuple[int, bool]:
        """(where literals that nobody sampled end, a reply's header is among them)."""
        header = self._header(conversation)
        repeated = bool(header) and start + len(header) <= end and text.startswith(header, start)
        if repeated:
            start += len(header)
        return max(start, empty_reasoning(text, start, end)), repeated

    def _header(self, conversation: Conversation) -> str:
        """The generation prompt after a plain user message; Gemma 4 writes it in history where it prompts with none."""
        key = json.dumps(dict(conversation.kwargs), sort_keys=True, default=str) if conversation.kwargs else ""
        if key not in self._headers:
            probe = replace(conversation, chat=PROBE_CHAT, tools=None)
            self._headers[key] = self.prompt(probe, 1).text
        return self._headers[key]

    def prompt(self, conversation: Conversation, k: int) -> Prompt:
        """The generation prompt before message k, learned from this turn where its kind is new."""
        known = conversation.prompts.get(k)
        if known is None:
            known = conversation.prompts[k] = self._prompt_of_kind(conversation, k)
        return known

    def _prompt_of_kind(self, conversation: Conversation, k: int) -> Prompt:
        key = _kind(conversation, k)
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

    def _start(self, layout: Layout, k: int, prompt: Prompt) -> tuple[int, bool]:
        """(where the reply starts, the prompt stands there in full)."""
        extent, text = layout.extents[k], layout.text
        own = extent.own_first if extent.own_first >= 0 else len(text)
        if not prompt.known:
            return (self._boundary_before(layout, extent.first, own), False)
        at = extent.first
        if text.startswith(prompt.text, at):
            return at + len(prompt.text), True
        shared = _common_prefix(prompt.text, text[at : at + len(prompt.text)])
        shared = min(shared, max(own - at, 0))
        return at + self._snapped(prompt.text, text[at:], shared), False

    def _snapped(self, prompt: str, text: str, shared: int) -> int:
        """The last edge of a control token, in either text, at or before `shared`."""
        edges = {0}
        for candidate in (prompt, text[: len(prompt)]):
            for match in self.control.pattern.finditer(candidate) if self.control.pattern else ():
                edges.update((match.start(), match.end()))
        if shared == len(prompt):
            return shared
        return max(edge for edge in edges if edge <= shared)

    def _boundary_before(self, layout: Layout, first: int, own: int) -> int:
        """Without a generation prompt to go by: the end of the last control token before the reply's own text."""
        at = bisect_right(layout.mark_starts, own - 1) - 1
        return (
            max(first, layout.marks[at].end) if at >= 0 and layout.marks[at].end <= own else min(own, len(layout.text))
        )

    # ------------------------------------------------------------------ end

    def _end(self, layout: Layout, k: int, start: int, cut_short: bool, tail: str) -> tuple[int, int, int | None]:
        """(start of the stop, end of the region, id of the stop).

        Without a stop the region ends where the render ended while this reply was the last message.
        """
        extent = layout.extents[k]
        after = max(start, layout.own_end(k, start))
        if cut_short:
            return after, after, None
        limit = min(layout.block_end(k), layout.foreign_after(k, after))
        for index in range(bisect_left(layout.mark_starts, after), len(layout.marks)):
            mark = layout.marks[index]
            if mark.start > limit or (mark.start == limit and mark.start > extent.last):
                break
            if mark.id in self.stops:
                return mark.start, mark.end, mark.id
            if mark.start >= limit:
                break
        end = max(min(extent.last, limit), after)
        if k + 1 < len(layout.extents):
            shared = _common_prefix(tail, layout.text[after:end])
            end = after + self._snapped(tail, layout.text[after:], shared)
        return end, end, None


def learn_stop(open_probe: Callable[[Sequence[dict[str, Any]]], Conversation], known: frozenset[int]) -> int | None:
    """The stop that the template writes after a plain reply: the control tokens that follow at once, both at the end
    of a conversation and inside it; of several a known end, else the last."""
    last, inner = (_controls_after_reply(open_probe(chat)) for chat in (PROBE_CHAT, (*PROBE_CHAT, PROBE_CHAT[0])))
    both = [one for one, other in zip(last, inner, strict=False) if one == other]
    run = both or last
    return next((token for token in run if token in known), run[-1] if run else None)


def _controls_after_reply(conversation: Conversation) -> list[int]:
    try:
        layout = conversation.layout(len(conversation))
    except RenderError:
        return []
    at = layout.text.rfind(PROBE_REPLY)
    if at < 0:
        if isinstance(conversation.chat[1]["content"], str):
            return _controls_after_reply(replace(conversation, chat=_in_parts(conversation.chat)))
        return []
    at += len(PROBE_REPLY)
    while at < len(layout.text) and layout.text[at].isspace():
        at += 1
    found: list[int] = []
    for mark in layout.marks[bisect_left(layout.mark_starts, at) :]:
        if found and mark.start != at:
            break
        found.append(mark.id)
        at = mark.end
    return found


def _in_parts(chat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same chat with contents as lists of parts: some templates print nothing else."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]


PROBE_CHAT: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "tracemask probes this template"},
    {"role": "assistant", "content": PROBE_REPLY},
)


def finding(code: str, message: str, turn: int, **data: object) -> Finding:
    """A finding about one message of a trace."""
    return Finding(code, message, Place(turn=turn), data=dict(data))


def _kind(conversation: Conversation, k: int) -> tuple[object, ...]:
    message = conversation.chat[k]
    content = message.get("content")
    text = content_text(content)
    reasoning = reasoning_text(message)
    return (
        conversation.kind,
        conversation.chat[k - 1].get("role") if k else None,
        min(k, 2),
        type(content),
        bool(text),
        bool(text.strip()),
        tuple(tag in text for pair in REASONING_TAGS for tag in pair) if "<" in text or "[" in text else (),
        bool(reasoning),
        bool(reasoning.strip()),
        _ending(message.get("tool_calls")),
        _caller_spoke(conversation, k),
    )


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


def _caller_spoke(conversation: Conversation, k: int) -> bool:
    """The reply whose tools answered just before message k has content too: Gemma 4 closes such a turn."""
    at = k - 1
    while at >= 0 and conversation.chat[at].get("role") == "tool":
        at -= 1
    return 0 <= at < k - 1 and bool(conversation.chat[at].get("content"))


def _common_prefix(left: str, right: str) -> int:
    if left == right:
        return len(left)
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
