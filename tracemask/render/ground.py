"""Several renders laid end to end as arrays: stretches of characters, who stands and replies there. Knows no label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.layout import Layout
from tracemask.render.parts import reply_parts
from tracemask.render.speaker import Speaker
from tracemask.render.text import Span
from tracemask.render.turns import Region


class Labelled(NamedTuple):
    """A render whose characters get labels: its layout, who speaks in it, and what the policy's replies cover."""

    layout: Layout
    speakers: Sequence[Speaker]
    regions: Sequence[Region]

    @property
    def names_blocks(self) -> bool:
        """Single blocks of a message name their authors."""
        return any(speaker.blocks for speaker in self.speakers)


@dataclass(frozen=True, slots=True)
class Ground:
    """Stretch i holds characters [starts[i], starts[i + 1]) of one field of one message, in one part of one reply.

    offsets: where each render begins; one character that belongs to nobody stands between two of them. rows: its first
    stretch. people: everyone who speaks; `source` (whose field the characters are), `place` (in whose block they
    stand) and `reply` (who replies there) are numbers of them, `nobody` the last. before: how many speak before each
    render's. span: number of the span; fields: path of each span. part: of the reply, there.
    """

    renders: Sequence[Labelled]
    offsets: np.ndarray
    rows: np.ndarray
    people: People
    before: np.ndarray
    starts: np.ndarray
    span: np.ndarray
    first_span: np.ndarray
    fields: Sequence[Any]
    place: np.ndarray
    source: np.ndarray
    origin: np.ndarray
    reply: np.ndarray
    part: np.ndarray

    @property
    def nobody(self) -> int:
        """The number that stands for no speaker."""
        return len(self.people.author) - 1

    @classmethod
    def of(cls, renders: Sequence[Labelled]) -> Ground:
        """Cuts the renders into stretches."""
        sizes = np.array([len(render.layout.text) + 1 for render in renders], np.int64)
        offsets = np.cumsum(sizes) - sizes
        spans = [render.layout.rendered.spans or [_NO_SPAN] for render in renders]
        counts = np.array([len(each) for each in spans])
        people, before = People.of(renders)
        edges, reply, part = _edges(renders, offsets, before)
        first, _, places, sources, origins, fields, _ = zip(*chain.from_iterable(spans))
        span_starts = np.array(first, np.int64) + np.repeat(offsets, counts)
        inner = [_block_edges(render) + offset for render, offset in zip(renders, offsets) if render.names_blocks]
        starts = _merged(span_starts, edges[~np.isin(edges, offsets + sizes - 1)], *inner)
        at = np.searchsorted(span_starts, starts, side="right") - 1
        slot = np.searchsorted(edges, starts, side="right") - 1
        nobody, shift = len(people.author) - 1, np.repeat(before, counts)
        place, source = (_shifted(column, shift, nobody)[at] for column in (places, sources))
        return cls(
            renders=renders,
            offsets=offsets,
            rows=np.append(np.searchsorted(starts, offsets), len(starts)),
            people=people,
            before=before,
            starts=starts,
            span=at,
            first_span=np.cumsum(counts) - counts,
            fields=fields,
            place=np.where(place != nobody, place, source),
            source=source,
            origin=_codes(origins)[at],
            reply=reply[slot],
            part=part[slot],
        )

    def prefills(self) -> list[np.ndarray]:
        """Stretches where the prompt had written what a reply repeats: nobody said that."""
        return [
            (self.starts >= offset + region.prefill)
            & (self.starts < offset + region.start)
            & (self.source == earlier + region.message)
            for render, offset, earlier in zip(self.renders, self.offsets.tolist(), self.before.tolist())
            for region in render.regions
            if region.prefill >= 0
        ]


@dataclass(frozen=True, slots=True)
class People:
    """Codes of the speakers of all renders as arrays; the last entry stands for nobody."""

    author: np.ndarray
    role: np.ndarray
    index: np.ndarray

    @classmethod
    def of(cls, renders: Sequence[Labelled]) -> tuple[People, np.ndarray]:
        """(their codes, how many speakers stand before each render's)."""
        counts = np.array([len(render.speakers) for render in renders], np.int64)
        everyone = [speaker for render in renders for speaker in render.speakers]
        people = cls(
            _codes([*(speaker.author for speaker in everyone), Author.RENDERER]),
            _codes([*(speaker.role for speaker in everyone), Role.NONE]),
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


def _codes(members: Sequence[int]) -> np.ndarray:
    """uint8 of the codes of core/vocab."""
    return np.frombuffer(bytes(members), np.uint8)


def _shifted(column: Sequence[int], shift: np.ndarray, nobody: int) -> np.ndarray:
    """Message numbers of single renders as numbers of all people; -1 becomes `nobody`."""
    numbers = np.array(column, np.int64)
    return np.where(numbers >= 0, numbers + shift, nobody)


def _merged(*sorted_arrays: np.ndarray) -> np.ndarray:
    """All numbers in order, without repeats."""
    both = np.concatenate(sorted_arrays)
    both.sort(kind="stable")
    return both[np.append(True, both[1:] != both[:-1])]


_NO_SPAN = Span(0, 0, -1, -1, Origin(0))
