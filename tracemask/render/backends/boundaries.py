"""Where a byte-level BPE tokenizer cuts a text into words before it merges: read from tokenizer.json."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, groupby
from typing import Any

from tracemask.render.backends import characters
from tracemask.render.backends.patterns import Pattern, Unsupported
from tracemask.render.vocabulary import parts_of

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ByteLevel with use_regex splits at (openai/gpt-2, encoder.py)."""


class Boundaries:
    """Cuts a text into words exactly as the package does; `covers` tells for which texts. Raises Unsupported."""

    def __init__(self, source: dict[str, Any]) -> None:
        steps = [(Pattern(text), whole) for text, whole in _steps(source)]
        if not steps:
            raise Unsupported("no pattern cuts the text")
        self._cuts = [_cut(pattern, whole=whole) for pattern, whole in steps]
        idle = [whole and not _finds_ascii(pattern) for pattern, whole in steps]
        self._ascii_cuts = [cut for cut, nothing in zip(self._cuts, idle, strict=True) if not nothing]
        normalizers = {part.get("type") for part in parts_of(source.get("normalizer"))}
        if normalizers - {"NFC"}:
            raise Unsupported(f"the normalizer {min(map(str, normalizers - {'NFC'}))}")
        self._nfc = "NFC" in normalizers
        self._unknown = _unknown(frozenset(text for pattern, _ in steps for text in pattern.folded))
        contents = [entry["content"] for entry in source.get("added_tokens") or []]
        added = {form for text in contents for form in (text, unicodedata.normalize("NFC", text)) if form}
        self._firsts = sorted({text[0] for text in added})
        self._added = re.compile(_any_of(sorted(added)))

    def covers(self, text: str) -> bool:
        """Whether `words` knows this text: stable characters, normalized, no text of an added token."""
        if not text.isascii():
            if self._unknown.search(text) or (self._nfc and not unicodedata.is_normalized("NFC", text)):
                return False
        return not any(map(text.__contains__, self._firsts)) or self._added.search(text) is None

    def words(self, text: str) -> list[str]:
        """The words in order; empty ones stand between them and mean nothing."""
        words = [text]
        for cut in self._ascii_cuts if text.isascii() else self._cuts:
            words = list(chain.from_iterable(map(cut, words)))
        return words


def _steps(source: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The patterns that cut a text one after the other, and whether what lies between their matches is kept too.

    ByteLevel must be the last step.
    """
    parts = parts_of(source.get("pre_tokenizer"))
    if not parts or parts[-1].get("type") != "ByteLevel":
        raise Unsupported("a pre-tokenizer that does not end with ByteLevel")
    for place, part in enumerate(parts, 1):
        kind = part.get("type")
        if kind == "Split" and (whole := _keeps(part)) is not None:
            pattern = part.get("pattern") or {}
            if "Regex" not in pattern:
                raise Unsupported("a Split at a fixed text")
            yield pattern["Regex"], whole
        elif kind == "Digits":
            yield (r"\p{N}" if part.get("individual_digits") else r"\p{N}+"), True
        elif kind == "ByteLevel" and place == len(parts) and part.get("add_prefix_space") is False:
            if part.get("use_regex", True):
                yield GPT2, True
        else:
            raise Unsupported(f"the pre-tokenizer {kind} with these settings")


def _keeps(split: dict[str, Any]) -> bool | None:
    """True: a Split keeps its matches and what lies between; False: its matches alone; None: something else."""
    behavior, invert = split.get("behavior"), bool(split.get("invert"))
    return True if behavior == "Isolated" else False if behavior == "Removed" and invert else None


def _cut(pattern: Pattern, *, whole: bool) -> Callable[[str], list[str]]:
    compiled = re.compile(f"({pattern.source})")
    return compiled.split if whole else compiled.findall


def _any_of(texts: list[str], *, depth: int = 8) -> str:
    """A pattern that finds something where one of the sorted texts stands: a tree, since `re` tries one by one."""
    if not depth:
        return "|".join(map(re.escape, texts))
    shared = os.path.commonprefix(texts)  # noqa: RUF071 — characters are meant, no paths
    rest = [text[len(shared) :] for text in texts]
    if "" in rest:
        return re.escape(shared)  # it stands wherever a longer one does
    branches = [_any_of(list(group), depth=depth - 1) for _, group in groupby(rest, key=lambda text: text[0])]
    return f"{re.escape(shared)}(?:{'|'.join(branches)})"


def _finds_ascii(pattern: Pattern) -> bool:
    """False where a pattern finds nothing in ASCII text: its matches begin elsewhere."""
    return pattern.first is None or any(map(re.compile(pattern.first).match, map(chr, range(128))))


@cache
def _unknown(folded: frozenset[str]) -> re.Pattern[str]:
    """Finds a character that is not stable, or that may match one of these ASCII texts found in any case."""

    def folds(character: str) -> bool:
        forms = (character.casefold(), character.lower(), character.upper().lower())
        ascii_forms = [form for form in forms if form.isascii()]
        return bool(ascii_forms) and any(form in text for form in ascii_forms for text in folded)

    return re.compile(f"[^{characters.where(lambda character, _: character.isascii() or not folds(character))}]")
