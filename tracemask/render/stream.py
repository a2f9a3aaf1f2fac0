"""A labelled token stream and how a render becomes one. Knows turns and runs; knows no row and no ownership."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.encode import Encoder, Mode, Run, byte_to_character
from tracemask.render.labels import Labels
from tracemask.render.layout import Layout
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
        )


def joined(streams: Sequence[Stream]) -> Stream:
    """One stream of several; a column that some lack is NaN there."""
    names = dict.fromkeys(name for stream in streams for name in stream.columns)
    columns = {
        name: np.concatenate([s.columns.get(name, np.full(len(s), np.nan, np.float32)) for s in streams])
        for name in names
    }
    parts = [
        np.concatenate([getattr(stream, name) for stream in streams])
        for name in ("ids", "author", "role", "part", "origin", "message", "turn", "logprob")
    ]
    return Stream(*parts, columns)


@dataclass(slots=True)
class Reply:
    """What the engine returned for one reply: ids[n] int32, logprob[n] float32 (NaN: missing), author[n], columns."""

    ids: np.ndarray
    logprob: np.ndarray
    author: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(slots=True)
class Base:
    """A render as a stream. bounds[k]: tokens [start, end) of reply k. verbatim: replies that stand as sampled."""

    layout: Layout
    labels: Labels
    regions: dict[int, Region]
    stream: Stream
    bounds: dict[int, tuple[int, int]]
    character: np.ndarray
    verbatim: frozenset[int]


def runs_of(layout: Layout, start: int, end: int, mode: Mode) -> Iterator[tuple[int, Run | int]]:
    """Characters [start, end) as runs between the template's control tokens, and those tokens' ids, with positions."""
    at = start
    index = bisect_left(layout.mark_starts, start)
    while index < len(layout.marks) and layout.marks[index].start < end:
        mark = layout.marks[index]
        index += 1
        if mark.start > at:
            yield at, Run(layout.text[at : mark.start], mode, at > 0)
        yield mark.start, mark.id
        at = max(at, mark.end)
    if at < end:
        yield at, Run(layout.text[at:end], mode, at > 0)


def pieces_of(layout: Layout, regions: Sequence[Region], modes: Mapping[int, Mode], context: Mode,
              verbatim: frozenset[int] = frozenset()) -> Iterator[tuple[int, int, Run | int | Region]]:  # fmt: skip
    """(reply or -1, position, run | id | verbatim region) of a render, cut at the edges of regions."""
    at = 0
    for region in regions:
        # A block that the template puts between prompt and reply was never before the eyes of an engine that sampled.
        context_end = region.prompt_end if region.message in verbatim else region.start
        for position, item in runs_of(layout, at, context_end, context):
            yield -1, position, item
        if region.message in verbatim:
            yield region.message, region.start, region
        else:
            for position, item in runs_of(layout, region.start, region.end, modes[region.message]):
                yield region.message, position, item
        at = region.end
    for position, item in runs_of(layout, at, len(layout.text), context):
        yield -1, position, item


def build_base(layout: Layout, labels: Labels, regions: Sequence[Region], modes: Mapping[int, Mode], context: Mode,
               encoder: Encoder, replies: Mapping[int, Reply], verbatim: frozenset[int]) -> Base:  # fmt: skip
    """The stream of a render; replies in `verbatim` stand with the ids that the engine returned."""
    ids: list[np.ndarray] = []
    character: list[np.ndarray] = []
    bounds: dict[int, tuple[int, int]] = {}
    count = 0
    for turn, position, item in pieces_of(layout, regions, modes, context, verbatim):
        first = count
        if isinstance(item, Region):
            found = replies[item.message].ids
            ids.append(found)
            character.append(_positions(layout, item, found, encoder))
            count += len(found)
        elif isinstance(item, int):
            ids.append(np.array([item], np.int32))
            character.append(np.array([position], np.int32))
            count += 1
        else:
            encoded = encoder.get(item)
            ids.append(encoded.ids)
            character.append(encoded.starts + position)
            count += len(encoded.ids)
        if turn >= 0:
            bounds[turn] = (bounds.get(turn, (first, 0))[0], count)
    all_ids = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    characters = np.concatenate(character) if character else np.zeros(0, np.int32)
    for region in regions:
        if region.message not in bounds:
            at = int(np.searchsorted(characters, region.start))
            bounds[region.message] = (at, at)
    stream = lay(all_ids, characters, labels)
    for turn, (start, end) in bounds.items():
        stream.turn[start:end] = turn
        if turn in verbatim:
            put_reply(stream, start, replies[turn])
    return Base(layout, labels, {r.message: r for r in regions}, stream, bounds, characters, verbatim)


def lay(ids: np.ndarray, characters: np.ndarray, labels: Labels) -> Stream:
    """Labels of each token by the character in which it starts."""
    at = labels.rows_at(characters) if len(ids) else np.zeros(0, np.int64)
    return Stream(
        ids,
        labels.author[at],
        labels.role[at],
        labels.part[at],
        labels.origin[at],
        labels.message[at],
        np.full(len(ids), -1, np.int32),
        np.full(len(ids), np.nan, np.float32),
    )


def put_reply(stream: Stream, start: int, reply: Reply) -> None:
    """Writes log-probs, authors and columns of a verbatim reply over its tokens."""
    end = start + len(reply.ids)
    stream.logprob[start:end] = reply.logprob
    stream.author[start:end] = reply.author
    for name, values in reply.columns.items():
        if name not in stream.columns:
            stream.columns[name] = np.full(len(stream), np.nan, np.float32)
        stream.columns[name][start:end] = values


def _positions(layout: Layout, region: Region, ids: np.ndarray, encoder: Encoder) -> np.ndarray:
    """Characters of a verbatim reply whose bytes are the region's text."""
    lengths = encoder.tokenizer.byte_lengths[ids].astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    text = layout.text[region.start : region.end]
    table = byte_to_character(text)
    return table[np.minimum(starts, len(table) - 1)].astype(np.int32) + region.start


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
    renderer = stream.author == Author.RENDERER
    stream.part[renderer & stops[stream.ids]] = Part.STOP
    if bos_id is not None and len(stream) and stream.ids[0] == bos_id:
        stream.part[0] = Part.BOS
    space = spaces[stream.ids] & renderer & (stream.origin == Origin.RENDERER)
    for _ in range(2):
        after = np.zeros(len(stream), bool)
        after[1:] = (stream.part[:-1] == Part.STOP) | (stream.part[:-1] == Part.SEPARATOR)
        stream.part[space & after] = Part.SEPARATOR
