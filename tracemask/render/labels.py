"""Author, role, part, origin and message of every character of a render. Knows no token id and no row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.layout import BODY, Layout
from tracemask.render.parts import reply_parts
from tracemask.render.text import Span
from tracemask.render.turns import Region
from tracemask.trace.model import Message, Text, ToolResult

_PART = {Origin.REASONING: Part.REASONING, Origin.TOOL_CALL: Part.TOOL_CALL, Origin.CONTENT: Part.CONTENT}
_AUTHOR = {author.name.lower(): author for author in Author}
_ROLE = {name: Role[name.upper()] for name in ("system", "developer", "user", "assistant", "tool")}


@dataclass(slots=True)
class Speaker:
    """A message as labels need it. index: in the trace's list. blocks: (length, author) where blocks name authors."""

    index: int
    role: Role
    author: Author
    blocks: list[tuple[int, Author]] = field(default_factory=list)

    @classmethod
    def of(cls, message: Message, index: int) -> Speaker:
        """Reads role, author and the authors of single text blocks."""
        author = fallback = _AUTHOR[message.author]
        blocks: Sequence[object] = message.blocks
        for block in blocks:
            if isinstance(block, ToolResult):
                blocks = block.content
                fallback = _AUTHOR[block.author] if block.author else author
                break
        texts = [block for block in blocks if isinstance(block, Text)]
        if fallback is author and not [True for block in texts if block.author]:
            return cls(index, _ROLE[message.role], author)
        named = [(len(block.text), _AUTHOR[block.author] if block.author else fallback) for block in texts]
        return cls(index, _ROLE[message.role], author, named)


@dataclass(slots=True)
class Labels:
    """Codes of the characters from starts[i] to starts[i + 1]: int arrays of one length."""

    starts: np.ndarray
    author: np.ndarray
    role: np.ndarray
    part: np.ndarray
    origin: np.ndarray
    message: np.ndarray

    def rows_at(self, characters: np.ndarray) -> np.ndarray:
        """The index i of each character."""
        return np.searchsorted(self.starts, characters, side="right") - 1

    def rows_of(self, characters: np.ndarray) -> np.ndarray:
        """The same for many characters: in one pass where they stand in order, as in a text they do."""
        if not len(characters) or characters[0] < self.starts[0] or (characters[1:] < characters[:-1]).any():
            return self.rows_at(characters)
        first = np.append(np.searchsorted(characters, self.starts), len(characters))
        return np.repeat(np.arange(len(self.starts)), np.diff(first))


def label(layout: Layout, speakers: Sequence[Speaker], regions: Sequence[Region]) -> Labels:
    """Labels of a render. Inside a region the reply's author decided on every character, literals included."""
    spans = layout.rendered.spans
    edges, reply, part_inside = _edges(layout, regions)
    first, _, places, sources, origins, _, _ = zip(*(spans or (_NO_SPAN,)))
    span_starts = np.array(first, np.int64)
    starts = _merged(span_starts, edges[edges < len(layout.text)])
    if any(speaker.blocks for speaker in speakers):
        starts = _merged(starts, np.sort(_block_edges(layout, speakers)))
    at = np.searchsorted(span_starts, starts, side="right") - 1
    place_of, source, origin = (np.array(column, np.int64)[at] for column in (places, sources, origins))
    slot = np.searchsorted(edges, starts, side="right") - 1
    k = reply[slot]
    people = _People.of(speakers)
    body = _IS_BODY[origin] & (source >= 0)
    place = np.where(place_of >= 0, place_of, source)
    author = np.where(body, people.author[source], int(Author.RENDERER))
    part = np.where(body, _PART_OF[origin], int(Part.HEADER))
    part[body & (people.role[source] == Role.TOOL) & (origin == Origin.CONTENT)] = Part.TOOL_OUTPUT
    tools = origin == Origin.TOOLS
    author[tools], part[tools] = Author.HARNESS, Part.CONTENT
    for index in np.flatnonzero((origin == Origin.FIELD) & (source >= 0)).tolist():
        if spans[at[index]].field[:1] != ("role",):
            author[index] = people.author[source[index]]
    role = np.where(place >= 0, people.role[place], int(Role.NONE))
    message = np.where(body, people.index[source], np.where(place >= 0, people.index[place], -1))
    for region in regions:
        if region.prefill >= 0:  # the prompt has written it: nobody said it
            prefill = body & (source == region.message) & (starts >= region.prefill) & (starts < region.start)
            author[prefill], part[prefill] = Author.RENDERER, Part.HEADER
    inside = k >= 0
    own = inside & body & (source == k)
    author = np.where(inside, people.author[k], author)
    role = np.where(inside, int(Role.ASSISTANT), role)
    message = np.where(inside, people.index[k], message)
    part = np.where(inside & ~(own & (origin != Origin.CONTENT)), part_inside[slot], part)
    _block_authors(layout, speakers, starts, at, body & (~inside | own), author)
    return Labels(
        starts,
        author.astype(np.uint8),
        role.astype(np.uint8),
        part.astype(np.uint8),
        origin.astype(np.uint8),
        message.astype(np.int32),
    )


def _merged(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Two sorted arrays as one without repeats."""
    both = np.concatenate((left, right))
    both.sort(kind="stable")
    return both[np.append(True, both[1:] != both[:-1])]


_NO_SPAN = Span(0, 0, -1, -1, Origin(0))
_IS_BODY = np.zeros(len(Origin), bool)
_IS_BODY[[int(origin) for origin in BODY]] = True
_PART_OF = np.full(len(Origin), int(Part.CONTENT))
_PART_OF[[int(origin) for origin in _PART]] = [int(part) for part in _PART.values()]


@dataclass(frozen=True, slots=True)
class _People:
    """Codes of speakers as arrays; the entry at -1 stands for nobody."""

    author: np.ndarray
    role: np.ndarray
    index: np.ndarray

    @classmethod
    def of(cls, speakers: Sequence[Speaker]) -> _People:
        return cls(
            np.array([*(int(speaker.author) for speaker in speakers), int(Author.RENDERER)]),
            np.array([*(int(speaker.role) for speaker in speakers), int(Role.NONE)]),
            np.array([*(speaker.index for speaker in speakers), -1]),
        )


def _edges(layout: Layout, regions: Sequence[Region]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(characters where a region, a part of it or its stop begins or ends, reply there or -1, part there)."""
    edges, reply, part = [0], [-1], [int(Part.HEADER)]

    def add(at: int, message: int, what: int) -> None:
        if at == edges[-1]:
            reply[-1], part[-1] = message, what
        else:
            edges.append(at)
            reply.append(message)
            part.append(what)

    stopping, behind = int(Part.STOP), int(Part.HEADER)
    for region in regions:
        message, first, stop, end = region.message, region.start, region.stop, region.end
        starts, parts = reply_parts(layout.text[first:stop], opened=region.opened)
        for start, what in zip(starts, parts, strict=True):
            if first + start < stop:
                add(first + start, message, what)
        if stop < end:
            add(stop, message, stopping)
        add(end, -1, behind)
    return np.array(edges, np.int64), np.array(reply, np.int64), np.array(part, np.int64)


def _block_edges(layout: Layout, speakers: Sequence[Speaker]) -> np.ndarray:
    """Characters where the next block of a content begins, for messages whose blocks name authors."""
    taken = [0] * len(speakers)
    edges: list[int] = []
    for span in layout.rendered.spans:
        if span.origin is not Origin.CONTENT or span.source < 0 or len(span.field) > 1:
            continue
        at = 0
        for size, _ in speakers[span.source].blocks:
            at += size
            if taken[span.source] < at < taken[span.source] + span.end - span.start:
                edges.append(span.start + at - taken[span.source])
        taken[span.source] += span.end - span.start
    return np.array(edges, np.int64)


def _block_authors(layout: Layout, speakers: Sequence[Speaker], starts: np.ndarray, at: np.ndarray, own: np.ndarray,
                   author: np.ndarray) -> None:  # fmt: skip
    """Overrides authors where single blocks of a message name theirs: by part index, else by how much is used up."""
    if not any(speaker.blocks for speaker in speakers):
        return
    ends = np.append(starts[1:], len(layout.text))
    taken = [0] * len(speakers)
    for index in np.flatnonzero(own).tolist():
        span = layout.rendered.spans[at[index]]
        speaker = speakers[span.source]
        if speaker.blocks and span.origin is Origin.CONTENT:
            author[index] = _author(speaker, span, int(ends[index] - starts[index]), taken)


def _author(speaker: Speaker, span: Span, length: int, taken: list[int]) -> Author:
    if len(span.field) > 1 and isinstance(span.field[1], int) and span.field[1] < len(speaker.blocks):
        return speaker.blocks[span.field[1]][1]
    at = taken[span.source]
    taken[span.source] += length
    for size, author in speaker.blocks:
        if at < size:
            return author
        at -= size
    return speaker.blocks[-1][1]
