"""What the policy sampled in a render: from the generation prompt's end to the first stop. Knows no token stream."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.core.finding import Finding, Place
from tracemask.core.fingerprint import fingerprint
from tracemask.render.control import Control
from tracemask.render.conversation import Conversation
from tracemask.render.layout import Layout
from tracemask.render.parts import empty_reasoning, open_reasoning

PROBE_REPLY = "tracemask probes this reply"
MAX_LEARNED = 4096


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the template writes before a reply of one kind. text: from the message's block on.

    exact: the prompt is a prefix of the render that follows. known: False where the template refuses to write one.
    """

    text: str
    exact: bool
    known: bool = True


@dataclass(frozen=True, slots=True)
class Region:
    """Characters [start, end) of a rendered text that one reply stands for; [stop, end) is its stop, empty if none.

    prompt_end: where the generation prompt ends; up to `start` follows an empty reasoning block of the template's own.
    opened: the closer of a reasoning block that the prompt left open. stopped_early: a stop stands inside.
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


@dataclass
class Turns:
    """Finds regions. Generation prompts are learned once per kind of turn, then verified by provenance.

    A kind is what a prompt may depend on: kwargs, tools, system text, the message before, the fields of the reply.
    """

    control: Control
    stops: frozenset[int]
    _learned: dict[str, Prompt] = field(default_factory=dict)

    def region(self, conversation: Conversation, layout: Layout, k: int, *, cut_short: bool = False) -> Region | None:
        """The region of message k in `layout`; None where the template wrote nothing for it."""
        extent = layout.extents[k]
        if extent.first < 0:
            return None
        prompt = self.prompt(conversation, k)
        prompt_end, fits = self._start(layout, k, prompt)
        literal_end = extent.own_first if extent.own_first >= prompt_end else extent.last
        start = max(prompt_end, empty_reasoning(layout.text, prompt_end, literal_end))
        stop, end, stop_id = self._end(layout, k, start, cut_short)
        inside = layout.marks[bisect_left(layout.mark_starts, start) : bisect_left(layout.mark_starts, stop)]
        return Region(
            message=k,
            prompt_end=prompt_end,
            start=start,
            stop=stop,
            end=end,
            approximate=not prompt.exact or (not fits and len(layout.extents) == k + 1),
            opened=open_reasoning(prompt.text) if fits else None,
            stopped_early=any(mark.id in self.stops for mark in inside),
            stop_id=stop_id,
        )

    # ------------------------------------------------------------------ start

    def prompt(self, conversation: Conversation, k: int) -> Prompt:
        """The generation prompt before message k, learned from this turn where its kind is new."""
        key = _kind(conversation, k)
        if key not in self._learned:
            if len(self._learned) >= MAX_LEARNED:
                self._learned.clear()
            self._learned[key] = self._learn(conversation, k)
        return self._learned[key]

    def _learn(self, conversation: Conversation, k: int) -> Prompt:
        try:
            context = conversation.layout(k, prompt=True).text
            own = conversation.layout(k + 1)
        except RenderError:
            return Prompt("", exact=False, known=False)
        start = own.extents[k].first
        if start < 0:
            return Prompt("", exact=False, known=False)
        if own.text.startswith(context):
            inside = own.extents[k].own_first < 0 or own.extents[k].own_first >= len(context)
            return Prompt(context[start:], exact=inside)
        if context.startswith(own.text[:start]):
            return Prompt(context[start:], exact=False)
        before = conversation.layout(k).text
        if context.startswith(before):
            return Prompt(context[len(before) :], exact=False)
        return Prompt("", exact=False, known=False)

    def _start(self, layout: Layout, k: int, prompt: Prompt) -> tuple[int, bool]:
        """(where the reply starts, the prompt stands there in full)."""
        extent, text = layout.extents[k], layout.text
        own = extent.own_first if extent.own_first >= 0 else len(text)
        if not prompt.known:
            return (self._boundary_before(layout, extent.first, own), False)
        at = extent.first
        if text.startswith(prompt.text, at) and at + len(prompt.text) <= own:
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
        if not prompt[shared:].strip() or not prompt:
            return shared
        return max(edge for edge in edges if edge <= shared)

    def _boundary_before(self, layout: Layout, first: int, own: int) -> int:
        """Without a generation prompt to go by: the end of the last control token before the reply's own text."""
        at = bisect_right(layout.mark_starts, own - 1) - 1
        return (
            max(first, layout.marks[at].end) if at >= 0 and layout.marks[at].end <= own else min(own, len(layout.text))
        )

    # ------------------------------------------------------------------ end

    def _end(self, layout: Layout, k: int, start: int, cut_short: bool) -> tuple[int, int, int | None]:
        """(start of the stop, end of the region, id of the stop)."""
        extent = layout.extents[k]
        after = max(start, extent.own_last)
        if cut_short:
            return after, after, None
        limit = layout.block_end(k)
        for index in range(bisect_left(layout.mark_starts, after), len(layout.marks)):
            mark = layout.marks[index]
            if mark.start > limit or (mark.start == limit and mark.start > extent.last):
                break
            if mark.id in self.stops:
                return mark.start, mark.end, mark.id
            if mark.start >= limit:
                break
        end = max(extent.last, after)
        return end, end, None


def learn_stop(conversation: Conversation) -> int | None:
    """The control token that the template writes right after a plain reply, from a probe conversation."""
    try:
        layout = conversation.layout(len(conversation))
    except RenderError:
        return None
    at = layout.text.rfind(PROBE_REPLY)
    if at < 0:
        return None
    index = bisect_left(layout.mark_starts, at + len(PROBE_REPLY))
    return layout.marks[index].id if index < len(layout.marks) else None


PROBE_CHAT: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "tracemask probes this template"},
    {"role": "assistant", "content": PROBE_REPLY},
)


def finding(code: str, message: str, turn: int, **data: object) -> Finding:
    """A finding about one message of a trace."""
    return Finding(code, message, Place(turn=turn), data=dict(data))


def _kind(conversation: Conversation, k: int) -> str:
    chat = conversation.chat
    before: Mapping[str, Any] = chat[k - 1] if k else {}
    message = chat[k]
    system = chat[0].get("content") if chat[0].get("role") in ("system", "developer") else None
    return fingerprint(
        dict(conversation.kwargs),
        bool(conversation.tools),
        str(system),
        before.get("role"),
        k if k < 2 else 2,
        bool(message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")),
        bool(message.get("tool_calls")),
        bool(message.get("content")),
    )


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
