"""Where ids differ from what an encoder or a template would give, and why. Compares bytes, never decoded guesses.

Causes: same bytes: bpe_split, boundary_merge, special_token_text; other bytes: invalid_utf8, nfc, whitespace_trim,
think_strip, json_reserialize, tool_call_lost, text_changed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracemask.render.parts import CALL_TAGS, REASONING_TAGS
from tracemask.render.tokenizer import Tokenizer

CAUSES = (
    "bpe_split", "boundary_merge", "special_token_text", "invalid_utf8", "nfc", "whitespace_trim", "think_strip",
    "json_reserialize", "tool_call_lost", "text_changed",
)  # fmt: skip
_REASONING = re.compile(
    "|".join(f"{re.escape(a)}.*?(?:{re.escape(b)}|\\Z)" for a, b in REASONING_TAGS if a.startswith(("<", "[", "◁"))),
    re.DOTALL,
)
_CALL_OPENERS = tuple(opener for opener, _ in CALL_TAGS)
_JSON_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Departure:
    """ids[start:end] differ from what was expected; `first` is the first differing index (start <= first < end or end).

    expected: the other ids; None where the bytes are no text. edge: cut-off UTF-8 at an end of a run, as a length
    limit leaves it.
    """

    start: int
    end: int
    first: int
    cause: str
    expected: tuple[int, ...] | None = None
    edge: bool = False

    @property
    def changed(self) -> int:
        """How many ids training on the re-encoding would get wrong."""
        return self.end - self.start


def diagnose(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Departure]:
    """Every place where `ids` are not the tokenizer's own encoding of their bytes. Empty: canonical.

    Split at added tokens; UTF-8 cut at a run's edges is set aside (`edge`); the rest is encoded without added tokens.
    """
    return list(_diagnose(tokenizer, [int(token) for token in ids]))


def compare(tokenizer: Tokenizer, sampled: Sequence[int], rendered: Sequence[int]) -> Departure | None:
    """How one reply's sampled ids differ from the ids of its render; None where they are equal.

    start and end bound the differing sampled ids: what lies before and after is equal.
    """
    left, right = [int(token) for token in sampled], [int(token) for token in rendered]
    if left == right:
        return None
    head = common_prefix(left, right)
    tail = common_prefix(left[head:][::-1], right[head:][::-1])
    start, end = head, max(len(left) - tail, head)
    cause = cause_of(tokenizer, left, right)
    return Departure(start, end, head, cause, tuple(right[head : len(right) - tail]))


def cause_of(tokenizer: Tokenizer, sampled: Sequence[int], rendered: Sequence[int]) -> str:
    """The cause for two unequal id lists that stand for the same reply."""
    left, right = tokenizer.decode_bytes(sampled), tokenizer.decode_bytes(rendered)
    if left == right:
        added = set(tokenizer.added)
        ours, theirs = [i for i in sampled if i in added], [i for i in rendered if i in added]
        return "bpe_split" if ours == theirs else "special_token_text"
    try:
        text = left.decode()
    except UnicodeDecodeError:
        return "invalid_utf8"
    return cause_of_text(text, right.decode(errors="replace"))


def cause_of_text(sampled: str, rendered: str) -> str:
    """The cause where the rendered text differs from the sampled text."""
    if unicodedata.normalize("NFC", sampled) == unicodedata.normalize("NFC", rendered):
        return "nfc"
    if sampled.split() == rendered.split() or "".join(sampled.split()) == "".join(rendered.split()):
        inner = _JSON_SPACE.sub(r"\1", sampled) == _JSON_SPACE.sub(r"\1", rendered)
        has_call = any(opener in sampled for opener in _CALL_OPENERS)
        trimmed = _without_calls(sampled).split() == _without_calls(rendered).split()
        return (
            "json_reserialize"
            if has_call and inner and trimmed and _calls_differ(sampled, rendered)
            else "whitespace_trim"
        )
    bare = _REASONING.sub("", _without_lone_closer(sampled))
    if bare != sampled and bare.split() == _REASONING.sub("", rendered).split():
        return "think_strip"
    if any(opener in sampled and opener not in rendered for opener in _CALL_OPENERS):
        return "tool_call_lost"
    if _json_values(sampled) and _json_values(sampled) == _json_values(rendered):
        return "json_reserialize"
    return "text_changed"


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


# ---------------------------------------------------------------------------------------------- canonicality


def _diagnose(tokenizer: Tokenizer, ids: list[int]) -> Iterator[Departure]:
    runs = list(_ordinary_runs(tokenizer, ids))
    windows = [_text_window(tokenizer, ids, start, end) for start, end in runs]
    texts = [text for _, _, text, _ in windows if text is not None]
    encoded = iter(tokenizer.plain_batch(texts) if texts else [])
    for (start, end), (first, last, text, broken) in zip(runs, windows, strict=True):
        if text is None:
            yield Departure(start, end, start + broken, "invalid_utf8")
            continue
        expected = next(encoded)
        if start < first:
            yield Departure(start, first, start, "invalid_utf8", edge=True)
        found = ids[first:last]
        if found != expected:
            yield _departure(tokenizer, found, expected, first, text)
        if last < end:
            yield Departure(last, end, last, "invalid_utf8", edge=True)


def _departure(tokenizer: Tokenizer, found: list[int], expected: list[int], offset: int, text: str) -> Departure:
    head = common_prefix(found, expected)
    tail = common_prefix(found[head:][::-1], expected[head:][::-1])
    same = tokenizer.decode_bytes(expected) == text.encode()
    cause = "bpe_split" if same else "nfc" if unicodedata.normalize("NFC", text) != text else "text_changed"
    end = max(len(found) - tail, head)
    return Departure(offset + head, offset + end, offset + head, cause, tuple(expected[head : len(expected) - tail]))


def _ordinary_runs(tokenizer: Tokenizer, ids: list[int]) -> Iterator[tuple[int, int]]:
    start: int | None = None
    for index, token in enumerate(ids):
        if token in tokenizer.added:
            if start is not None:
                yield start, index
            start = None
        elif start is None:
            start = index
    if start is not None:
        yield start, len(ids)


def _text_window(tokenizer: Tokenizer, ids: list[int], start: int, end: int) -> tuple[int, int, str | None, int]:
    """(first, last, text, token index of the fault): the widest window of [start, end) whose bytes are UTF-8."""
    pieces = [tokenizer.id_bytes(token) for token in ids[start:end]]
    raw = b"".join(pieces)
    try:
        return start, end, raw.decode(), 0
    except UnicodeDecodeError:
        pass
    skip = 0
    while skip < 3 and skip < len(raw) and raw[skip] & 0xC0 == 0x80:
        skip += 1
    first, seen = start, 0
    while seen < skip and first < end:
        seen += len(pieces[first - start])
        first += 1
    last = end
    while last > first and end - last < 4:
        try:
            return first, last, b"".join(pieces[first - start : last - start]).decode(), 0
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                return start, end, None, _token_at(pieces, seen + error.start)
            last -= 1
    return first, first, "", 0


def _token_at(pieces: Sequence[bytes], position: int) -> int:
    at = 0
    for index, piece in enumerate(pieces):
        at += len(piece)
        if position < at:
            return index
    return len(pieces) - 1


# ---------------------------------------------------------------------------------------------- text


def _without_lone_closer(text: str) -> str:
    """The text behind a reasoning block whose opener stood in the prompt."""
    for opener, closer in REASONING_TAGS:
        if closer in text and opener not in text and opener.startswith(("<", "[", "◁")) and "channel" not in opener:
            return text.partition(closer)[2]
    return text


def _without_calls(text: str) -> str:
    """The text without what stands between call tags: a context has several calls, and names the tags in its tools."""
    for opener, closer in CALL_TAGS:
        kept, *blocks = text.split(opener)
        text = kept + "".join(block.partition(closer)[2] if closer else "" for block in blocks)
    return text


def _calls_differ(left: str, right: str) -> bool:
    return _json_texts(left) != _json_texts(right)


def _json_texts(text: str) -> list[str]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        try:
            _, end = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        found.append(text[at:end])
        at = end
    return found


def _json_values(text: str) -> list[object]:
    return [json.loads(part) for part in _json_texts(text)]
