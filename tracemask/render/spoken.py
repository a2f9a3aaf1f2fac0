"""What sampled ids say by themselves: parts and slots, read from their own bytes. Knows no render and no row."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

import numpy as np

from tracemask.core.vocab import Author, Part, Role
from tracemask.render.parts import REASONING_TAGS, open_reasoning, reply_parts
from tracemask.render.reply import Reply
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.turns import Region

SPEAKERS = (Author.POLICY, Author.MODEL)
HEAD = 64  # ids among which a leading opener stands


class Spoken(NamedTuple):
    """part and role uint8[T] of each id, raw: the bytes of all ids, starts int64[T]: where each id begins in them."""

    part: np.ndarray
    role: np.ndarray
    raw: bytes
    starts: np.ndarray


def spoken(tokenizer: Tokenizer, stops: Container[int], reply: Reply, opened: str | None) -> Spoken:
    """Reads a reply. opened: the closer of a reasoning block that its prompt left open.

    What an environment wrote inside (a whole rollout given as one reply) is a tool's output; what the policy says
    before and after it is read piece by piece, each with its own stop.
    """
    table = tokenizer.id_table
    pieces = [table[token] if token < len(table) else b"" for token in reply.ids.tolist()]
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    part = np.full(len(pieces), Part.CONTENT, np.uint8)
    role = np.full(len(pieces), Role.ASSISTANT, np.uint8)
    for first, last in stretches(reply.author):
        author, text = reply.author[first], _text(b"".join(pieces[first:last]))
        if author == Author.ENVIRONMENT:
            part[first:last], role[first:last] = Part.TOOL_OUTPUT, Role.TOOL
        if author not in SPEAKERS:
            opened = open_reasoning(text)
            continue
        part[first:last] = _parts(text, lengths[first:last], opened)
        if int(reply.ids[last - 1]) in stops:
            part[last - 1] = Part.STOP
    return Spoken(part, role, b"".join(pieces), np.cumsum(lengths) - lengths)


def goes_on_after_a_stop(reply: Reply, stops: frozenset[int]) -> bool:
    """A stop of the speaker's is followed by more of its own ids."""
    own = np.isin(reply.author, SPEAKERS)
    return bool((np.isin(reply.ids[:-1], list(stops)) & own[:-1] & own[1:]).any())


def opens_again(tokenizer: Tokenizer, reply: Reply, region: Region) -> bool:
    """The ids begin with the opener of the block that the prompt leaves open."""
    openers = tuple(opener.encode() for opener, closer in REASONING_TAGS if closer == region.opened)
    table = tokenizer.id_table
    head = b"".join(table[token] for token in reply.ids[:HEAD].tolist() if token < len(table))
    return bool(openers) and head.lstrip().startswith(openers)


def stretches(author: np.ndarray) -> Iterator[tuple[int, int]]:
    """Maximal ranges of one author."""
    edges = np.flatnonzero(author[1:] != author[:-1]) + 1
    yield from zip([0, *edges.tolist()], [*edges.tolist(), len(author)], strict=True) if len(author) else ()


def _text(raw: bytes) -> str:
    """The bytes as text in which each byte that is no UTF-8 is one lone surrogate."""
    return raw.decode(errors="surrogateescape")


def _parts(text: str, lengths: np.ndarray, opened: str | None) -> np.ndarray:
    bounds, kinds = reply_parts(text, opened=opened)
    ends = np.cumsum([len(character.encode(errors="surrogateescape")) for character in text], dtype=np.int64)
    edges = np.concatenate(([0], ends))[bounds]
    slots = np.searchsorted(edges, np.cumsum(lengths) - lengths, side="right") - 1
    return np.array([int(kind) for kind in kinds], np.uint8)[slots]
