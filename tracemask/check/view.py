"""One block as rules see it: masks, authors, turns, votes and re-encoding, each computed once. Knows no rule."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from tracemask.check.block import Block
from tracemask.check.context import Run
from tracemask.check.convention import Convention, convention_of, mask_of
from tracemask.check.documents import Boundaries, boundaries, states_documents
from tracemask.check.grammar import Grammar
from tracemask.check.lens import Lens, Runs
from tracemask.check.padding import hidden_by_attention, padding_of
from tracemask.check.rule import Need
from tracemask.check.turns import Turns, Votes, find_turns, infer_authors, matches, vote
from tracemask.check.whole_mask import inverted, runs_on, shift_of
from tracemask.core.vocab import Author, Role


class View:
    """Analyses of `block` in `run`."""

    def __init__(self, block: Block, run: Run) -> None:
        self.block = block
        self.run = run

    @cached_property
    def have(self) -> frozenset[Need]:
        """The inputs that this block has."""
        block, have = self.block, {Need.IDS}
        names = set(block.names)
        if self.mask is not None:
            have.add(Need.MASK)
        if block.labels is not None:
            have.add(Need.LABELS)
        if self.run.lens is not None:
            have.add(Need.TOKENIZER)
        if self.run.grammar is not None:
            have.add(Need.TEMPLATE)
        if self.author is not None:
            have.add(Need.SPANS)
        if self.run.ours and any(value is not None for value in block.scalar("findings")):
            have.add(Need.RENDERED)
        if block.logprob is not None:
            have.add(Need.LOGPROBS)
        if "score_logprob" in names:
            have.add(Need.SCORES)
        for name, need in (("reward", Need.REWARDS), ("group_id", Need.GROUPS), ("advantage", Need.ADVANTAGES)):
            if any(value is not None for value in block.scalar(name)):
                have.add(need)
        if "advantage" in names:
            have.add(Need.ADVANTAGES)
        if block.weights:
            have.add(Need.WEIGHTS)
        if any(name.startswith("denominator.") for name in names):
            have.add(Need.DENOMINATORS)
        if states_documents(block):
            have.add(Need.DOCUMENTS)
        if "entropy" in names:
            have.add(Need.ENTROPY)
        if "attention_mask" in names:
            have.add(Need.ATTENTION)
        return frozenset(have)

    @property
    def lens(self) -> Lens:
        """The tokenizer's tables; only for rules that need K."""
        assert self.run.lens is not None
        return self.run.lens

    @property
    def grammar(self) -> Grammar:
        """The shape of turns; only for rules that need T."""
        assert self.run.grammar is not None
        return self.run.grammar

    @cached_property
    def safe(self) -> np.ndarray:
        """ids[N] with ids outside the vocabulary replaced by 0."""
        return self.lens.clean(self.block.ids)

    @cached_property
    def convention(self) -> Convention | None:
        """How each row's labels stand to its ids; None without labels."""
        return convention_of(self.block)

    @cached_property
    def mask(self) -> np.ndarray | None:
        """mask[N] bool: token t is a target. From `sampled`, a mask column, labels (shifted back), or weights."""
        block = self.block
        for name in ("sampled", "mask"):
            values = block.column(name)
            if values is not None:
                return values.astype(bool) if values.dtype != bool else values
        if self.convention is not None:
            return mask_of(block, self.convention)
        if block.weights:
            return np.logical_or.reduce([np.nan_to_num(stream) != 0 for stream in block.weights.values()])
        return None

    @cached_property
    def trained(self) -> np.ndarray:
        """The mask without padding; only for rules that need M."""
        assert self.mask is not None
        return self.mask & ~self.padding

    @cached_property
    def padding(self) -> np.ndarray:
        """padding[N] bool: the runs of one pad id at the edges of rows; nothing without a tokenizer."""
        return padding_of(self)

    def ends_turns(self, token: int) -> bool:
        """The id is what ends a reply: the template's stop, else one of the tokenizer's."""
        grammar = self.run.grammar
        stops = grammar.stops if grammar is not None else self.lens.stops
        reply = grammar.reply_stop if grammar is not None else None
        return token == reply if reply is not None else token in stops

    @cached_property
    def turns(self) -> Turns:
        """Turns by the ids alone; only where there is a grammar."""
        hidden = hidden_by_attention(self.block)
        hidden = None if hidden is None else hidden & self.padding
        return find_turns(self.block, self.grammar, edges=self.edges, hidden=hidden)

    @cached_property
    def documents(self) -> Boundaries:
        """Where packed documents begin, by the columns that say so; padding is no document."""
        return boundaries(self.block, ~self.padding)

    @cached_property
    def edges(self) -> np.ndarray:
        """Flat positions at which a row or a packed document begins, and the block's end."""
        block = self.block
        fresh = self.documents.fresh if states_documents(block) else np.zeros(len(block), dtype=bool)
        if self.run.lens is not None and self.lens.bos is not None:
            begins = block.ids == self.lens.bos
            fresh[1:] |= begins[1:] & ~begins[:-1] & ~self.padding[:-1] & ~self.padding[1:]
        return np.unique(np.concatenate([block.offsets, np.flatnonzero(fresh)]))

    @cached_property
    def author(self) -> np.ndarray | None:
        """author[N]: stored, else inferred from turns, else None."""
        stored = self.block.column("author")
        if stored is not None:
            return stored
        if self.run.grammar is None:
            return None
        return infer_authors(self.block, self.turns, self.grammar)

    @cached_property
    def known(self) -> np.ndarray:
        """known[N] bool: the author is stored, or the token lies in a turn: not before its row's first opener."""
        if self.stored_authors:
            return np.ones(len(self.block), dtype=bool)
        first = self.block.offsets[1:].copy()
        if self.run.grammar is None:
            return np.zeros(len(self.block), dtype=bool)
        turns = self.turns
        np.minimum.at(first, turns.row, turns.at)
        known = np.arange(len(self.block)) >= first[self.block.row_of]
        reply = turns.role == Role.ASSISTANT
        inner = np.flatnonzero(reply[1:] & reply[:-1] & (turns.row[1:] == turns.row[:-1])) + 1
        for start, end in zip(turns.at[inner].tolist(), turns.body[inner].tolist(), strict=True):
            known[start:end] = False  # an opener inside a reply may be sampled (the channels of gpt-oss)
        known[self.leading] = False  # an empty think block may be sampled, too
        return known

    @cached_property
    def leading(self) -> np.ndarray:
        """leading[N] bool: the empty think block that the template writes before a reply without reasoning."""
        flags = np.zeros(len(self.block), dtype=bool)
        leading = self.grammar.leading if self.run.grammar is not None else ()
        if leading:
            body = self.turns.body[self.turns.replies]
            for start in body[matches(self.block, body, leading)].tolist():
                flags[start : start + len(leading)] = True
        return flags

    @property
    def stored_authors(self) -> bool:
        """Authors come from the dataset."""
        return "author" in self.block.names

    @cached_property
    def policy(self) -> np.ndarray:
        """policy[N] bool; only for rules that need S."""
        assert self.author is not None
        return self.author == Author.POLICY

    @cached_property
    def votes(self) -> Votes:
        """Votes of the trained spans; only where there are a mask and a grammar."""
        votes = vote(self.block, self.trained, self.turns, self.grammar, edges=self.edges)
        return replace(votes, touches=self.ends_text(votes.end)) if len(votes.end) else votes

    @cached_property
    def shift(self) -> np.ndarray:
        """shift[R] int8: how far a row's whole mask lies to the right of its turns; 0 where right or undecided."""
        return shift_of(self)

    @cached_property
    def upset(self) -> np.ndarray:
        """upset[R] bool: rows whose mask is wrong as a whole (shifted, inverted, running on): only that is reported."""
        return (self.shift != 0) | self.inverted | self.runs_on | self.wrong_vocabulary

    @cached_property
    def inverted(self) -> np.ndarray:
        """inverted[R] bool: of the row or of one of its documents, the others' tokens are trained, the policy's not."""
        return inverted(self)

    @cached_property
    def runs_on(self) -> np.ndarray:
        """runs_on[R] bool: the last trained span reaches the end of its text across another speaker's turn."""
        return runs_on(self) & ~self.inverted

    def ends_text(self, places: np.ndarray) -> np.ndarray:
        """bool per place: a row or a document ends there, or its padding begins."""
        inside = np.minimum(places, len(self.block) - 1)
        return np.isin(places, self.edges) | self.padding[inside]

    @cached_property
    def ordinary(self) -> np.ndarray:
        """ordinary[N] bool: tokens of text, neither added nor outside the vocabulary."""
        ids = self.block.ids
        inside = (ids >= 0) & (ids < self.lens.size)
        return inside & ~self.lens.added[self.safe] & (self.lens.byte_length[self.safe] > 0)

    @cached_property
    def raw(self) -> tuple[bytes, np.ndarray]:
        """Bytes of the block (added tokens as their text) and offsets[N + 1]."""
        return self.lens.bytes_of(self.safe)

    @cached_property
    def text_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Runs of ordinary tokens that were encoded in one go: cut at added tokens, rows and edges of policy text."""
        return self._runs(self.policy if self.stored_authors else None)

    def _runs(self, cut: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        block, flags = self.block, self.ordinary
        edge = np.zeros(len(block) + 1, dtype=bool)
        edge[0] = edge[-1] = True
        edge[1:-1] = flags[1:] != flags[:-1]
        if cut is not None:
            edge[1:-1] |= cut[1:] != cut[:-1]
        edge[block.offsets] = True
        cuts = np.flatnonzero(edge)
        starts, ends = cuts[:-1], cuts[1:]
        on = flags[starts] if len(block) else np.zeros(0, dtype=bool)
        return starts[on], ends[on]

    @cached_property
    def drift(self) -> list[Runs]:
        """Runs whose ids are not what the tokenizer makes of their bytes."""
        raw, offsets = self.raw
        starts, ends = self.text_runs
        found = self.lens.noncanonical(self.safe, raw, offsets, starts, ends)
        if self.stored_authors or not found:
            return found
        return self._recut(found)

    def _recut(self, found: list[Runs]) -> list[Runs]:
        """Foreign rows may have been encoded turn by turn: a run that is canonical when cut there is no finding."""
        cut = np.zeros(len(self.block), dtype=bool)
        if self.mask is not None:
            cut |= self.mask
        kinds = cut.astype(np.uint8)
        if self.author is not None:
            kinds = kinds + 2 * self.policy.astype(np.uint8)
        inside = np.zeros(len(self.block), dtype=bool)
        for run in found:
            inside[run.start : run.end] = True
        starts, ends = self._runs(kinds)
        keep = inside[starts]
        raw, offsets = self.raw
        return self.lens.noncanonical(self.safe, raw, offsets, starts[keep], ends[keep])

    @cached_property
    def wrong_vocabulary(self) -> np.ndarray:
        """wrong_vocabulary[R] bool: rows whose text another tokenizer made (see TM205)."""
        from tracemask.check.windows import wrong_rows

        if self.run.lens is None:
            return np.zeros(len(self.block.rows), dtype=bool)
        return wrong_rows(self)
