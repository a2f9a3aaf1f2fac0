"""Author, role, part, origin and message of every character of a render. Knows no token id and no row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Labelled(NamedTuple):
    """A render whose characters get labels: its layout, who speaks in it, and what the policy's replies cover."""

    layout: Layout
    speakers: Sequence[Speaker]
    regions: Sequence[Region]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Labels of several renders laid end to end, so that each array operation serves them all.

    labels: of all characters; render i begins at character offsets[i] and is rows [rows[i], rows[i + 1]).
    One character that belongs to nobody stands between two renders.
    """

    labels: Labels
    offsets: np.ndarray
    rows: np.ndarray

    def cut(self, index: int) -> Labels:
        """The labels of one render, by its own characters."""
        whole = self.labels
        here = slice(self.rows[index], self.rows[index + 1])
        return Labels(
            whole.starts[here] - self.offsets[index],
            whole.author[here],
            whole.role[here],
            whole.part[here],
            whole.origin[here],
            whole.message[here],
        )


def label(renders: Sequence[Labelled]) -> Sheet:
    """Labels of renders. Inside a region the reply's author decided on every character, literals included."""
    sizes = np.array([len(render.layout.text) + 1 for render in renders], np.int64)
    offsets = np.cumsum(sizes) - sizes
    all_spans = [render.layout.rendered.spans or [_NO_SPAN] for render in renders]
    spans = [span for each in all_spans for span in each]
    people, before = _People.of(renders)
    edges, reply, part_inside = _edges(renders, offsets, before)
    first, _, places, sources, origins, fields, _ = zip(*spans)
    counts = np.array([len(each) for each in all_spans])
    span_starts = np.array(first, np.int64) + np.repeat(offsets, counts)
    nobody, shift = len(people.author) - 1, np.repeat(before, counts)
    blocks = [index for index, render in enumerate(renders) if any(each.blocks for each in render.speakers)]
    inner = [_block_edges(renders[index]) + offsets[index] for index in blocks]
    starts = _merged(span_starts, edges[~_at_end(edges, offsets, sizes)], *inner)
    at = np.searchsorted(span_starts, starts, side="right") - 1
    place_of, source = (_shifted(column, shift, nobody)[at] for column in (places, sources))
    origin = np.array(origins, np.int64)[at]
    slot = np.searchsorted(edges, starts, side="right") - 1
    k = reply[slot]
    known = source != nobody
    body = _IS_BODY[origin] & known
    place = np.where(place_of != nobody, place_of, source)
    content = origin == int(Origin.CONTENT)
    author = np.where(body, people.author[source], int(Author.RENDERER))
    part = np.where(body, _PART_OF[origin], int(Part.HEADER))
    part[body & content & (people.role[source] == int(Role.TOOL))] = int(Part.TOOL_OUTPUT)
    tools = origin == int(Origin.TOOLS)
    author[tools], part[tools] = int(Author.HARNESS), int(Part.CONTENT)
    for index in np.flatnonzero((origin == int(Origin.FIELD)) & known).tolist():
        if fields[at[index]][:1] != ("role",):
            author[index] = people.author[source[index]]
    for offset, earlier, region in _prefilled(renders, offsets, before):
        inside = (starts >= offset + region.prefill) & (starts < offset + region.start)
        prefill = inside & body & (source == earlier + region.message)
        author[prefill], part[prefill] = int(Author.RENDERER), int(Part.HEADER)
    inside = k != nobody
    own = inside & body & (source == k)
    author = np.where(inside, people.author[k], author)
    role = np.where(inside, int(Role.ASSISTANT), people.role[place])
    message = people.index[np.where(inside, k, np.where(body, source, place))]
    part = np.where(inside & ~(own & ~content), part_inside[slot], part)
    rows = np.append(np.searchsorted(starts, offsets), len(starts))
    free = body & (~inside | own)
    for index in blocks:
        here = slice(rows[index], rows[index + 1])
        spans_at = at[here] - int(counts[:index].sum())
        _block_authors(renders[index], starts[here] - offsets[index], spans_at, free[here], author[here])
    labels = Labels(
        starts,
        author.astype(np.uint8),
        role.astype(np.uint8),
        part.astype(np.uint8),
        origin.astype(np.uint8),
        message.astype(np.int32),
    )
    return Sheet(labels, offsets, rows)


def _prefilled(renders: Sequence[Labelled], offsets: np.ndarray,
               before: np.ndarray) -> Iterator[tuple[int, int, Region]]:  # fmt: skip
    """(characters before the render, speakers before it, region) where the prompt had written what a reply repeats:
    nobody said that."""
    for render, offset, earlier in zip(renders, offsets.tolist(), before.tolist()):
        for region in render.regions:
            if region.prefill >= 0:
                yield offset, earlier, region


def _shifted(column: Sequence[int], shift: np.ndarray, nobody: int) -> np.ndarray:
    """Message numbers of single renders as numbers of all people; -1 becomes `nobody`."""
    numbers = np.array(column, np.int64)
    return np.where(numbers >= 0, numbers + shift, nobody)


def _at_end(edges: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which edges stand behind the last character of their render."""
    return np.isin(edges, offsets + sizes - 1)


def _merged(*sorted_arrays: np.ndarray) -> np.ndarray:
    """All numbers in order, without repeats."""
    both = np.concatenate(sorted_arrays)
    both.sort(kind="stable")
    return both[np.append(True, both[1:] != both[:-1])]


_NO_SPAN = Span(0, 0, -1, -1, Origin(0))
_IS_BODY = np.zeros(len(Origin), bool)
_IS_BODY[[int(origin) for origin in BODY]] = True
_PART_OF = np.full(len(Origin), int(Part.CONTENT))
_PART_OF[[int(origin) for origin in _PART]] = [int(part) for part in _PART.values()]


@dataclass(frozen=True, slots=True)
class _People:
    """Codes of the speakers of all renders as arrays; the last entry stands for nobody."""

    author: np.ndarray
    role: np.ndarray
    index: np.ndarray

    @classmethod
    def of(cls, renders: Sequence[Labelled]) -> tuple[_People, np.ndarray]:
        """(their codes, how many speakers stand before each render's)."""
        counts = np.array([len(render.speakers) for render in renders], np.int64)
        everyone = [speaker for render in renders for speaker in render.speakers]
        people = cls(
            np.array([*(speaker.author for speaker in everyone), Author.RENDERER], np.int64),
            np.array([*(speaker.role for speaker in everyone), Role.NONE], np.int64),
            np.array([*(speaker.index for speaker in everyone), -1], np.int64),
        )
        return people, np.cumsum(counts) - counts


def _edges(renders: Sequence[Labelled], offsets: np.ndarray,
           before: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """(characters where a region, a part of it or its stop begins or ends, who replies there, part there)."""
    edges: list[int] = []
    reply: list[int] = []
    part: list[int] = []
    nobody = sum(len(render.speakers) for render in renders)
    stopping, behind = int(Part.STOP), int(Part.HEADER)

    def add(at: int, speaker: int, what: int) -> None:
        if edges and at == edges[-1]:
            reply[-1], part[-1] = speaker, what
        else:
            edges.append(at)
            reply.append(speaker)
            part.append(what)

    for (layout, _, regions), offset, earlier in zip(renders, offsets.tolist(), before.tolist()):
        add(offset, nobody, behind)
        text = layout.text
        for region in regions:
            speaker, first, stop, end = region.message + earlier, region.start, region.stop, region.end
            starts, parts = reply_parts(text[first:stop], opened=region.opened)
            for start, what in zip(starts, parts, strict=True):
                if first + start < stop:
                    add(offset + first + start, speaker, what)
            if stop < end:
                add(offset + stop, speaker, stopping)
            add(offset + end, nobody, behind)
    return np.array(edges, np.int64), np.array(reply, np.int64), np.array(part, np.int64)


def _block_edges(render: Labelled) -> np.ndarray:
    """Characters where the next block of a content begins, for messages whose blocks name authors."""
    taken = [0] * len(render.speakers)
    edges: list[int] = []
    for span in render.layout.rendered.spans:
        if span.origin is not Origin.CONTENT or span.source < 0 or len(span.field) > 1:
            continue
        at = 0
        for size, _ in render.speakers[span.source].blocks:
            at += size
            if taken[span.source] < at < taken[span.source] + span.end - span.start:
                edges.append(span.start + at - taken[span.source])
        taken[span.source] += span.end - span.start
    return np.array(edges, np.int64)


def _block_authors(render: Labelled, starts: np.ndarray, at: np.ndarray, own: np.ndarray,
                   author: np.ndarray) -> None:  # fmt: skip
    """Overrides authors where single blocks of a message name theirs: by part index, else by how much is used up."""
    ends = np.append(starts[1:], len(render.layout.text))
    taken = [0] * len(render.speakers)
    for index in np.flatnonzero(own).tolist():
        span = render.layout.rendered.spans[at[index]]
        speaker = render.speakers[span.source]
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
