"""Where a reply's sampled ids differ from what its render gives, and why. Compares bytes, never decoded guesses.

Causes: same bytes: bpe_split, special_token_text; other bytes: invalid_utf8, nfc, whitespace_trim, think_strip,
json_reserialize, tool_call_lost, text_changed. Ids that no tokenizer would write are check's to find (TM202, TM213).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from tracemask.render.parts import CALL_TAGS, REASONING_TAGS
from tracemask.render.tokenizer import Tokenizer

_REASONING = re.compile(
    "|".join(f"{re.escape(a)}.*?(?:{re.escape(b)}|\\Z)" for a, b in REASONING_TAGS if a.startswith(("<", "[", "◁"))),
    re.DOTALL,
)
_CALL_OPENERS = tuple(opener for opener, _ in CALL_TAGS)
_JSON_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Departure:
    """ids[first:end] differ from the `expected` ones; what lies before and after is equal."""

    first: int
    end: int
    cause: str
    expected: tuple[int, ...]

    @property
    def changed(self) -> int:
        """How many ids training on the re-encoding would get wrong."""
        return self.end - self.first


def compare(tokenizer: Tokenizer, sampled: Sequence[int], rendered: Sequence[int]) -> Departure | None:
    """How one reply's sampled ids differ from the ids of its render; None where they are equal."""
    left, right = [int(token) for token in sampled], [int(token) for token in rendered]
    if left == right:
        return None
    head = common_prefix(left, right)
    tail = common_prefix(left[head:][::-1], right[head:][::-1])
    cause = cause_of(tokenizer, left, right)
    return Departure(head, max(len(left) - tail, head), cause, tuple(right[head : len(right) - tail]))


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
