"""Authorship for engine ids whose text may differ from what the template renders. Compares bytes, changes no id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracemask.core.vocab import Origin
from tracemask.render.control import Control
from tracemask.render.encode import byte_to_character
from tracemask.render.labels import Labels
from tracemask.render.stream import Stream, lay
from tracemask.render.tokenizer import Tokenizer


def align_context(tokenizer: Tokenizer, control: Control, ids: np.ndarray, text: str, offset: int,
                  labels: Labels) -> tuple[Stream, int]:  # fmt: skip
    """(ids labelled by the characters of `text`, index of the first id whose bytes differ, or -1).

    text: what the template renders for these ids; its first character is character `offset` of the labelled render.
    Equal bytes map one to one. Else both sides are cut at control tokens; equal stretches map, and in the others what
    a common head and tail do not explain takes the labels of its surroundings, with origin engine.
    """
    pieces = [tokenizer.id_table[token] if token < tokenizer.size else b"" for token in ids.tolist()]
    raw, want = b"".join(pieces), text.encode()
    ends = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
    starts = ends - np.fromiter(map(len, pieces), np.int64, len(pieces))
    table = byte_to_character(text)
    if raw == want:
        return lay(ids, _characters(table, starts, offset), labels), -1
    place = np.full(len(raw) + 1, -1, np.int64)
    for (a, b), (c, d) in zip(*_segments(tokenizer, control, ids, starts, ends, raw, text, want), strict=True):
        _match(raw, want, a, b, c, d, place, ends)
    unknown = np.concatenate(([0], np.cumsum(place[: len(raw)] < 0)))
    known = unknown[ends] == unknown[starts]
    at = _nearest(place, starts)
    stream = lay(ids, _characters(table, at, offset), labels)
    stream.origin[~known] = Origin.ENGINE
    head = _head(raw, want)
    first = int(np.searchsorted(ends, head, side="right"))
    return stream, min(first, max(len(ids) - 1, 0))


def _characters(table: np.ndarray, starts: np.ndarray, offset: int) -> np.ndarray:
    return table[np.clip(starts, 0, max(len(table) - 2, 0))].astype(np.int32) + offset


def _segments(tokenizer: Tokenizer, control: Control, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray,
              raw: bytes, text: str, want: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:  # fmt: skip
    """Byte ranges of both sides between control tokens, paired in order from both ends."""
    ours = _cuts([(int(starts[i]), int(ends[i])) for i in np.flatnonzero(np.isin(ids, list(control.ids)))], len(raw))
    theirs: list[tuple[int, int]] = []
    if control.pattern is not None:
        position, at = 0, 0
        for match in control.pattern.finditer(text):
            position += len(text[at : match.start()].encode())
            size = len(match[0].encode())
            theirs.append((position, position + size))
            position, at = position + size, match.end()
    other = _cuts(theirs, len(want))
    if len(ours) == len(other):
        return ours, other
    shared = min(len(ours), len(other))
    half = shared // 2
    head = next((i for i in range(shared) if raw[slice(*ours[i])] != want[slice(*other[i])]), shared)
    back = 0
    while back < shared - head and raw[slice(*ours[-1 - back])] == want[slice(*other[-1 - back])]:
        back += 1
    half = head
    middle_ours = (ours[half][0], ours[len(ours) - back - 1][1]) if half < len(ours) - back else None
    middle_other = (other[half][0], other[len(other) - back - 1][1]) if half < len(other) - back else None
    left = ours[:half] + ([middle_ours] if middle_ours and middle_other else []) + ours[len(ours) - back :]
    right = other[:half] + ([middle_other] if middle_ours and middle_other else []) + other[len(other) - back :]
    return left, right


def _cuts(controls: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    out, at = [], 0
    for start, end in controls:
        out += [(at, start), (start, end)]
        at = end
    return [*out, (at, size)]


def _match(raw: bytes, want: bytes, a: int, b: int, c: int, d: int, place: np.ndarray, ends: np.ndarray) -> None:
    """Maps the common head of raw[a:b] and want[c:d], in whole tokens, and then the common tail."""
    left, right = raw[a:b], want[c:d]
    head = _head(left, right)
    if head < len(left):
        whole = int(np.searchsorted(ends, a + head, side="right"))
        head = max(int(ends[whole - 1]) - a if whole else 0, 0)
    place[a : a + head] = np.arange(c, c + head)
    rest = min(len(left), len(right)) - head
    tail = _head(left[::-1][:rest], right[::-1][:rest])
    if tail:
        place[b - tail : b] = np.arange(d - tail, d)


def _nearest(place: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The mapped byte of each start, or that of the last mapped byte before it, or of the first one after."""
    known = np.flatnonzero(place >= 0)
    if not len(known):
        return np.zeros(len(starts), np.int64)
    index = np.clip(np.searchsorted(known, starts, side="right") - 1, 0, len(known) - 1)
    return place[known[index]]


def _head(left: bytes, right: bytes) -> int:
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    one, other = np.frombuffer(left, np.uint8, size), np.frombuffer(right, np.uint8, size)
    return int(np.flatnonzero(one != other)[0])
