"""A labelled token stream and how a render becomes one. Knows turns and runs; knows no row and no ownership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.columns import blank
from tracemask.render.encode import Encoded, Encoder, Mode, Run, byte_to_character, concatenated
from tracemask.render.ground import Labelled
from tracemask.render.labels import Labels, label
from tracemask.render.layout import Layout
from tracemask.render.reply import Reply
from tracemask.render.turns import Region


@dataclass(slots=True)
class Stream:
    """Token columns of one length T. turn int32: branch index of the reply a token belongs to, -1 for context."""

    ids: np.ndarray
    author: np.ndarray
    role: np.ndarray
    part: np.ndarray
    origin: np.ndarray
    message: np.ndarray
    turn: np.ndarray
    logprob: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    straddles: np.ndarray | None = None  # bool[T]: the token holds characters of two authors

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, end: int) -> Stream:
        """Tokens [start, end) as views."""
        return Stream(
            self.ids[start:end],
            self.author[start:end],
            self.role[start:end],
            self.part[start:end],
            self.origin[start:end],
            self.message[start:end],
            self.turn[start:end],
            self.logprob[start:end],
            {name: values[start:end] for name, values in self.columns.items()},
            None if self.straddles is None else self.straddles[start:end],
        )


def joined(streams: Sequence[Stream]) -> Stream:
    """One stream of several, never a view; a column that some lack says nothing there."""
    if len(streams) == 1:
        only = streams[0]
        return replace(only, part=only.part.copy(), columns=dict(only.columns))
    known = {name: values for stream in streams for name, values in stream.columns.items()}
    columns = {
        name: np.concatenate([s.columns[name] if name in s.columns else blank(like, len(s)) for s in streams])
        for name, like in known.items()
    }
    parts = [
        np.concatenate([getattr(stream, name) for stream in streams])
        for name in ("ids", "author", "role", "part", "origin", "message", "turn", "logprob")
    ]
    straddles = [s.straddles if s.straddles is not None else np.zeros(len(s), bool) for s in streams]
    ids, author, role, part, origin, message, turn, logprob = parts
    return Stream(ids, author, role, part, origin, message, turn, logprob, columns, np.concatenate(straddles))


@dataclass(slots=True)
class Base:
    """A render as a stream. bounds[k]: tokens [start, end) of reply k. verbatim: replies that stand as sampled.

    suspicious: runs (with their positions) that hold the text of control tokens.
    """

    layout: Layout
    labels: Labels
    regions: dict[int, Region]
    stream: Stream
    bounds: dict[int, tuple[int, int]]
    suspicious: list[tuple[int, Run]]
    verbatim: frozenset[int]


@dataclass(slots=True)
class Pieces:
    """A text piece by piece: the reply it belongs to (-1: none), the character where it begins, its encoding."""

    turns: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    items: list[Encoded] = field(default_factory=list)

    def add(self, turn: int, place: int, item: Encoded) -> None:
        """One piece more."""
        self.turns.append(turn)
        self.places.append(place)
        self.items.append(item)

    def add_text(self, turn: int, layout: Layout, start: int, end: int, mode: Mode, encoder: Encoder) -> None:
        """Characters [start, end) as runs between the template's control tokens, and those tokens."""
        at = start
        marks, text, want, controls = layout.marks_within(start, end), layout.text, encoder.want, encoder.controls
        turns, places, items = self.turns, self.places, self.items
        before = len(items)
        for first, last, token in marks:
            if first > at:
                places.append(at)
                items.append(want(new_run(Run, (text[at:first], mode, at > 0))))
            places.append(first)
            items.append(controls[token])
            at = last if last > at else at
        if at < end:
            places.append(at)
            items.append(want(new_run(Run, (text[at:end], mode, at > 0))))
        turns += [turn] * (len(items) - before)

    def ids(self) -> np.ndarray:
        """int32 ids of all pieces."""
        return concatenated([item.ids for item in self.items], np.int32)


new_run = tuple.__new__


def pieces_of(layout: Layout, regions: Iterable[Region], modes: Sequence[Mode], context: Mode, encoder: Encoder,
              verbatim: Mapping[int, Reply] = MappingProxyType({})) -> Pieces:  # fmt: skip
    """A render in pieces, cut at the edges of its regions; `verbatim` replies stand with the engine's ids."""
    out = Pieces()
    at = 0
    for region in regions:
        # A block that the template puts between prompt and reply was never before the eyes of an engine that sampled.
        reply = verbatim.get(region.message)
        out.add_text(-1, layout, at, region.start if reply is None else region.prompt_end, context, encoder)
        if reply is None:
            out.add_text(region.message, layout, region.start, region.end, modes[region.message], encoder)
        else:
            count = len(reply.ids)
            starts = np.zeros(count, np.int32) if reply.unprinted else _positions(layout, region, reply.ids, encoder)
            out.add(region.message, region.start, Encoded(None, reply.ids, starts))
        at = region.end
    out.add_text(-1, layout, at, len(layout.text), context, encoder)
    return out


class Planned(NamedTuple):
    """A render that becomes a stream: its characters' labels to be, its pieces, replies that stand as sampled."""

    render: Labelled
    pieces: Pieces
    verbatim: Mapping[int, Reply]


def build_bases(planned: Sequence[Planned]) -> list[Base]:
    """The streams of renders, which share arrays; `verbatim` replies stand with the ids that the engine returned."""
    sheet = label([plan.render for plan in planned])
    counts_of = [len(plan.pieces.items) for plan in planned]
    items = list(chain.from_iterable([plan.pieces.items for plan in planned]))
    ids = [item.ids for item in items]
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    places = np.fromiter(chain.from_iterable([plan.pieces.places for plan in planned]), np.int64, len(items))
    places += np.repeat(sheet.offsets, counts_of)
    characters = concatenated([item.starts for item in items], np.int64) + np.repeat(places, counts)
    at = sheet.labels.rows_of(characters)
    turns = np.fromiter(chain.from_iterable([plan.pieces.turns for plan in planned]), np.int32, len(items))
    stream = _laid(concatenated(ids, np.int32), at, sheet.labels, np.repeat(turns, counts))
    end = int(sheet.offsets[-1]) + len(planned[-1].render.layout.text)
    stream.straddles = _straddling(characters, at, sheet.labels, end)
    token_ends = np.append(0, np.cumsum(counts))[np.append(0, np.cumsum(counts_of))].tolist()
    suspicious = any(item.found for item in items)
    bases: list[Base] = []
    for index, (plan, start, stop) in enumerate(zip(planned, token_ends, token_ends[1:])):
        own = stream.cut(start, stop)
        bounds = _bounds(own.turn, plan.render.regions, characters[start:stop], int(sheet.offsets[index]))
        for turn, reply in plan.verbatim.items():
            if turn in bounds:
                put_reply(own, bounds[turn][0], reply)
        found = _suspicious(plan.pieces) if suspicious else []
        regions = {region.message: region for region in plan.render.regions}
        labels, layout = sheet.cut(index), plan.render.layout
        bases.append(Base(layout, labels, regions, own, bounds, found, frozenset(plan.verbatim)))
    return bases


def _suspicious(pieces: Pieces) -> list[tuple[int, Run]]:
    """The runs that hold the text of control tokens, and where they begin."""
    return [(at, item.run) for at, item in zip(pieces.places, pieces.items) if item.found and item.run is not None]


def _straddling(characters: np.ndarray, at: np.ndarray, labels: Labels, size: int) -> np.ndarray:
    """Which tokens hold characters of more than one author: the last of a stretch of labels may."""
    straddles = np.zeros(len(at), bool)
    ends = np.flatnonzero(np.append(at[1:] != at[:-1], True)) if len(at) else at
    last = np.maximum(np.append(characters[1:], size)[ends] - 1, characters[ends])
    straddles[ends] = labels.author[labels.rows_at(last)] != labels.author[at[ends]]
    return straddles


def _bounds(turns: np.ndarray, regions: Sequence[Region], characters: np.ndarray,
            offset: int) -> dict[int, tuple[int, int]]:  # fmt: skip
    """Tokens [start, end) of each reply, whose tokens stand side by side."""
    ends = np.append(np.flatnonzero(turns[1:] != turns[:-1]) + 1, len(turns)) if len(turns) else np.zeros(0, np.int64)
    closes = ends.tolist()
    bounds = {
        turn: (start, end) for turn, start, end in zip(turns[ends - 1].tolist(), [0, *closes], closes) if turn >= 0
    }
    for region in regions:
        if region.message not in bounds:
            at = int(np.searchsorted(characters, region.start + offset))
            bounds[region.message] = (at, at)
    return bounds


def lay(ids: np.ndarray, characters: np.ndarray, labels: Labels) -> Stream:
    """Labels of each token by the character in which it starts."""
    return _laid(ids, labels.rows_of(characters), labels, np.full(len(ids), -1, np.int32))


def _laid(ids: np.ndarray, at: np.ndarray, labels: Labels, turn: np.ndarray) -> Stream:
    return Stream(
        ids,
        labels.author[at],
        labels.role[at],
        labels.part[at],
        labels.origin[at],
        labels.message[at],
        turn,
        np.full(len(ids), np.nan, np.float32),
    )


def put_reply(stream: Stream, start: int, reply: Reply) -> None:
    """Writes log-probs, authors and columns of a verbatim reply; of one that no render says, all labels."""
    end = start + len(reply.ids)
    stream.logprob[start:end] = reply.logprob
    stream.author[start:end] = reply.author
    if reply.part is not None and reply.role is not None:
        stream.part[start:end], stream.role[start:end] = reply.part, reply.role
        stream.origin[start:end], stream.message[start:end] = Origin.ENGINE, reply.message
        if stream.straddles is not None:
            stream.straddles[start:end] = False
    for name, values in reply.columns.items():
        if name not in stream.columns:
            stream.columns[name] = blank(values, len(stream))
        stream.columns[name][start:end] = values


def _positions(layout: Layout, region: Region, ids: np.ndarray, encoder: Encoder) -> np.ndarray:
    """Characters, within the region, of a verbatim reply whose bytes are the region's text."""
    lengths = encoder.tokenizer.byte_lengths[ids].astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    text = layout.text[region.start : region.end]
    table = byte_to_character(text)
    return table[np.minimum(starts, len(table) - 1)].astype(np.int32)


def unexplained(reply: Reply, turn: int, message: int, parts: np.ndarray) -> Stream:
    """A stream of sampled ids that no render explains: origin engine, parts read from their own text."""
    count = len(reply.ids)
    return Stream(
        reply.ids,
        reply.author.astype(np.uint8),
        np.full(count, Role.ASSISTANT, np.uint8),
        parts,
        np.full(count, Origin.ENGINE, np.uint8),
        np.full(count, message, np.int32),
        np.full(count, turn, np.int32),
        reply.logprob,
        dict(reply.columns),
    )


def mark_ends(stream: Stream, stops: np.ndarray, spaces: np.ndarray, bos_id: int | None) -> None:
    """Parts that ids decide: bos, the stop after a message of anyone, the white space that separates messages."""
    part = stream.part
    written = np.flatnonzero(stream.author == int(Author.RENDERER))
    ids = np.minimum(stream.ids[written], len(stops) - 1)
    part[written[stops[ids]]] = int(Part.STOP)
    if bos_id is not None and len(stream) and stream.ids[0] == bos_id:
        part[0] = int(Part.BOS)
    space = written[spaces[ids] & (stream.origin[written] == int(Origin.RENDERER))]
    space = space[space > 0]
    for _ in range(2):
        before = part[space - 1]
        part[space[(before == int(Part.STOP)) | (before == int(Part.SEPARATOR))]] = int(Part.SEPARATOR)
