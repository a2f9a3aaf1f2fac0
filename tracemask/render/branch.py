"""One branch planned: which render each reply is read from, and what must be encoded for it. Knows no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from tracemask.core.errors import RenderError
from tracemask.core.finding import Finding
from tracemask.core.vocab import Author, Origin
from tracemask.render.conversation import Conversation
from tracemask.render.encode import Encoder, Mode, Run
from tracemask.render.labels import Speaker, label
from tracemask.render.layout import Layout, missing_fields
from tracemask.render.stability import Stability
from tracemask.render.stream import Base, Piece, Reply, add_runs, build_base, pieces_of
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.turns import Region, Turns, finding
from tracemask.trace.model import Message, Sampled


class History(str, Enum):
    """What becomes of a text-only reply whose characters a later render drops."""

    AUTO = "auto"
    AS_RENDERED = "as_rendered"
    PER_TURN = "per_turn"


@dataclass(slots=True)
class Turn:
    """One reply of the policy: the base it is read from, its region there, and its ids where the engine gave them.

    shown: the engine's own context is what the base renders before the region.
    """

    k: int
    end: int
    region: Region
    reply: Reply | None
    prompt_ids: np.ndarray | None


@dataclass
class BasePlan:
    """A render that rows will be cut from: regions of all its replies, and which replies stand in it as sampled."""

    layout: Layout
    regions: list[Region]
    verbatim: frozenset[int]
    pieces: list[Piece] = field(default_factory=list)
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
    modes: Mapping[int, Mode]
    context_mode: Mode

    def want(self, encoder: Encoder) -> None:
        """Asks for every run that building the bases and judging drift will need."""
        wanted: list[Piece] = []
        for plan in self.bases.values():
            plan.pieces = pieces_of(plan.layout, plan.regions, self.modes, self.context_mode, encoder, plan.verbatim)
            wanted += plan.pieces
        for turn in self.turns:
            if turn.reply is not None:
                wanted += self.spoken(turn, encoder)
        for _, _, item in wanted:
            if isinstance(item, Run):
                encoder.want(item)

    def spoken(self, turn: Turn, encoder: Encoder) -> list[Piece]:
        """The rendered text of a reply in pieces, as if nobody had given its ids."""
        out: list[Piece] = []
        region = turn.region
        add_runs(out, turn.k, self.bases[turn.end].layout, region.start, region.end, Mode.POLICY, encoder)
        return out

    def base(self, end: int, encoder: Encoder) -> Base:
        """The built base of the render of messages [0, end)."""
        plan = self.bases[end]
        if plan.built is None:
            replies = {turn.k: turn.reply for turn in self.turns if turn.reply is not None}
            labels = label(plan.layout, self.speakers, plan.regions)
            plan.built = build_base(plan.layout, labels, plan.regions, plan.pieces, encoder, replies, plan.verbatim)
        return plan.built


@dataclass
class Planner:
    """Plans branches for one tokenizer and template."""

    tokenizer: Tokenizer
    turns: Turns
    stability: Stability
    history: History
    control_text: str
    _dead_fields: set[tuple[str, Origin]] = field(default_factory=set)

    def plan(self, conversation: Conversation, messages: Sequence[Message], speakers: list[Speaker]) -> BranchPlan:
        """Chooses the render of each reply. Raises RenderError where the template refuses the branch."""
        work = _Work(self, conversation, messages, speakers)
        work.choose()
        return work.result()


@dataclass
class _Work:
    planner: Planner
    conversation: Conversation
    messages: Sequence[Message]
    speakers: list[Speaker]
    findings: list[Finding] = field(default_factory=list)
    chosen: dict[int, int] = field(default_factory=dict)
    regions: dict[tuple[int, int], Region | None] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)  # render → messages before it stand as the policy read them

    def choose(self) -> None:
        """Fills `chosen`: reply → end of the render that it is read from."""
        for k, message in enumerate(self.messages):
            if not message.from_policy:
                continue
            if message.sampled is not None:
                self.chosen[k] = self._context_end(k)
            else:
                self.chosen[k] = self._survivor(k)

    # -------------------------------------------------------------- text-only replies

    def _survivor(self, k: int) -> int:
        full, own = len(self.messages), k + 1
        if self.planner.history is History.PER_TURN:
            self._report_lost(k, self._lost(own, k))
            return own
        lost = self._lost(full, k)
        if not lost and not self._stop_rewritten(full, k):
            return full
        if self.planner.history is History.AS_RENDERED:
            self._report_lost(k, lost)
            return full
        remaining = lost
        for end in dict.fromkeys((self._segment_end(k), own)):
            remaining = self._lost(end, k)
            if not remaining and not self._stop_rewritten(end, k):
                return end
        if not remaining:
            return own
        self._report_lost(k, remaining)
        better = self._shown(own, k) > self._shown(full, k)
        return own if better else full

    def _lost(self, end: int, k: int) -> list[Origin]:
        layout = self.conversation.layout(end)
        return missing_fields(layout, k, self.conversation.chat[k])

    def _stop_rewritten(self, end: int, k: int) -> bool:
        """The reply ended with a stop while it was the last message and has none here (gpt-oss: <|return|>)."""
        if k + 1 == end or not self.planner.turns.prompt(self.conversation, k).ends:
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

    def _report_lost(self, k: int, lost: Sequence[Origin]) -> None:
        for origin in lost:
            what = f"the template drops {origin.label.replace('_', ' ')} of message {k}"
            self.findings.append(finding("TM103", what, self.speakers[k].index, field=origin.label))

    # -------------------------------------------------------------- sampled replies

    def _context_end(self, k: int) -> int:
        """The render that begins as the template wrote when reply k was sampled, and still says what it said."""
        full, own = len(self.messages), k + 1
        if not self._shows_context(full, k):
            segment = self._segment_end(k)
            return segment if segment < full and self._shows_context(segment, k) and self._whole(segment, k) else own
        if self._whole(full, k):
            return full
        segment = self._segment_end(k)
        return segment if segment < full and self._shows_context(segment, k) and self._whole(segment, k) else own

    def _whole(self, end: int, k: int) -> bool:
        return not self._lost(end, k)

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
        self.settled[end] = k
        return True

    def _trusted(self, end: int, k: int) -> bool:
        """The template only appends, and nothing that stands before reply k in this render was dropped since."""
        within = end < len(self.messages) or end == self._segment_end(k)
        if not self.planner.stability.stable(self.conversation, within=within):
            return False
        at = max(self.settled.get(end, 0), self._segment_start(k) if within else 0)
        while at < k and not self._lost(end, at):
            at += 1
        self.settled[end] = max(at, self.settled.get(end, 0))
        return at >= k

    def _segment_start(self, k: int) -> int:
        return next((before for before in range(k - 1, -1, -1) if self.messages[before].role == "user"), 0)

    # -------------------------------------------------------------- result

    def region(self, end: int, k: int) -> Region | None:
        """The region of reply k in the render of [0, end)."""
        key = (end, k)
        if key not in self.regions:
            layout = self.conversation.layout(end)
            self.regions[key] = self.planner.turns.region(
                self.conversation, layout, k, cut_short=self.messages[k].cut_short and self.messages[k].sampled is None
            )
        return self.regions[key]

    def result(self) -> BranchPlan:
        """The plan of the branch."""
        ends = sorted(set(self.chosen.values())) or [len(self.messages)]
        if len(self.messages) not in ends and self._tail_matters():
            ends.append(len(self.messages))
        replies = {k: _reply(self.messages[k].sampled, self.speakers[k]) for k in self.chosen}
        bases = {end: self._base(end, replies) for end in ends}
        turns: list[Turn] = []
        for k, end in self.chosen.items():
            region = next((region for region in bases[end].regions if region.message == k), None)
            if region is None:
                self._report_lost(k, [Origin.CONTENT])
                continue
            turns.append(Turn(k, end, region, replies[k], _prompt_ids(self.messages[k].sampled)))
        ids = self.planner.control_text == "ids"
        modes = {
            k: Mode.IDS if ids else Mode.POLICY if speaker.author is Author.POLICY else Mode.CONTENT
            for k, speaker in enumerate(self.speakers)
        }
        context = Mode.IDS if ids else Mode.CONTENT
        return BranchPlan(self.conversation, self.messages, self.speakers, turns, bases, self.findings, modes, context)

    def _tail_matters(self) -> bool:
        last = max(self.chosen) if self.chosen else -1
        return last + 1 < len(self.messages)

    def _base(self, end: int, replies: Mapping[int, Reply | None]) -> BasePlan:
        layout = self.conversation.layout(end)
        regions: list[Region] = []
        verbatim: set[int] = set()
        at = 0
        for k in range(end):
            if self.messages[k].role != "assistant":
                continue
            region = self.region(end, k)
            reply = replies.get(k)
            if region is None and reply is not None and end == k + 1:
                region = _nowhere(k, len(layout.text))
            if region is None or region.start < at:
                continue
            if reply is not None:
                region, said = self._matched(layout, region, reply)
                if said:
                    verbatim.add(k)
            regions.append(region)
            at = region.end
        return BasePlan(layout, regions, frozenset(verbatim))

    def _matched(self, layout: Layout, region: Region, reply: Reply) -> tuple[Region, bool]:
        """The region in which the render says what the engine sampled, with or without an empty reasoning block that
        the template adds, with or without a stop; (the region from the prompt on, False) where it does not."""
        spoken = self._spoken(reply)
        for start in dict.fromkeys((region.prompt_end, region.start)):
            if spoken == layout.text[start : region.end]:
                return replace(region, start=start), True
            if spoken == layout.text[start : region.stop]:
                return replace(region, start=start, end=region.stop, stop_id=None), True
        return replace(region, start=region.prompt_end), False

    def _spoken(self, reply: Reply) -> str | None:
        table = self.planner.tokenizer.id_table
        if len(reply.ids) and int(reply.ids.max()) >= len(table):
            return None
        try:
            return b"".join([table[token] for token in reply.ids.tolist()]).decode()
        except UnicodeDecodeError:
            return None


def _nowhere(k: int, end: int) -> Region:
    """The region of a sampled reply that the template does not print at all: its ids are kept behind the text."""
    return Region(k, end, end, end, end, approximate=True, opened=None, stopped_early=False, stop_id=None)


def _prompt_ids(sampled: Sampled | None) -> np.ndarray | None:
    return None if sampled is None or sampled.prompt_ids is None else np.asarray(sampled.prompt_ids, np.int32)


def _reply(sampled: Sampled | None, speaker: Speaker) -> Reply | None:
    if sampled is None:
        return None
    count = len(sampled.token_ids)
    author = np.full(count, speaker.author, np.uint8)
    for span in sampled.spans:
        author[span.start : span.end] = Author.of(span.author)
    logprob = np.full(count, np.nan, np.float32)
    if sampled.logprobs is not None:
        logprob[:] = [np.nan if value is None else value for value in sampled.logprobs]
    columns = {name: np.asarray(values, np.float32) for name, values in sorted(sampled.columns.items())}
    if sampled.temperature is not None:
        columns["temperature"] = np.full(count, sampled.temperature, np.float32)
    return Reply(np.asarray(sampled.token_ids, np.int32), logprob, author, columns)
