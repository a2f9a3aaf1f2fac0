"""Which render each reply of a branch is read from. Knows layouts and stability; knows no token.

A render is named by its end: e stands for messages [0, e), ~k for the prompt before reply k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tracemask.core.errors import RenderError
from tracemask.core.finding import Finding
from tracemask.core.vocab import Origin
from tracemask.render.conversation import Conversation
from tracemask.render.layout import Layout, missing_fields
from tracemask.render.parts import open_reasoning
from tracemask.render.speaker import Speaker
from tracemask.render.stability import Stability
from tracemask.render.turns import Region, Turns, finding
from tracemask.trace.model import Message


class History(str, Enum):
    """What becomes of a text-only reply whose characters a later render drops."""

    AUTO = "auto"
    AS_RENDERED = "as_rendered"
    PER_TURN = "per_turn"


@dataclass
class Reading:
    """Chooses for each reply: the whole branch's render if it serves, else the one up to the next user, else up to the
    last reply before, else its own."""

    conversation: Conversation
    messages: Sequence[Message]
    speakers: list[Speaker]
    turns: Turns
    stability: Stability
    history: History
    findings: list[Finding] = field(default_factory=list)
    chosen: dict[int, int] = field(default_factory=dict)
    _losses: dict[tuple[int, int], list[Origin]] = field(default_factory=dict)
    _regions: dict[tuple[int, int], Region | None] = field(default_factory=dict)
    _settled: dict[int, int] = field(default_factory=dict)  # render → messages before it stand as the policy read them

    def layout(self, end: int) -> Layout:
        """The render named `end`."""
        return self.conversation.layout(~end, prompt=True) if end < 0 else self.conversation.layout(end)

    def choose(self) -> None:
        """Fills `chosen`: reply → end of the render that it is read from."""
        for k, message in enumerate(self.messages):
            if not message.from_policy:
                continue
            if message.sampled is not None:
                self.chosen[k] = self._with_prompt(k, self._context_end(k))
            else:
                self.chosen[k] = self._survivor(k)

    # -------------------------------------------------------------- text-only replies

    def _survivor(self, k: int) -> int:
        full, own = len(self.messages), k + 1
        if self.history is History.PER_TURN:
            self.report_lost(k, self._lost(own, k))
            return own
        lost = self._lost(full, k)
        if self.history is History.AS_RENDERED or not (self._gone(full, k) or self._stop_rewritten(full, k)):
            self.report_lost(k, lost)
            return full
        remaining = lost
        for end in dict.fromkeys((self._segment_end(k), self._answer(k), own)):
            remaining = self._lost(end, k)
            if not remaining and not self._stop_rewritten(end, k):
                return end
        if not remaining:
            return own
        self.report_lost(k, remaining)
        better = self._shown(own, k) > self._shown(full, k)
        return own if better else full

    def _lost(self, end: int, k: int) -> list[Origin]:
        lost = self._losses.get((end, k))
        if lost is None:
            lost = missing_fields(self.conversation.layout(end), k, self.conversation.chat[k])
            self._losses[end, k] = lost
        return lost

    def _gone(self, end: int, k: int) -> list[Origin]:
        """What reply k lost since it was sampled: fields that the template never prints were in nobody's eyes."""
        lost = self._lost(end, k)
        if not lost or self.messages[k].role != "assistant":
            return lost
        shown = self.conversation.layout(end).extents[k].characters
        silent = self.turns.prompts.before(self.conversation, k).silent
        return [origin for origin in lost if shown.get(origin) or origin not in silent]

    def _stop_rewritten(self, end: int, k: int) -> bool:
        """The reply ended with a stop while it was the last message and has none here (gpt-oss: <|return|>)."""
        if k + 1 == end or not self.turns.prompts.before(self.conversation, k).ends:
            return False
        region = self.region(end, k)
        return region is not None and region.stop_id is None and not self.messages[k].cut_short

    def _shown(self, end: int, k: int) -> int:
        layout = self.conversation.layout(end)
        return sum(layout.visible(k, origin) for origin in (Origin.CONTENT, Origin.REASONING, Origin.TOOL_CALL))

    def _segment_end(self, k: int) -> int:
        """Where the next message of a user begins: up to there templates keep what a reply said."""
        for later in range(k + 1, len(self.messages)):
            if self.messages[later].role == "user":
                return later
        return len(self.messages)

    def _answer(self, k: int) -> int:
        """The last reply before the next message of a user, or k + 1: gpt-oss drops the way to an answer behind it."""
        later = (at for at in range(self._segment_end(k) - 1, k, -1) if self.messages[at].role == "assistant")
        return next(later, k + 1)

    def report_lost(self, k: int, lost: Sequence[Origin]) -> None:
        """TM103 for each field that the template drops."""
        for origin in lost:
            what = f"the template drops {origin.label.replace('_', ' ')} of message {k}"
            self.findings.append(finding("TM103", what, self.speakers[k].index, field=origin.label))

    # -------------------------------------------------------------- sampled replies

    def _context_end(self, k: int) -> int:
        """The render that begins as the template wrote when reply k was sampled, and still says what it said."""
        for end in dict.fromkeys((len(self.messages), self._segment_end(k), self._answer(k))):
            if self._shows_context(end, k) and self._whole(end, k):
                return end
        return k + 1

    def _with_prompt(self, k: int, end: int) -> int:
        """`end`, or the prompt's own render where none begins with the prompt (R1 prompts with an opened <think>)."""
        region = self.region(end, k)
        if region is not None and region.prompted and (end != k + 1 or self._own_shows_context(k)):
            return end
        try:
            self.layout(~k)
        except RenderError:
            return end
        return ~k

    def _whole(self, end: int, k: int) -> bool:
        return not self._gone(end, k)

    def _shows_context(self, end: int, k: int) -> bool:
        """What stands before reply k in the render of [0, end) is what stood there when it was sampled."""
        after_reply = k > 0 and self.messages[k - 1].role == "assistant"
        if not after_reply and (k + 1 == end or self._trusted(end, k)):
            return True
        self.conversation.counter.fallbacks += 1
        try:
            context = self.conversation.layout(k, prompt=True).text
        except RenderError:
            return k + 1 == end
        region = self.region(end, k)
        if region is None or self.conversation.layout(end).text[: region.prompt_end] != context:
            return False
        self._settled[end] = k
        return True

    def _own_shows_context(self, k: int) -> bool:
        """Reply k's own render begins as its prompt: gpt-oss drops earlier analysis as soon as an answer follows."""
        if self.stability.stable(self.conversation, within=True):
            return True
        self.conversation.counter.fallbacks += 1
        try:
            context = self.conversation.layout(k, prompt=True).text
        except RenderError:
            return True
        region = self.region(k + 1, k)
        return region is not None and self.conversation.layout(k + 1).text[: region.prompt_end] == context

    def _trusted(self, end: int, k: int) -> bool:
        """The template only appends, and nothing that stands before reply k in this render was dropped since."""
        within = end < len(self.messages) or end == self._segment_end(k)
        if not self.stability.stable(self.conversation, within=within):
            return False
        at = max(self._settled.get(end, 0), self._segment_start(k) if within else 0)
        while at < k and not self._gone(end, at):
            at += 1
        self._settled[end] = max(at, self._settled.get(end, 0))
        return at >= k

    def _segment_start(self, k: int) -> int:
        return next((before for before in range(k - 1, -1, -1) if self.messages[before].role == "user"), 0)

    def region(self, end: int, k: int) -> Region | None:
        """The region of reply k in the render named `end`."""
        key = (end, k)
        if key not in self._regions:
            layout = self.layout(end)
            if end == ~k:
                opened = open_reasoning(self.turns.prompts.before(self.conversation, k).text)
                self._regions[key] = behind(k, len(layout.text), opened)
            else:
                cut_short = self.messages[k].cut_short and self.messages[k].sampled is None
                self._regions[key] = self.turns.region(self.conversation, layout, k, cut_short=cut_short)
        return self._regions[key]


def behind(k: int, end: int, opened: str | None = None, *, approximate: bool = False) -> Region:
    """The empty region at the end of a text: there stand sampled ids that the text itself does not hold."""
    return Region(k, end, end, end, end, approximate, opened, stopped_early=False, stop_id=None, prompted=True)
