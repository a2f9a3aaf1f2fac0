"""Turns of a block found in its ids alone, and trained spans voting on where the mask lies. Knows no rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracemask.check.block import Block
from tracemask.check.grammar import Grammar
from tracemask.core.vocab import Author, Role

NOWHERE = np.iinfo(np.int8).min  # a vote that abstains


@dataclass(frozen=True, slots=True)
class Turns:
    """Every turn of a block in order, flat positions.

    at: its opener's first token. body: first token after the opener and its whitespace. end: the next opener, or the
    row's end. stop: its first stop, -1 where it has none. exact: the opener's whitespace tokens are the expected ones.
    """

    at: np.ndarray
    body: np.ndarray
    end: np.ndarray
    stop: np.ndarray
    role: np.ndarray
    row: np.ndarray
    exact: np.ndarray

    @property
    def replies(self) -> np.ndarray:
        """Indices of the assistant's turns."""
        return np.flatnonzero(self.role == Role.ASSISTANT)


def find_turns(block: Block, grammar: Grammar, *, edges: np.ndarray, hidden: np.ndarray | None) -> Turns:
    """The turns of `block` by the openers of `grammar`.

    edges: where rows and packed documents begin, and the block's end. hidden[N] bool: padding, whose ids end no turn.
    """
    at, width, role, exact, body = _openers(block, grammar)
    row = block.row_of[at] if len(at) else np.zeros(0, dtype=np.int32)
    row_end = _next(edges, at)
    following = np.concatenate([at[1:], [len(block)]]) if len(at) else at
    end = np.minimum(following, row_end)
    is_stop = np.isin(block.ids, list(grammar.stops))
    stops = np.flatnonzero(is_stop if hidden is None else is_stop & ~hidden)
    stop = np.full(len(at), -1, dtype=np.int64)
    if len(stops) and len(at):
        next_stop = np.searchsorted(stops, body)
        found = stops[np.minimum(next_stop, len(stops) - 1)]
        limit = end + 1 if grammar.opener_stops else end
        good = (next_stop < len(stops)) & (found < np.minimum(limit, row_end))
        stop[good] = found[good]
    return Turns(at, body, end, stop, role, row, exact)


def _next(edges: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The first edge behind each place."""
    return edges[np.searchsorted(edges, places, side="right")] if len(places) else places


def _openers(block: Block, grammar: Grammar) -> tuple[np.ndarray, ...]:
    ids, n = block.ids, len(block)
    row_end = block.offsets[1:]
    taken: dict[int, tuple[int, int, bool, int]] = {}
    for opener in grammar.openers:  # longest first
        places = np.flatnonzero(ids == opener.ids[0])
        places = places[places + len(opener.ids) <= n]
        for k, wanted in enumerate(opener.ids[1:], start=1):
            places = places[ids[places + k] == wanted]
        places = places[places + len(opener.ids) <= row_end[block.row_of[places]]]
        ends = places + len(opener.ids)
        whole = ends + len(opener.tail) <= row_end[block.row_of[places]]
        for k, wanted in enumerate(opener.tail):
            whole &= ids[np.minimum(ends + k, n - 1)] == wanted
        bodies = ends + np.where(whole, len(opener.tail), 0)
        for place, good, body in zip(places.tolist(), whole.tolist(), bodies.tolist(), strict=True):
            taken.setdefault(place, (len(opener.ids), int(opener.role), good, body))
    order = sorted(taken)
    facts = [taken[place] for place in order]
    columns = list(zip(*facts, strict=True)) if facts else [(), (), (), ()]
    return (
        np.array(order, dtype=np.int64),
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.uint8),
        np.array(columns[2], dtype=bool),
        np.array(columns[3], dtype=np.int64),
    )


def matches(block: Block, places: np.ndarray, wanted: tuple[int, ...]) -> np.ndarray:
    """bool per place: the ids `wanted` stand there, inside the row."""
    if not len(places):
        return np.zeros(0, dtype=bool)
    row_end = block.offsets[1:][block.row_of[np.minimum(places, len(block) - 1)]]
    good = places + len(wanted) <= row_end
    for k, token in enumerate(wanted):
        good &= block.ids[np.minimum(places + k, len(block) - 1)] == token
    return good


def infer_authors(block: Block, turns: Turns, grammar: Grammar) -> np.ndarray:
    """author[N] by turns: replies with their stop are policy, tool turns environment, openers renderer."""
    author = np.full(len(block), Author.RENDERER, dtype=np.uint8)
    by_role = {
        Role.ASSISTANT: Author.POLICY,
        Role.TOOL: Author.ENVIRONMENT,
        Role.USER: Author.TASKSET,
        Role.SYSTEM: Author.HARNESS,
        Role.DEVELOPER: Author.HARNESS,
    }
    table = np.full(len(Role), Author.RENDERER, dtype=np.uint8)
    for role, who in by_role.items():
        table[role] = who
    reply = turns.role == Role.ASSISTANT
    start = turns.body.copy()
    for extra in (grammar.leading, grammar.prefill):
        if extra:
            start = np.where(
                reply & (start == turns.body) & matches(block, turns.body, extra), start + len(extra), start
            )
    end = np.where(turns.stop >= 0, turns.stop + reply, turns.end)
    lengths = np.maximum(end - start, 0)
    flat = np.repeat(start - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) + np.arange(int(lengths.sum()))
    author[flat] = np.repeat(table[turns.role], lengths)
    return author


@dataclass(frozen=True, slots=True)
class Votes:
    """Each trained span's vote: how far the mask lies right of where the ids say (−2…2; NOWHERE abstains).

    start, end: the span, flat. head: by the turn's opener. tail: by its stop. touches: it ends where its row ends.
    """

    start: np.ndarray
    end: np.ndarray
    row: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    touches: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Spans whose both votes count."""
        return (self.head != NOWHERE) & (self.tail != NOWHERE) & ~self.touches


def vote(block: Block, mask: np.ndarray, turns: Turns, grammar: Grammar, *, edges: np.ndarray) -> Votes:
    """Votes of the trained spans of `mask`[N], cut where a document begins (see find_turns)."""
    start, end = block.spans(mask, edges)
    row = block.row_of[start] if len(start) else np.zeros(0, dtype=np.int32)
    replies = turns.replies
    begins = np.zeros(len(block) + 1, dtype=bool)
    body = turns.body[replies[turns.exact[replies]]]
    begins[body] = True
    for extra in (grammar.leading, grammar.prefill):
        if extra:
            begins[(body + len(extra))[matches(block, body, extra)]] = True
    stops = np.zeros(len(block) + 1, dtype=bool)
    stop = turns.stop[replies]
    stops[stop[stop >= 0]] = True
    row_start, row_end = edges[np.searchsorted(edges, start, side="right") - 1], _next(edges, start)
    head = np.full(len(start), NOWHERE, dtype=np.int8)
    tail = np.full(len(start), NOWHERE, dtype=np.int8)

    def says(place: np.ndarray, there: np.ndarray) -> np.ndarray:
        return (place >= row_start) & (place < row_end) & there[np.clip(place, 0, len(block))]

    agreed = np.zeros(len(start), dtype=bool)
    for d in (0, -1, 1, -2, 2):  # the nearest wins, and where both edges agree that wins over either
        at_head, at_tail = says(start - d, begins), says(end - 1 - d, stops)
        both = at_head & at_tail & ~agreed
        head[(at_head & (head == NOWHERE)) | both] = d
        tail[(at_tail & (tail == NOWHERE)) | both] = d
        agreed |= both
    return Votes(start, end, row, head, tail, end == row_end)
