"""Planned branches to finished samples: contexts, replies, drift, ownership. Composes streams; runs no template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Author, Fidelity, Origin
from tracemask.render.align import align_context
from tracemask.render.branch import BranchPlan, Turn
from tracemask.render.columns import finished
from tracemask.render.control import Control
from tracemask.render.control_text import control_findings
from tracemask.render.drift import cause_of_text, common_prefix, compare
from tracemask.render.encode import Encoder, byte_to_character
from tracemask.render.sample import Drift, Sample
from tracemask.render.spoken import goes_on_after_a_stop, opens_again, spoken
from tracemask.render.stitch import Row, Stitcher
from tracemask.render.stream import Base, Stream, joined, mark_ends, unexplained
from tracemask.render.tokenizer import Tokenizer
from tracemask.trace.model import Trace


@dataclass
class Assembler:
    """Turns the plans of one trace into its samples. stops, spaces: bool tables by id."""

    tokenizer: Tokenizer
    control: Control
    encoder: Encoder
    stop_ids: frozenset[int]
    stops: np.ndarray
    spaces: np.ndarray

    def samples(self, trace: Trace, plans: Sequence[BranchPlan]) -> list[Sample]:
        """The rows of a trace in creation order."""
        work = _Trace(self, trace, Stitcher(), {})
        for plan in plans:
            work.branch(plan)
        return [work.finish(row) for row in work.stitcher.rows]


@dataclass
class _Trace:
    tools: Assembler
    trace: Trace
    stitcher: Stitcher
    owners: dict[int, int]  # message index → row
    whole: bool = False  # the last reply is "cut short", and its ids end with a stop all the same

    def branch(self, plan: BranchPlan) -> None:
        """Adds one branch: its turns in order, then what follows the last of them."""
        row: Row | None = None
        last: Turn | None = None
        for turn in plan.turns:
            if plan.speakers[turn.k].index in self.owners:
                continue
            row, last = self._turn(plan, turn), turn
        if not plan.turns and not self.stitcher.rows:
            row, _ = self.stitcher.open(np.zeros(0, np.int32), None, 0)
            base = plan.base(len(plan.messages))
            row.append_from(base, 0, len(base.stream))
            row.tail = (base, len(base.stream))
        if row is not None and last is not None:
            self._rest(plan, row, last)
        if self.stitcher.rows:
            target = row or self.stitcher.rows[0]
            for found in plan.findings:
                owner = self.owners.get(found.place.turn if found.place.turn is not None else -1)
                (self.stitcher.rows[owner] if owner is not None else target).findings.append(found)
            bases = [base.built for base in plan.bases.values() if base.built]
            target.findings += control_findings(bases, self.tools.encoder, self.tools.tokenizer)

    # ------------------------------------------------------------------ one turn

    def _turn(self, plan: BranchPlan, turn: Turn) -> Row:
        base = plan.base(turn.end)
        start, end = base.bounds[turn.k]
        if turn.prompt_ids is not None:
            row, have = self.stitcher.open(turn.prompt_ids, None, 0)
            self._exact_context(plan, base, turn, row, have)
            tail = None
        else:
            row, have = self._behind_standing(plan, base, turn) or self.stitcher.open(
                base.stream.ids[:start], base, start
            )
            row.append_from(base, have, start)
            tail = (base, end)
        first = row.length
        as_sampled = turn.reply is None or turn.k in base.verbatim
        if as_sampled:
            row.append_from(base, start, end)
        else:
            row.append(self._own_words(plan, base, turn))
        row.tail = tail if as_sampled else None
        row.spoke = (plan.speakers[turn.k].index, row.length)
        self._account(plan, turn, row, first)
        self._drift(plan, base, turn, row, first)
        return row

    def _behind_standing(self, plan: BranchPlan, base: Base, turn: Turn) -> tuple[Row, int] | None:
        """(row, token of the base where its last reply ends) if that reply stands by its ids: no render holds it, so
        that the row itself is what came before, and the template writes on."""
        before = [k for k in base.bounds if k < turn.k]
        if not before or max(before) not in plan.conversation.standing:
            return None
        k = max(before)
        ends = (row for row in self.stitcher.rows if row.spoke == (plan.speakers[k].index, row.length))
        return next(((row, base.bounds[k][1]) for row in ends), None)

    def _account(self, plan: BranchPlan, turn: Turn, row: Row, first: int) -> None:
        """Ownership, fidelity, stops and findings of a turn that was just added as tokens [first, row.length)."""
        index = plan.speakers[turn.k].index
        message = plan.messages[turn.k]
        self.owners[index] = row.number
        row.fidelities.append(message.fidelity)
        region = turn.region
        early = region.stopped_early
        ended = region.stop_id is not None
        if turn.reply is not None:
            ids = turn.reply.ids
            early = goes_on_after_a_stop(turn.reply, self.tools.stop_ids)
            ended = bool(len(ids)) and int(ids[-1]) in self.tools.stop_ids

        def find(code: str, what: str) -> None:
            row.findings.append(Finding(code, what, Place(turn=index, token=first, end=row.length)))

        if turn.reply is not None:
            row.findings += self._foreign_ids(turn.reply.ids, index, first)
            if (turn.reply.author != turn.reply.author[:1]).any():
                row.mixed.append((first, spoken(self.tools.tokenizer, self.tools.stop_ids, turn.reply, region.opened)))
        if early:
            find("TM317", "tokens follow a stop inside the turn: it is not trained")
        else:
            row.own(first, row.length)
        if not ended and not message.cut_short and turn.reply is None:
            find("TM316", "the template writes no stop after this reply")
        if region.approximate:
            row.approximate = True
            find("TM111", "the generation prompt is not a prefix of the render: the sampled region is approximate")
        elif (
            turn.prompt_ids is None and turn.reply is not None and opens_again(self.tools.tokenizer, turn.reply, region)
        ):
            row.approximate = True
            what = "the reply opens the reasoning block that its prompt leaves open: the engine had another prompt"
            find("TM111", what)
        row.truncated = message.cut_short and not ended
        last = message.cut_short and all(each.role != "assistant" for each in self.trace.messages[index + 1 :])
        self.whole |= last and ended
        row.stop = message.sampled.finish_reason if message.sampled else message.finish_reason

    def _foreign_ids(self, ids: np.ndarray, index: int, first: int) -> list[Finding]:
        """TM201 for the first sampled id that the tokenizer does not have."""
        outside = np.flatnonzero(ids >= self.tools.tokenizer.size)
        if not len(outside):
            return []
        at = first + int(outside[0])
        what = f"id {int(ids[outside[0]])} is not in the vocabulary (largest id {self.tools.tokenizer.size - 1})"
        return [Finding("TM201", what, Place(turn=index, token=at), data={"count": len(outside)})]

    def _exact_context(self, plan: BranchPlan, base: Base, turn: Turn, row: Row, have: int) -> None:
        """Appends the engine's context beyond what the row has, labelled by the render."""
        assert turn.prompt_ids is not None
        at = self._heard(plan, base, turn, row, have)
        skip = have if at < 0 else 0  # where the row ends in the render is not known: the whole prompt is read
        ids, text = turn.prompt_ids[have - skip :], base.layout.text[max(at, 0) : turn.region.prompt_end]
        stream, differs = align_context(self.tools.tokenizer, self.tools.control, ids, text, max(at, 0), base.labels)
        if skip:
            stream = stream.cut(skip, len(stream))
            unknown = np.flatnonzero(stream.origin == Origin.ENGINE)
            differs = differs - skip if differs >= skip else int(unknown[0]) if len(unknown) else -1
        if differs >= 0 and any(message.blocks for message in plan.messages[: turn.k]):
            changed = max(int((stream.origin == Origin.ENGINE).sum()), 1)
            cause = self._cause(ids, text)
            row.drift.append(Drift(plan.speakers[turn.k].index, cause, row.length + differs, changed, "context"))
        row.append(stream)

    def _heard(self, plan: BranchPlan, base: Base, turn: Turn, row: Row, have: int) -> int:
        """The character of the base where the row's tokens end, 0 for an empty row; -1 where that is not known."""
        if have == 0:
            return 0
        if row.spoke is None or row.spoke[1] != have:
            return -1
        for region in base.regions.values():
            if region.message < turn.k and plan.speakers[region.message].index == row.spoke[0]:
                closed = int(row.ids[have - 1]) in self.tools.stop_ids
                return min(region.end if closed else region.stop, turn.region.prompt_end)
        return -1

    def _cause(self, ids: np.ndarray, text: str) -> str:
        """Why the engine's context is not what the template renders."""
        table = self.tools.tokenizer.id_table
        raw = b"".join([table[token] if token < len(table) else b"" for token in ids.tolist()])
        try:
            return cause_of_text(raw.decode(), text)
        except UnicodeDecodeError:
            return "invalid_utf8"

    def _own_words(self, plan: BranchPlan, base: Base, turn: Turn) -> Stream:
        """Sampled ids whose bytes differ from the render: labels where head or tail agree, else read from the ids."""
        reply, region = turn.reply, turn.region
        assert reply is not None
        said = spoken(self.tools.tokenizer, self.tools.stop_ids, reply, region.opened)
        stream = unexplained(reply, turn.k, plan.speakers[turn.k].index, said.part)
        self._agreeing(base, turn, stream, said.raw, said.starts)
        return stream

    def _agreeing(self, base: Base, turn: Turn, stream: Stream, raw: bytes, starts: np.ndarray) -> None:
        """Origins of the common head with the rendered reply."""
        want = base.layout.text[turn.region.start : turn.region.end].encode()
        size = min(len(raw), len(want))
        head = common_prefix(raw[:size], want[:size])
        inside = starts < head
        if inside.any():
            table = byte_to_character(base.layout.text[turn.region.start : turn.region.end])
            at = table[starts[inside]] + turn.region.start
            stream.origin[inside] = base.labels.origin[base.labels.rows_at(at)]

    def _drift(self, plan: BranchPlan, base: Base, turn: Turn, row: Row, first: int) -> None:
        """Compares sampled ids with the encoding of the rendered reply."""
        if turn.reply is None or turn.reply.unprinted or not plan.messages[turn.k].blocks:
            return  # there is no text to differ from
        rendered_reply = plan.spoken(turn, self.tools.encoder)
        self.tools.encoder.fill()
        rendered: list[int] = rendered_reply.ids().tolist()
        ids: list[int] = turn.reply.ids.tolist()
        if ids and turn.said[1].stop_id is None and ids[-1] in self.tools.stop_ids:
            ids.pop()  # the template writes no stop here: that the engine has one is no drift
        if any(token >= self.tools.tokenizer.size for token in ids):
            return
        found = compare(self.tools.tokenizer, ids, rendered)
        if found is not None:
            index = plan.speakers[turn.k].index
            row.drift.append(Drift(index, found.cause, first + found.first, found.changed))

    # ------------------------------------------------------------------ what follows

    def _rest(self, plan: BranchPlan, row: Row, last: Turn) -> None:
        """Context after the last reply: the template's closing and messages that nobody answered."""
        total = len(plan.messages)
        more = last.k + 1 < total
        if total not in plan.bases or not (more or last.reply is None):
            return
        base = plan.base(total)
        if row.tail is not None and row.tail[0] is base:
            row.append_from(base, row.tail[1], len(base.stream))
            row.tail = (base, len(base.stream))
        elif more and last.k in base.bounds and last.end in (total, ~last.k):
            row.append_from(base, base.bounds[last.k][1], len(base.stream))

    def finish(self, row: Row) -> Sample:
        """The row's arrays as a Sample."""
        stream = joined(row.streams())
        if row.mixed:
            stream = replace(stream, role=stream.role.copy())
        for start, said in row.mixed:
            end = start + len(said.part)
            stream.part[start:end] = said.part
            stream.role[start:end] = said.role
        mark_ends(stream, self.tools.stops, self.tools.spaces, self.tools.tokenizer.bos_id)
        sampled = np.zeros(len(stream), bool)
        for start, end in row.owned:
            sampled[start:end] = True
        sampled &= stream.author == Author.POLICY
        return Sample(
            trace_id=self.trace.id,
            branch=row.number,
            token_ids=stream.ids.astype(np.int32, copy=False),
            author=stream.author.astype(np.uint8, copy=False),
            role=stream.role.astype(np.uint8, copy=False),
            part=stream.part.astype(np.uint8, copy=False),
            origin=stream.origin.astype(np.uint8, copy=False),
            message=stream.message.astype(np.int32, copy=False),
            sampled=sampled,
            logprob=np.where(sampled, stream.logprob, np.float32(np.nan)),
            fidelity=min(row.fidelities, default=Fidelity.MESSAGES),
            approximate=row.approximate,
            truncated=row.truncated or bool(self.trace.truncated and not self.whole and row is self.stitcher.rows[-1]),
            complete=self.whole,
            stop=row.stop or self.trace.stop,
            fork=row.fork,
            drift=row.drift,
            findings=row.findings,
            columns=finished(stream.columns),
            straddling=0 if stream.straddles is None else int(stream.straddles.sum()),
        )
