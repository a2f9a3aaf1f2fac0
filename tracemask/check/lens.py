"""A tokenizer as tables: bytes and kind of every id, and which runs of ids re-encode to themselves. Knows no rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tracemask.render.tokenizer import Tokenizer

CACHED_RUNS = 1 << 17  # runs remembered as canonical, across blocks


@dataclass(frozen=True, slots=True)
class Runs:
    """Ordinary-token runs that do not re-encode to themselves, flat half-open ranges.

    canonical: what the tokenizer makes of the same bytes, None where the bytes are not UTF-8 even after trimming.
    trimmed: the range whose bytes are whole characters; tokens of the run outside it hold a part of a character.
    """

    start: int
    end: int
    trimmed: tuple[int, int]
    canonical: list[int] | None


class Lens:
    """Tables over ids [0, size) of `tokenizer`, and re-encoding of runs between added tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = int(tokenizer.size)
        self._known: set[bytes] = set()

    @cached_property
    def _bytes(self) -> list[bytes]:
        return self.tokenizer.id_table

    @cached_property
    def byte_length(self) -> np.ndarray:
        """byte_length[size] int32."""
        return self.tokenizer.byte_lengths

    @cached_property
    def _pool(self) -> tuple[np.ndarray, np.ndarray]:
        pool = np.frombuffer(b"".join(self._bytes), dtype=np.uint8)
        return pool, np.concatenate([[0], np.cumsum(self.byte_length, dtype=np.int64)])

    @cached_property
    def added(self) -> np.ndarray:
        """added[size] bool: the id is an added token, never made of ordinary text."""
        return self._flags(self.tokenizer.added)

    @cached_property
    def special(self) -> np.ndarray:
        """special[size] bool."""
        return self._flags([i for i, token in self.tokenizer.added.items() if token.special])

    @cached_property
    def known(self) -> np.ndarray:
        """known[size] bool: the id has bytes or is an added token; the others are holes."""
        return (self.byte_length > 0) | self.added

    @cached_property
    def stop(self) -> np.ndarray:
        """stop[size] bool: ids that end a turn according to the tokenizer's folder."""
        return self._flags(self.stops)

    @cached_property
    def replacement(self) -> np.ndarray:
        """replacement[size] bool: the id's bytes hold U+FFFD."""
        return self._flags([i for i, raw in enumerate(self._bytes) if b"\xef\xbf\xbd" in raw])

    @cached_property
    def stops(self) -> frozenset[int]:
        """Ids that end a turn according to the tokenizer's folder."""
        found: list[int] = list(self.tokenizer.stop_ids)  # type: ignore[arg-type]
        return frozenset(found)

    @property
    def bos(self) -> int | None:
        """The id that begins a document, where the tokenizer has one."""
        return self.tokenizer.bos_id

    @cached_property
    def pads(self) -> frozenset[int]:
        """Ids that pad: the declared pad token and added tokens that call themselves so."""
        declared = self.tokenizer.token_strings.get("pad_token")
        return frozenset(
            i for i, token in self.tokenizer.added.items() if token.content == declared or _PAD.fullmatch(token.content)
        )

    def _flags(self, ids: Any) -> np.ndarray:
        flags = np.zeros(self.size, dtype=bool)
        chosen = np.array([i for i in ids if 0 <= i < self.size], dtype=np.int64)
        flags[chosen] = True
        return flags

    def id_of(self, content: str) -> int | None:
        """The id of the added token spelled `content`."""
        return self._by_content.get(content)

    @cached_property
    def _by_content(self) -> dict[str, int]:
        return {token.content: i for i, token in self.tokenizer.added.items()}

    def clean(self, ids: np.ndarray) -> np.ndarray:
        """`ids` with ids outside the vocabulary replaced by 0, so that tables can be indexed."""
        wrong = (ids < 0) | (ids >= self.size)
        return np.where(wrong, 0, ids) if wrong.any() else ids

    def bytes_of(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """The bytes of `ids` laid end to end, and offsets[N + 1] of each token in them. Ids must be in range."""
        pool, begin = self._pool
        lengths = self.byte_length[ids]
        offsets = np.empty(len(ids) + 1, dtype=np.int64)
        offsets[0] = 0
        np.cumsum(lengths, out=offsets[1:])
        where = np.repeat(begin[ids] - offsets[:-1], lengths)
        where += np.arange(int(offsets[-1]))
        return pool[where].tobytes(), offsets

    def text(self, ids: Sequence[int] | np.ndarray) -> str:
        """For messages only: the text of `ids`, bad bytes as U+FFFD."""
        return b"".join(self._bytes[i] for i in map(int, ids) if 0 <= i < self.size).decode("utf-8", "replace")

    def encode_plain(self, texts: list[str]) -> list[list[int]]:
        """Each text as ordinary tokens: no added token is recognised."""
        return self.tokenizer.plain_batch(texts)

    def encode(self, text: str) -> list[int]:
        """`text` with control tokens as ids."""
        return list(self.tokenizer.encode(text, control="ids"))

    def noncanonical(
        self, ids: np.ndarray, raw: bytes, offsets: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> list[Runs]:
        """The runs [starts, ends) of ordinary tokens in `ids` that do not re-encode to themselves.

        raw, offsets: `bytes_of(ids)`. A run seen before and found canonical is not encoded again.
        """
        flat = np.ascontiguousarray(ids, dtype=np.int32)
        memory = memoryview(flat.tobytes())
        asked: dict[bytes, int] = {}
        texts: list[str] = []
        where: list[tuple[int, int, bytes]] = []
        broken: list[tuple[int, int]] = []
        begins, finishes = offsets[starts].tolist(), offsets[ends].tolist()
        for start, end, b0, b1 in zip(starts.tolist(), ends.tolist(), begins, finishes, strict=True):
            key = bytes(memory[4 * start : 4 * end])
            if key in self._known or key in asked:
                if key in asked:
                    where.append((start, end, key))
                continue
            try:
                text = raw[b0:b1].decode()
            except UnicodeDecodeError:
                broken.append((start, end))
                continue
            asked[key] = len(texts)
            texts.append(text)
            where.append((start, end, key))
        encoded = self.encode_plain(texts)
        odd = self._odd(flat, where, {key: encoded[at] for key, at in asked.items()})
        return sorted([*odd, *self._trimmed(flat, raw, offsets, broken)], key=lambda run: run.start)

    def _odd(
        self, ids: np.ndarray, where: list[tuple[int, int, bytes]], canonical: dict[bytes, list[int]]
    ) -> Iterator[Runs]:
        """The runs whose ids are not `canonical`, by the bytes of their ids; the others are remembered."""
        verdict: dict[bytes, bool] = {}
        for start, end, key in where:
            if key not in verdict:
                verdict[key] = canonical[key] == ids[start:end].tolist()
                if verdict[key]:
                    self._remember(key)
            if not verdict[key]:
                yield Runs(start, end, (start, end), canonical[key])

    def _remember(self, key: bytes) -> None:
        if len(self._known) >= CACHED_RUNS:
            self._known.clear()
        self._known.add(key)

    def _trimmed(self, ids: np.ndarray, raw: bytes, offsets: np.ndarray, broken: list[tuple[int, int]]) -> list[Runs]:
        """Runs whose bytes are not UTF-8: cut tokens with half characters off both ends and try again."""
        ranges, texts, out = [], [], []
        for start, end in broken:
            a, b = whole_characters(raw, offsets, start, end)
            try:
                texts.append(raw[int(offsets[a]) : int(offsets[b])].decode())
                ranges.append((start, end, a, b))
            except UnicodeDecodeError:
                out.append(Runs(start, end, (a, b), None))
        for (start, end, a, b), canonical in zip(ranges, self.encode_plain(texts), strict=True):
            out.append(Runs(start, end, (a, b), canonical))
        return out


_PAD = re.compile(r"\W*(finetune_right_)?pad(ding)?(_id|_token)?\W*", re.IGNORECASE)
_HEAD = re.compile(rb"[\x80-\xbf]{1,3}")
_TAIL = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")


def whole_characters(raw: bytes, offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The tokens of [start, end) without those that hold a part of a character at either edge of the run."""
    b0, b1 = int(offsets[start]), int(offsets[end])
    head = _HEAD.match(raw, b0, b1)
    a = start
    while head and a < end and int(offsets[a]) < head.end():
        a += 1
    b = end
    tail = _TAIL.search(raw[max(b0, b1 - 4) : b1])
    if tail:
        cut = b1 - (len(tail[0]))
        while b > a and int(offsets[b]) > cut:
            b -= 1
    return a, b
