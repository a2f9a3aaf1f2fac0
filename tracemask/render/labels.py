"""Author, role, part, origin and message of every character of a render. Knows no token id and no row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.ground import Ground, Labelled
from tracemask.render.layout import BODY
from tracemask.render.speaker import Speaker
from tracemask.render.text import Span

_PART = {Origin.REASONING: Part.REASONING, Origin.TOOL_CALL: Part.TOOL_CALL, Origin.CONTENT: Part.CONTENT}


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
    ground = Ground.of(renders)
    people, source, reply = ground.people, ground.source, ground.reply
    body = _IS_BODY[ground.origin] & (source != ground.nobody)
    inside = reply != ground.nobody
    own = inside & body & (source == reply)
    author, part = _as_written(ground, body)
    author = np.where(inside, people.author[reply], author)
    part = np.where(inside & ~(own & (ground.origin != int(Origin.CONTENT))), ground.part, part)
    role = np.where(inside, int(Role.ASSISTANT), people.role[ground.place])
    message = people.index[np.where(inside, reply, np.where(body, source, ground.place))]
    _name_block_authors(ground, body & (~inside | own), author)
    labels = Labels(
        ground.starts,
        author.astype(np.uint8, copy=False),
        role.astype(np.uint8, copy=False),
        part.astype(np.uint8, copy=False),
        ground.origin,
        message.astype(np.int32),
    )
    return Sheet(labels, ground.offsets, ground.rows)


def _as_written(ground: Ground, body: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(author, part) of each stretch as if nobody had sampled a reply. body: it is the text of a message."""
    people, source, origin = ground.people, ground.source, ground.origin
    author = np.where(body, people.author[source], int(Author.RENDERER))
    part = np.where(body, _PART_OF[origin], int(Part.HEADER))
    of_tool = people.role[source] == int(Role.TOOL)
    part[body & (origin == int(Origin.CONTENT)) & of_tool] = int(Part.TOOL_OUTPUT)
    tools = origin == int(Origin.TOOLS)
    author[tools], part[tools] = int(Author.HARNESS), int(Part.CONTENT)
    for index in np.flatnonzero((origin == int(Origin.FIELD)) & (source != ground.nobody)).tolist():
        if ground.fields[ground.span[index]][:1] != ("role",):
            author[index] = people.author[source[index]]
    for prefill in ground.prefills():
        author[prefill & body], part[prefill & body] = int(Author.RENDERER), int(Part.HEADER)
    return author, part


_IS_BODY = np.zeros(len(Origin), bool)
_IS_BODY[[int(origin) for origin in BODY]] = True
_PART_OF = np.full(len(Origin), int(Part.CONTENT))
_PART_OF[[int(origin) for origin in _PART]] = [int(part) for part in _PART.values()]


def _name_block_authors(ground: Ground, free: np.ndarray, author: np.ndarray) -> None:
    """Overrides authors where single blocks of a message name theirs. free: stretches whose author a block decides."""
    for index, render in enumerate(ground.renders):
        if render.names_blocks:
            here = slice(ground.rows[index], ground.rows[index + 1])
            starts, spans = ground.starts[here] - ground.offsets[index], ground.span[here] - ground.first_span[index]
            _block_authors(render, starts, spans, free[here], author[here])


def _block_authors(render: Labelled, starts: np.ndarray, at: np.ndarray, own: np.ndarray,
                   author: np.ndarray) -> None:  # fmt: skip
    """The same in one render: by part index, else by how much is used up."""
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
