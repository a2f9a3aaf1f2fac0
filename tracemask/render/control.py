"""Which added tokens steer the model, and where the template itself wrote them. Knows no message and no author."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tracemask.core.vocab import Origin
from tracemask.render.text import RenderedText
from tracemask.render.tokenizer import Tokenizer

TRUSTED_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "model")
)
"""Role names of which templates compose control tokens ("<|" + role + "|>"); any other role is data."""

MAX_LITERALS = 4096
"""Literals whose control tokens are remembered; a template has few."""


class Mark(NamedTuple):
    """A control token of the template's own: characters [start, end) of a rendered text and its id."""

    start: int
    end: int
    id: int


@dataclass(frozen=True)
class Control:
    """The control tokens of one (tokenizer, template): special ones plus added ones that the template writes.

    special: ids of special tokens. ids: all control ids. White space is never control (Gemma 3 adds "\\n\\n").
    """

    special: frozenset[int]
    ids: frozenset[int]
    pattern: re.Pattern[str] | None
    id_of: dict[str, int]
    strip_left: frozenset[int]
    strip_right: frozenset[int]
    literals: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer, template_source: str) -> Control:
        """Added tokens whose text stands in the template's source count as written by it."""
        tokens = [
            token
            for token in tokenizer.added.values()
            if token.content.strip() and (token.special or token.content in template_source)
        ]
        longest = sorted((token.content for token in tokens), key=lambda text: (-len(text), text))
        return cls(
            special=frozenset(token.id for token in tokens if token.special),
            ids=frozenset(token.id for token in tokens),
            pattern=re.compile("|".join(map(re.escape, longest))) if longest else None,
            id_of={token.content: token.id for token in tokens},
            strip_left=frozenset(token.id for token in tokens if token.lstrip),
            strip_right=frozenset(token.id for token in tokens if token.rstrip),
        )

    def marks(self, rendered: RenderedText) -> list[Mark]:
        """Every control token that lies in characters of the template's own, in order."""
        if self.pattern is None:
            return []
        text, cache = rendered.text, self.literals
        found: list[Mark] = []
        for start, end in trusted_ranges(rendered):
            literal = text[start:end]
            places = cache.get(literal)
            if places is None:
                places = [(m.start(), m.end(), self.id_of[m[0]]) for m in self.pattern.finditer(literal)]
                if len(cache) < MAX_LITERALS:
                    cache[literal] = places
            for first, last, token in places:
                found.append(new_mark(Mark, (start + first, start + last, token)))
        if self.strip_left or self.strip_right:
            return [self._widened(text, mark.start, mark.end, mark.id) for mark in found]
        return found

    def _widened(self, text: str, start: int, end: int, token_id: int) -> Mark:
        """White space that the token swallows belongs to it, as in the tokenizer."""
        if token_id in self.strip_right:
            while end < len(text) and text[end].isspace():
                end += 1
        if token_id in self.strip_left:
            while start > 0 and text[start - 1].isspace():
                start -= 1
        return Mark(start, end, token_id)


new_mark = tuple.__new__


def trusted_ranges(rendered: RenderedText) -> list[tuple[int, int]]:
    """Maximal ranges of characters that no message's author could choose: literals, and the names of known roles.

    A control token may be composed of several of them.
    """
    ranges: list[tuple[int, int]] = []
    opened = -1
    literal, field_of_message, text = Origin.RENDERER, Origin.FIELD, rendered.text
    for start, end, _, _, origin, path, _ in rendered.spans:
        if origin is literal or (
            origin is field_of_message and path == ("role",) and text[start:end].lower() in TRUSTED_ROLES
        ):
            if opened < 0:
                opened = start
        elif opened >= 0:
            ranges.append((opened, start))
            opened = -1
    if opened >= 0:
        ranges.append((opened, len(text)))
    return ranges
