"""What the policy sampled in a render: from the generation prompt's end to the first stop. Knows no token stream."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracemask.core.finding import Finding, Place
from tracemask.render.control import Control, Mark
from tracemask.render.conversation import Conversation
from tracemask.render.layout import Layout
from tracemask.render.parts import empty_reasoning
from tracemask.render.prompts import Prompt, Prompts


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
    """Finds regions: the generation prompt of the reply's kind, verified where it stands by provenance."""

    control: Control
    stops: frozenset[int]
    prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = Prompts(self.stops)

    def region(self, conversation: Conversation, layout: Layout, k: int, *, cut_short: bool = False) -> Region | None:
        """The region of message k in `layout`; None where the template wrote nothing for it."""
        extent = layout.extents[k]
        if extent.first < 0:
            return None
        prompt = self.prompts.before(conversation, k)
        prompt_end, fits = self._start(layout, k, prompt)
        literal_end = extent.own_first if extent.own_first >= prompt_end else extent.last
        start, repeated = self._inserted(conversation, layout.text, prompt_end, literal_end)
        stop, end, stop_id = self._end(layout, k, start, cut_short, prompt.tail)
        region = Region(
            message=k,
            prompt_end=prompt_end,
            start=start,
            stop=stop,
            end=end,
            approximate=repeated or not (fits or (prompt.exact and k + 1 < len(layout.extents))),
            opened=prompt.opened if fits else None,
            stopped_early=not self.stops.isdisjoint([mark.id for mark in layout.marks_within(start, stop)]),
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
        header = self.prompts.header(conversation)
        repeated = bool(header) and start + len(header) <= end and text.startswith(header, start)
        if repeated:
            start += len(header)
        return max(start, empty_reasoning(text, start, end)), repeated

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


def finding(code: str, message: str, turn: int, **data: object) -> Finding:
    """A finding about one message of a trace."""
    return Finding(code, message, Place(turn=turn), data=dict(data))


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
