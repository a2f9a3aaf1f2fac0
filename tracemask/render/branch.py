"""One branch planned: regions of all renders, replies as sampled, and what must be encoded for it. Knows no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np

from tracemask.core.finding import Finding
from tracemask.core.vocab import Author, Origin
from tracemask.render.columns import engine_columns
from tracemask.render.conversation import Conversation
from tracemask.render.encode import Encoder, Mode
from tracemask.render.ground import Labelled
from tracemask.render.layout import Layout
from tracemask.render.reading import History, Reading, behind
from tracemask.render.reply import Reply
from tracemask.render.speaker import Speaker
from tracemask.render.spoken import spoken
from tracemask.render.stability import Stability
from tracemask.render.stream import Base, Pieces, Planned, build_bases, pieces_of
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.turns import Region, Turns, finding
from tracemask.trace.model import Message, Sampled


@dataclass(slots=True)
class Turn:
    """One reply of the policy: the render it is read from, its region there, and its ids where the engine gave them.

    said: layout and region of what the template makes of it, for judging drift.
    """

    k: int
    end: int
    region: Region
    reply: Reply | None
    prompt_ids: np.ndarray | None
    said: tuple[Layout, Region]


@dataclass
class BasePlan:
    """A render that rows will be cut from: regions of its replies in order; which of them stand in it as sampled."""

    layout: Layout
    regions: dict[int, Region]
    verbatim: frozenset[int]
    pieces: Pieces = field(default_factory=Pieces)
    built: Base | None = None


@dataclass
class BranchPlan:
    """Everything about one branch that can be known before anything is encoded."""

    conversation: Conversation
    messages: Sequence[Message]
    speakers: list[Speaker]
    turns: list[Turn]
    bases: dict[int, BasePlan]
    findings: list[Finding]
    modes: Sequence[Mode]
    context_mode: Mode

    def want(self, encoder: Encoder) -> None:
        """Asks for every run that building the bases and judging drift will need."""
        replies = self._replies
        for plan in self.bases.values():
            verbatim = {k: replies[k] for k in sorted(plan.verbatim)}
            regions = plan.regions.values()
            plan.pieces = pieces_of(plan.layout, regions, self.modes, self.context_mode, encoder, verbatim)
        for turn in self.turns:
            if turn.reply is not None and not turn.reply.unprinted:
                self.spoken(turn, encoder)

    def spoken(self, turn: Turn, encoder: Encoder) -> Pieces:
        """The rendered text of a reply in pieces, as if nobody had given its ids."""
        out = Pieces()
        layout, region = turn.said
        out.add_text(turn.k, layout, region.start, region.end, Mode.POLICY, encoder)
        return out

    def base(self, end: int) -> Base:
        """The base of the render named `end`, building all that are not built yet."""
        if self.bases[end].built is None:
            build([self])
        return cast(Base, self.bases[end].built)

    def planned(self, plan: BasePlan) -> Planned:
        """What a base is built from."""
        replies = self._replies
        render = Labelled(plan.layout, self.speakers, [*plan.regions.values()])
        return Planned(render, plan.pieces, {k: replies[k] for k in sorted(plan.verbatim)})

    @cached_property
    def _replies(self) -> dict[int, Reply]:
        return {turn.k: turn.reply for turn in self.turns if turn.reply is not None}


AT_ONCE = 1 << 18
"""Characters of the renders that share arrays: more would save no time, and one kept sample keeps all of them."""


def build(plans: Sequence[BranchPlan]) -> None:
    """Builds the bases of many branches. Their pieces must be encoded."""
    waiting: list[BasePlan] = []
    planned: list[Planned] = []
    size = 0
    for plan in plans:
        for base in plan.bases.values():
            if base.built is None:
                waiting.append(base)
                planned.append(plan.planned(base))
                size += len(base.layout.text)
            if size >= AT_ONCE:
                _build(waiting, planned)
                waiting, planned, size = [], [], 0
    _build(waiting, planned)


def _build(waiting: Sequence[BasePlan], planned: Sequence[Planned]) -> None:
    if planned:
        for plan, base in zip(waiting, build_bases(planned), strict=True):
            plan.built = base


@dataclass
class Planner:
    """Plans branches for one tokenizer and template."""

    tokenizer: Tokenizer
    turns: Turns
    stability: Stability
    history: History
    control_text: str

    def plan(self, conversation: Conversation, messages: Sequence[Message], speakers: list[Speaker]) -> BranchPlan:
        """Chooses the render of each reply. Raises RenderError where the template refuses the branch."""
        reading = Reading(conversation, messages, speakers, self.turns, self.stability, self.history)
        reading.choose()
        ends = sorted(set(reading.chosen.values())) or [len(messages)]
        last = max(reading.chosen, default=-1)
        if len(messages) not in ends and last + 1 < len(messages):
            ends.append(len(messages))
        replies = {k: self._reply(reading, k) for k in reading.chosen}
        bases = {end: self._base(reading, end, replies) for end in ends}
        turns = [turn for k in reading.chosen if (turn := self._turn(reading, k, bases, replies)) is not None]
        _report_unknown(reading)
        own, context = (Mode.IDS, Mode.IDS) if self.control_text == "ids" else (Mode.POLICY, Mode.CONTENT)
        policy = Author.POLICY
        modes = [own if speaker.author is policy else context for speaker in speakers]
        return BranchPlan(conversation, messages, speakers, turns, bases, reading.findings, modes, context)

    def _turn(self, reading: Reading, k: int, bases: Mapping[int, BasePlan],
              replies: Mapping[int, Reply | None]) -> Turn | None:  # fmt: skip
        end = reading.chosen[k]
        region = bases[end].regions.get(k)
        if region is None:
            reading.report_lost(k, [Origin.CONTENT])
            return None
        said = (bases[end].layout, region)
        reply = replies[k]
        if reply is None:
            return Turn(k, end, region, None, None, said)
        own = reading.region(k + 1 if end < 0 else end, k)
        if end < 0 and own is None:
            reading.report_lost(k, [Origin.CONTENT])
        elif own is not None and (end < 0 or k not in bases[end].verbatim):
            layout = reading.layout(k + 1 if end < 0 else end)
            said = (layout, self._judged(layout, own, reply))
        return Turn(k, end, region, reply, _prompt_ids(reading.messages[k].sampled), said)

    def _base(self, reading: Reading, end: int, replies: Mapping[int, Reply | None]) -> BasePlan:
        layout = reading.layout(end)
        regions: dict[int, Region] = {}
        verbatim: set[int] = set()
        at = 0
        for k in range(end if end >= 0 else -end):
            if reading.messages[k].role != "assistant":
                continue
            region = reading.region(end, k)
            reply = replies.get(k)
            if region is None and reply is not None and end == k + 1:
                region = behind(k, len(layout.text), approximate=True)
            if region is None or region.start < at:
                continue
            if reading.speakers[k].author is not Author.POLICY:
                region = region._replace(prefill=-1, prefill_marks=())
            if reply is not None and reply.unprinted:
                region = self._stands(region, reply)
                verbatim.add(k)
            elif reply is not None and end != ~k:
                region, said = self._matched(layout, region, reply)
                if said:
                    verbatim.add(k)
            regions[k] = region
            at = region.end
        prefilled = [mark for region in regions.values() for mark in region.prefill_marks]
        return BasePlan(layout.marked(prefilled) if prefilled else layout, regions, frozenset(verbatim))

    def _matched(self, layout: Layout, region: Region, reply: Reply) -> tuple[Region, bool]:
        """The region in which the render says what the engine sampled, with or without an empty reasoning block that
        the template adds, with or without a stop; (the region from the prompt on, False) where it does not."""
        spoken = self._spoken(reply)
        for start in dict.fromkeys((region.prompt_end, region.start)):
            if spoken == layout.text[start : region.end]:
                return region._replace(start=start), True
            if spoken == layout.text[start : region.stop]:
                return region._replace(start=start, end=region.stop, stop_id=None), True
        if region.prefill >= 0 and spoken is not None:
            return self._matched_unprompted(layout, region, spoken)
        return region._replace(start=region.prompt_end), False

    def _reply(self, reading: Reading, k: int) -> Reply | None:
        reply = _reply(reading.messages[k].sampled, reading.speakers[k])
        if reply is None or k not in reading.conversation.standing:
            return reply
        opened = self.turns.prompts.before(reading.conversation, k).opened
        said = spoken(self.tokenizer, self.turns.stops, reply, opened)
        return replace(reply, part=said.part, role=said.role, message=reading.speakers[k].index)

    def _stands(self, region: Region, reply: Reply) -> Region:
        """The region that ids take whatever the render says there; a stop that they lack is the template's closer."""
        ended = len(reply.ids) and int(reply.ids[-1]) in self.turns.stops
        region = region._replace(start=region.prompt_end, stopped_early=False)
        return region if ended else region._replace(end=region.stop, stop_id=None)

    def _matched_unprompted(self, layout: Layout, region: Region, spoken: str) -> tuple[Region, bool]:
        """As _matched, for an engine that was prompted without what the template prefills: the reply says it itself."""
        for end, stop_id in ((region.end, region.stop_id), (region.stop, None)):
            if spoken == layout.text[region.prefill : end]:
                at = region.prefill
                whole = region._replace(prompt_end=at, start=at, end=end, stop_id=stop_id, approximate=True)
                return whole._replace(opened=None, prefill=-1, prefill_marks=()), True
        return region._replace(start=region.prompt_end), False

    def _judged(self, layout: Layout, region: Region, reply: Reply) -> Region:
        """The region that sampled ids are compared with: with what the template puts in only where they say it, too.

        A stop that only the next message's header writes (GLM) is not there yet when the reply is the last.
        """
        if region.stop_id is None and len(reply.ids) and int(reply.ids[-1]) in self.turns.stops:
            spoken = self._spoken(replace(reply, ids=reply.ids[:-1]))
            if spoken == layout.text[region.start : region.stop]:
                return region
        return region if region.start == region.prompt_end else region._replace(start=region.prompt_end)

    def _spoken(self, reply: Reply) -> str | None:
        table = self.tokenizer.id_table
        if len(reply.ids) and int(reply.ids.max()) >= len(table):
            return None
        try:
            return b"".join([table[token] for token in reply.ids.tolist()]).decode()
        except UnicodeDecodeError:
            return None


def _report_unknown(reading: Reading) -> None:
    """TM103 for replies of which the log holds ids alone, where a later reply's context is read from the render."""
    rendered = [k for k in reading.chosen if _prompt_ids(reading.messages[k].sampled) is None]
    for k in reading.chosen:
        message = reading.messages[k]
        if message.sampled is not None and not message.blocks and max(rendered, default=-1) > k:
            what = f"the log holds no text of message {k}, only ids: contexts of later replies lack it"
            reading.findings.append(finding("TM103", what, reading.speakers[k].index, field="content"))


def _prompt_ids(sampled: Sampled | None) -> np.ndarray | None:
    return None if sampled is None or sampled.prompt_ids is None else np.asarray(sampled.prompt_ids, np.int32)


def _reply(sampled: Sampled | None, speaker: Speaker) -> Reply | None:
    if sampled is None:
        return None
    count = len(sampled.token_ids)
    author = np.full(count, speaker.author, np.uint8)
    for span in sampled.spans:
        author[span.start : span.end] = Author[span.author.upper()]
    logprob = np.full(count, np.nan, np.float32)
    if sampled.logprobs is not None:
        with np.errstate(over="ignore"):  # beyond float32 becomes infinite, which check reports (TM404)
            logprob[:] = np.asarray(sampled.logprobs, np.float32)  # None becomes NaN
    return Reply(np.asarray(sampled.token_ids, np.int32), logprob, author, engine_columns(sampled))
