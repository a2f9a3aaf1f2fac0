"""Author, role, part, origin and message of every character of a render. Knows no token id and no row."""

from __future__ import annotations

from bisect import bisect_right
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
_ROLE = {name: Role.of(name) for name in ("system", "developer", "user", "assistant", "tool")}


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
        author = Author.of(message.author)
        result = next((block for block in message.blocks if isinstance(block, ToolResult)), None)
        blocks = result.content if result else message.blocks
        fallback = Author.of(result.author) if result and result.author else author
        texts = [block for block in blocks if isinstance(block, Text)]
        named: list[tuple[int, Author]] = []
        if fallback is not author or any(block.author for block in texts):
            named = [(len(block.text), Author.of(block.author) if block.author else fallback) for block in texts]
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


def label(layout: Layout, speakers: Sequence[Speaker], regions: Sequence[Region]) -> Labels:
    """Labels of a render. Inside a region the reply's author decided on every character, literals included."""
    cuts = _Cuts(layout, regions)
    rows: list[tuple[int, int, int, int, int, int]] = []
    taken = [0] * len(speakers)
    for span in layout.rendered.spans:
        for start, end, region, part in cuts.pieces(span.start, span.end):
            if region is None:
                rows.append(_context(span, start, end, speakers, taken))
            else:
                rows.append(_reply(span, start, end, speakers, region, part, taken))
    table = np.array(rows, np.int64).reshape(-1, 6)
    starts, author, role, part, origin, message = (table[:, column] for column in range(6))
    return Labels(
        starts,
        author.astype(np.uint8),
        role.astype(np.uint8),
        part.astype(np.uint8),
        origin.astype(np.uint8),
        message.astype(np.int32),
    )


class _Cuts:
    """Splits spans at the edges of regions and at the parts inside them."""

    def __init__(self, layout: Layout, regions: Sequence[Region]) -> None:
        self.edges: list[int] = [0]
        self.owners: list[tuple[Region | None, Part]] = [(None, Part.HEADER)]
        for region in regions:
            starts, parts = reply_parts(layout.text[region.start : region.stop], opened=region.opened)
            for start, part in zip(starts, parts, strict=True):
                self._add(region.start + start, region, part)
            self._add(region.stop, region, Part.STOP)
            self._add(region.end, None, Part.HEADER)

    def _add(self, at: int, region: Region | None, part: Part) -> None:
        self.edges.append(at)
        self.owners.append((region, part))

    def pieces(self, start: int, end: int) -> list[tuple[int, int, Region | None, Part]]:
        """[start, end) in pieces that lie in one region and one part."""
        out: list[tuple[int, int, Region | None, Part]] = []
        index = bisect_right(self.edges, start) - 1
        while start < end:
            stop = self.edges[index + 1] if index + 1 < len(self.edges) else end
            stop = min(stop, end)
            if stop > start:
                region, part = self.owners[index]
                out.append((start, stop, region, part))
                start = stop
            index += 1
        return out


def _context(span: Span, start: int, end: int, speakers: Sequence[Speaker], taken: list[int]) -> tuple[int, ...]:
    place = span.message if span.message >= 0 else span.source
    role = speakers[place].role if place >= 0 else Role.NONE
    if span.origin in BODY and span.source >= 0:
        speaker = speakers[span.source]
        part = _PART[span.origin]
        if speaker.role is Role.TOOL and span.origin is Origin.CONTENT:
            part = Part.TOOL_OUTPUT
        return start, _author(speaker, span, end - start, taken), role, part, span.origin, speaker.index
    index = speakers[place].index if place >= 0 else -1
    author = Author.RENDERER
    part = Part.HEADER
    if span.origin is Origin.TOOLS:
        author, part = Author.HARNESS, Part.CONTENT
    elif span.origin is Origin.FIELD and span.source >= 0 and span.field[:1] != ("role",):
        author = speakers[span.source].author
    return start, author, role, part, span.origin, index


def _reply(span: Span, start: int, end: int, speakers: Sequence[Speaker], region: Region, part: Part,
           taken: list[int]) -> tuple[int, ...]:  # fmt: skip
    speaker = speakers[region.message]
    author = speaker.author
    if span.source == region.message and span.origin in BODY:
        author = _author(speaker, span, end - start, taken)
        if span.origin is not Origin.CONTENT:
            part = _PART[span.origin]
    return start, author, Role.ASSISTANT, part, span.origin, speaker.index


def _author(speaker: Speaker, span: Span, length: int, taken: list[int]) -> Author:
    """The block's author, where blocks name authors: by part index, else by how much of the content is used up."""
    if not speaker.blocks or span.origin is not Origin.CONTENT:
        return speaker.author
    if len(span.field) > 1 and isinstance(span.field[1], int) and span.field[1] < len(speaker.blocks):
        return speaker.blocks[span.field[1]][1]
    at = taken[span.source]
    taken[span.source] += length
    for size, author in speaker.blocks:
        if at < size:
            return author
        at -= size
    return speaker.blocks[-1][1]
