"""Text runs to ids with the character where each token starts; what repeats is encoded once. Knows no message."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tracemask.render.backends import flattened
from tracemask.render.control import Control
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.vocabulary import parts_of

CACHE_CHARACTERS = 32_000_000
"""Text kept per generation of the cache; two generations live at a time."""


class Mode(IntEnum):
    """What becomes of control-token text inside a run."""

    CONTENT = 0  # ordinary text: nobody but the template may steer
    POLICY = 1  # control tokens that are not special keep their ids: a model samples them
    IDS = 2  # as an engine that does not protect itself


class Run(NamedTuple):
    """A piece of text to encode by itself. anchored: other text stands before it."""

    text: str
    mode: Mode
    anchored: bool = True


_NOT_YET = np.zeros(0, np.int32)


class Encoded:
    """ids[n] int32 and starts[n] int32: the character of the run in which each token's first byte lies.

    A promise until `Encoder.fill`. found: control ids whose text the run holds and that were, or would have been,
    recognized.
    """

    __slots__ = ("found", "ids", "run", "starts")

    def __init__(self, run: Run | None, ids: np.ndarray = _NOT_YET, starts: np.ndarray = _NOT_YET) -> None:
        self.run, self.ids, self.starts = run, ids, starts
        self.found: tuple[int, ...] = ()


class Encoder:
    """Encodes runs in batches. Results depend on the run alone, never on the batch or the cache."""

    def __init__(self, tokenizer: Tokenizer, control: Control) -> None:
        self.tokenizer = tokenizer
        self.control = control
        self.encoded_characters = 0
        self._new: dict[Run, Encoded] = {}
        self._old: dict[Run, Encoded] = {}
        self._new_characters = 0
        self._wanted: list[Encoded] = []
        zero = np.zeros(1, np.int32)
        self.controls = {token: Encoded(None, np.array([token], np.int32), zero) for token in sorted(control.ids)}
        self._control_table = np.zeros(tokenizer.size, bool)
        self._control_table[list(control.ids)] = True
        self._prefix_sensitive = tokenizer.prefix_sensitive
        self._anchor = _anchor(tokenizer) if self._prefix_sensitive else ""
        normalizers = {part.get("type") for part in parts_of(tokenizer.json.get("normalizer"))}
        self._lengths_decide = tokenizer.byte_level and normalizers <= {"NFC"}
        self._nfc = "NFC" in normalizers

    def want(self, run: Run) -> Encoded:
        """The encoding of a run: its ids stand after the next `fill`."""
        known = self._new.get(run)
        if known is None:
            known = self._old.get(run)
            if known is None:
                known = Encoded(run)
                self._wanted.append(known)
            self._new[run] = known
            self._new_characters += len(run[0]) + 64
        return known

    def get(self, run: Run) -> Encoded:
        """The encoding of a run, encoding it now where nobody asked for it before."""
        known = self.want(run)
        if known.ids is _NOT_YET:
            self.fill()
        return known

    def forget(self) -> None:
        """Drops what was remembered; results do not change."""
        self._new, self._old, self._wanted, self._new_characters = {}, {}, [], 0

    def fill(self) -> None:
        """Encode every wanted run in one call of the backend."""
        wanted, self._wanted = self._wanted, []
        if not wanted:
            return
        runs = [promise.run for promise in wanted if promise.run is not None]
        try:
            flat, counts = self._encoded([run.text for run in runs], [run.anchored for run in runs])
            self._store(wanted, runs, flat, counts)
        except BaseException:
            self.forget()  # a promise that was not kept must not be found again
            raise
        if self._new_characters > CACHE_CHARACTERS:
            self._old, self._new, self._new_characters = self._new, {}, 0

    # ------------------------------------------------------------------

    def _encoded(self, texts: list[str], anchored: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """(ids of all texts, count of each)."""
        self.encoded_characters += sum(map(len, texts))
        if not self._prefix_sensitive:
            return self.tokenizer.engine.encode_flat(texts)
        behind = [self._anchor + text if after else text for text, after in zip(texts, anchored, strict=True)]
        batch = self.tokenizer.engine.encode_batch(behind)
        return flattened([ids[1:] if after else ids for after, ids in zip(anchored, batch, strict=True)])

    def _store(self, promises: list[Encoded], runs: list[Run], flat: np.ndarray, counts: np.ndarray) -> None:
        ends = np.cumsum(counts)
        lengths = self.tokenizer.byte_lengths[flat]
        after = np.cumsum(lengths, dtype=np.int64)
        controls = np.flatnonzero(self._control_table[flat])
        special_runs = set(np.searchsorted(ends, controls, side="right").tolist()) if len(controls) else set()
        at_end = np.concatenate([np.zeros(1, np.int64), after])[np.append(0, ends)]
        positions = (after - lengths - np.repeat(at_end[:-1], counts)).astype(np.int32)
        totals = np.diff(at_end).tolist() if self._lengths_decide else [-1] * len(runs)
        first = 0
        for index, (promise, (text, _, _), end, total) in enumerate(zip(promises, runs, ends.tolist(), totals)):
            ids = flat[first:end]
            if index in special_runs:
                self._protect(promise, runs[index], ids)
            else:
                promise.ids = ids
                plain = total == len(text) and text.isascii()
                starts = positions[first:end]
                promise.starts = starts if plain else self._characters(runs[index], ids, starts, total)
            first = end

    def _protect(self, promise: Encoded, run: Run, ids: np.ndarray) -> None:
        """The run holds control-token text: keep, or encode again with those tokens taken out."""
        found = tuple(sorted(set(ids[self._control_table[ids]].tolist())))
        forbidden = {Mode.CONTENT: self.control.ids, Mode.POLICY: self.control.special, Mode.IDS: frozenset()}[run.mode]
        if forbidden & set(found):
            copy = self.tokenizer.without(frozenset(forbidden))
            text = self._anchor + run.text if self._prefix_sensitive and run.anchored else run.text
            again = copy.encode_batch([text])[0]
            if self._prefix_sensitive and run.anchored:
                again = again[len(copy.encode_batch([self._anchor])[0]) :]
            ids = np.asarray(again, np.int32)
            bad = forbidden & set(again)
            if bad:
                raise AssertionError(f"control ids {sorted(bad)} came out of ordinary text")
        lengths = self.tokenizer.byte_lengths[ids].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        promise.starts = self._characters(run, ids, starts.astype(np.int32), int(lengths.sum()), forbidden=forbidden)
        promise.ids, promise.found = ids, found

    def _characters(self, run: Run, ids: np.ndarray, starts: np.ndarray, total: int,
                    forbidden: frozenset[int] = frozenset()) -> np.ndarray:  # fmt: skip
        """Byte positions as character positions, where the bytes are the text's own; else the package's offsets."""
        text = run.text
        ascii_only = text.isascii()
        if self._lengths_decide:
            size = len(text) if ascii_only else len(text.encode())
            same = size == total and (ascii_only or not self._nfc or unicodedata.is_normalized("NFC", text))
        else:
            table = self.tokenizer.id_table
            same = b"".join([table[token] for token in ids.tolist()]) == text.encode()
        if not same:
            return self._offsets(run, ids, forbidden)
        return starts if ascii_only else byte_to_character(text)[starts]

    def _offsets(self, run: Run, ids: np.ndarray, forbidden: frozenset[int]) -> np.ndarray:
        engine = self.tokenizer.without(forbidden) if forbidden else self.tokenizer.reference
        skip, text = 0, run.text
        if self._prefix_sensitive and run.anchored:
            skip, text = len(self._anchor), self._anchor + run.text
        found, offsets = engine.offsets(text)
        drop = len(found) - len(ids)
        if found[drop:] != ids.tolist():
            raise AssertionError("offsets speak of other ids than the batch")
        last = max(len(run.text) - 1, 0)
        return np.asarray([min(max(start - skip, 0), last) for start, _ in offsets[drop:]], np.int32)


def byte_to_character(text: str) -> np.ndarray:
    """index[b]: the character in which byte b of `text`'s UTF-8 lies; one entry more for the end."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    index = np.cumsum((encoded & 0xC0) != 0x80, dtype=np.int32) - 1
    return np.append(index, np.int32(len(text)))


def concatenated(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """np.concatenate that also takes no parts."""
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _anchor(tokenizer: Tokenizer) -> str:
    """A special token that strips nothing: text behind it encodes as text in the middle of a conversation."""
    for token in sorted(tokenizer.added.values(), key=lambda entry: entry.id):
        if token.special and not token.lstrip and not token.rstrip:
            return token.content
    return ""
