"""A labelled token stream and how a render becomes one. Knows turns and runs; knows no row and no ownership."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.columns import blank
from tracemask.render.encode import Encoded, Encoder, Mode, Run, byte_to_character, concatenated
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
class Reply:
    """What the engine returned for one reply: ids[n] int32, logprob[n] float32 (NaN: missing), author[n], columns."""

    ids: np.ndarray
    logprob: np.ndarray
    author: np.ndarray
    columns: dict[str, np.ndarray]


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


Piece = tuple[int, int, "Run | Encoded | Region"]
"""(reply or -1, character where it begins, text to encode | a control token | a region taken verbatim)."""


def add_runs(out: list[Piece], turn: int, layout: Layout, start: int, end: int, mode: Mode, encoder: Encoder) -> None:
    """Characters [start, end) as runs between the template's control tokens, and those tokens."""
    at = start
    marks, text = layout.marks, layout.text
    index = bisect_left(layout.mark_starts, start)
    while index < len(marks):
        first, last, token = marks[index]
        if first >= end:
            break
        index += 1
        if first > at:
            out.append((turn, at, Run(text[at:first], mode, at > 0)))
        out.append((turn, first, encoder.controls[token]))
        at = max(at, last)
    if at < end:
        out.append((turn, at, Run(text[at:end], mode, at > 0)))


def pieces_of(layout: Layout, regions: Sequence[Region], modes: Mapping[int, Mode], context: Mode, encoder: Encoder,
              verbatim: frozenset[int] = frozenset()) -> list[Piece]:  # fmt: skip
    """A render in pieces, cut at the edges of its regions."""
    out: list[Piece] = []
    at = 0
    for region in regions:
        # A block that the template puts between prompt and reply was never before the eyes of an engine that sampled.
        whole = region.message not in verbatim
        add_runs(out, -1, layout, at, region.start if whole else region.prompt_end, context, encoder)
        if whole:
            add_runs(out, region.message, layout, region.start, region.end, modes[region.message], encoder)
        else:
            out.append((region.message, region.start, region))
        at = region.end
    add_runs(out, -1, layout, at, len(layout.text), context, encoder)
    return out


def build_base(layout: Layout, labels: Labels, regions: Sequence[Region], pieces: Sequence[Piece], encoder: Encoder,
               replies: Mapping[int, Reply], verbatim: frozenset[int]) -> Base:  # fmt: skip
    """The stream of a render; replies in `verbatim` stand with the ids that the engine returned."""
    ids: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    suspicious: list[tuple[int, Run]] = []
    for _, position, item in pieces:
        if isinstance(item, Run):
            encoded = encoder.get(item)
            if encoded.found:
                suspicious.append((position, item))
        elif isinstance(item, Region):
            found = replies[item.message].ids
            encoded = Encoded(found, _positions(layout, item, found, encoder))
        else:
            encoded = item
        ids.append(encoded.ids)
        starts.append(encoded.starts)
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    positions = np.fromiter((position for _, position, _ in pieces), np.int32, len(pieces))
    all_ids = concatenated(ids, np.int32)
    characters = concatenated(starts, np.int32) + np.repeat(positions, counts)
    stream = lay(all_ids, characters, labels)
    stream.straddles = _straddling(characters, labels, len(layout.text))
    bounds = _bounds(pieces, counts, regions, characters)
    for turn, (start, end) in bounds.items():
        stream.turn[start:end] = turn
        if turn in verbatim:
            put_reply(stream, start, replies[turn])
    return Base(layout, labels, {r.message: r for r in regions}, stream, bounds, suspicious, verbatim)


def _straddling(characters: np.ndarray, labels: Labels, size: int) -> np.ndarray:
    """Which tokens hold characters of more than one author."""
    last = np.maximum(np.append(characters[1:], size) - 1, characters)
    return labels.author[labels.rows_at(last)] != labels.author[labels.rows_at(characters)]


def _bounds(pieces: Sequence[Piece], counts: np.ndarray, regions: Sequence[Region],
            characters: np.ndarray) -> dict[int, tuple[int, int]]:  # fmt: skip
    bounds: dict[int, tuple[int, int]] = {}
    ends = np.cumsum(counts).tolist()
    for index, (turn, _, _) in enumerate(pieces):
        if turn >= 0:
            first = bounds[turn][0] if turn in bounds else ends[index] - int(counts[index])
            bounds[turn] = (first, ends[index])
    for region in regions:
        if region.message not in bounds:
            at = int(np.searchsorted(characters, region.start))
            bounds[region.message] = (at, at)
    return bounds


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
    renderer = stream.author == Author.RENDERER
    ids = np.minimum(stream.ids, len(stops) - 1)
    stream.part[renderer & stops[ids]] = Part.STOP
    if bos_id is not None and len(stream) and stream.ids[0] == bos_id:
        stream.part[0] = Part.BOS
    space = spaces[ids] & renderer & (stream.origin == Origin.RENDERER)
    for _ in range(2):
        after = np.zeros(len(stream), bool)
        after[1:] = (stream.part[:-1] == Part.STOP) | (stream.part[:-1] == Part.SEPARATOR)
        stream.part[space & after] = Part.SEPARATOR
