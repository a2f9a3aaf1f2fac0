"""A tokenizer's split pattern (Oniguruma's syntax) as one of Python's `re`, for text of stable characters only.

What is not known to mean the same in both is refused, so a translation that comes out is exact.
"""

from __future__ import annotations

import re

from tracemask.render.backends import characters
from tracemask.render.backends.characters import WHITE_SPACE, escaped, ranges

_GROUPS = {"(?:": "(?:", "(?i:": "(?:", "(?=": "(?=", "(?!": "(?!"}
_CONTROLS = {"r": "\r", "n": "\n", "t": "\t", "f": "\f", "v": "\v"}
_QUANTIFIER = re.compile(r"([?*+]|\{\d+(?:,\d*)?\})([?+]?)")
_RUN = re.compile(r"(\[[^]]*\])(?:\+|\{1,(\d+)\})")
_LARGEST = 1000
"""Characters of a pattern beyond which it is not looked at, and repetitions beyond which it is refused."""


class Unsupported(ValueError):
    """The pattern, or the tokenizer, has something whose meaning is not certain here; the text says what."""


class Pattern:
    """source: the pattern for `re`. folded: the texts that it finds in any case.

    first: where the pattern is a run of one class of characters, that class; a match begins at each of them.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LARGEST:
            raise Unsupported(f"a pattern of {len(text)} characters")
        self._text = text
        self._at = 0
        self.folded: list[str] = []
        self.source, shortest = self._alternatives(fold=False)
        if self._at < len(text):
            raise Unsupported("a ) without its (")
        if not shortest:
            raise Unsupported("a pattern that finds the empty text")
        run = _RUN.fullmatch(self.source)
        self.first = run[1] if run else None
        if run:  # `re` skips quickly to a character that stands alone
            self.source = run[1] + run[1] + (f"{{0,{int(run[2]) - 1}}}" if run[2] else "*")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self, *, fold: bool) -> tuple[str, int]:
        """(source, characters of the shortest match) up to ) or the end."""
        found = [self._sequence(fold=fold)]
        while self._next() == "|":
            self._at += 1
            found.append(self._sequence(fold=fold))
        return "|".join(source for source, _ in found), min(shortest for _, shortest in found)

    def _sequence(self, *, fold: bool) -> tuple[str, int]:
        source, shortest = "", 0
        if fold:
            self.folded.append("")
        while self._next() not in ("", "|", ")"):
            atom, width = self._atom(fold=fold)
            match = _QUANTIFIER.match(self._text, self._at)
            if match:
                width *= self._repeated(match, atom, fold=fold)
                atom += match[0]
                self._at = match.end()
            source, shortest = source + atom, shortest + width
        return source, shortest

    def _repeated(self, match: re.Match[str], atom: str, *, fold: bool) -> int:
        """The least number of repetitions; a repetition that the two languages read differently is refused."""
        counts = [int(count) for count in re.findall(r"\d+", match[1])]
        if fold or atom.startswith(("(?=", "(?!")) or max(counts, default=0) > _LARGEST:
            raise Unsupported(f"{match[0]} here")
        if (counts and match[2]) or (counts[1:] and counts[1] < counts[0]):
            raise Unsupported(f"the repetition {match[0]}")
        if _QUANTIFIER.match(self._text, match.end()):
            raise Unsupported("a repetition of a repetition")
        return counts[0] if counts else int(match[1] == "+")

    def _atom(self, *, fold: bool) -> tuple[str, int]:
        character = self._next()
        if character == "(":
            return self._group(fold=fold)
        if character == "[":
            return (self._folded_class() if fold else self._class()), 1
        if character in ".^$?*+{}]":
            raise Unsupported(f"{character} as a part of a pattern")
        self._at += 1
        if character != "\\":
            return self._literal(character, fold=fold), 1
        name = self._next()
        if fold and (name in "spS"):
            raise Unsupported(f"\\{name} in any case")
        if name == "S":
            self._at += 1
            return f"[^{ranges(WHITE_SPACE)}]", 1
        kind = self._kind()
        return (f"[{kind}]", 1) if kind else (self._literal(self._escape(), fold=fold), 1)

    def _literal(self, character: str, *, fold: bool) -> str:
        if not fold:
            return escaped(ord(character))
        if not character.isascii():
            raise Unsupported(f"{character!r} in any case")
        self.folded[-1] += character.lower()
        return f"[{ranges({character.lower(), character.upper()})}]"

    def _group(self, *, fold: bool) -> tuple[str, int]:
        opening = next((start for start in _GROUPS if self._text.startswith(start, self._at)), None)
        if opening is None or fold:
            raise Unsupported(f"the group {self._text[self._at : self._at + 4]}…")
        self._at += len(opening)
        source, shortest = self._alternatives(fold=opening == "(?i:")
        if self._next() != ")":
            raise Unsupported("a ( without its )")
        self._at += 1
        return f"{_GROUPS[opening]}{source})", 0 if opening in ("(?=", "(?!") else shortest

    def _kind(self) -> str:
        """\\s or \\p{…} behind a backslash as ranges; "" where it is neither."""
        if self._next() == "s":
            self._at += 1
            return ranges(WHITE_SPACE)
        match = re.compile(r"p\{(\w+)\}").match(self._text, self._at)
        if match is None:
            return ""
        if match[1] not in characters.kinds():
            raise Unsupported(f"\\p{{{match[1]}}}")
        self._at = match.end()
        return characters.of_kind(match[1])

    def _escape(self) -> str:
        """The one character that stands behind a backslash."""
        name = self._next()
        if name not in _CONTROLS and (not name or not name.isascii() or name.isalnum()):
            raise Unsupported(f"\\{name}")
        self._at += 1
        return _CONTROLS.get(name, name)

    def _folded_class(self) -> str:
        """A class of ASCII letters that is all of its alternative."""
        match = re.compile(r"\[([A-Za-z]+)\](?=[|)])").match(self._text, self._at)
        if match is None or self.folded[-1]:
            raise Unsupported("a class in any case")
        self._at = match.end()
        self.folded += match[1].lower()
        return f"[{ranges({*match[1].lower(), *match[1].upper()})}]"

    def _class(self) -> str:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        inside = ""
        while self._next() != "]" or not inside:
            inside += self._member()
        self._at += 1
        return f"[{'^' * negated}{inside}]"

    def _member(self) -> str:
        """A kind, a range or a character of a class."""
        if self._next() == "\\":
            self._at += 1
            kind = self._kind()
            if kind:
                if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                    raise Unsupported("a range that begins with a kind")
                return kind
            self._at -= 1
        first = self._member_character()
        if self._next() != "-" or self._text[self._at + 1 : self._at + 2] == "]":
            return escaped(ord(first))
        self._at += 1
        last = self._member_character()
        if first > last:
            raise Unsupported(f"the range {first!r} to {last!r}")
        return f"{escaped(ord(first))}-{escaped(ord(last))}"

    def _member_character(self) -> str:
        character = self._next()
        if character in ("", "[", "]") or self._text.startswith("&&", self._at):
            raise Unsupported(f"{character!r} inside a class")
        self._at += 1
        return self._escape() if character == "\\" else character
