"""Characters whose kind is the same in every Unicode version that a tokenizer may be built on."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import cache

EMOJI = ((0x2600, 0x27C0), (0x2B50, 0x2B56), (0x1F300, 0x1F3FB), (0x1F400, 0x1F650), (0x1F680, 0x1F6C6))
"""Half-open ranges in which every character of kind So has been one since Unicode 8 (2015)."""

WHITE_SPACE = frozenset(map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
                                  0x2028, 0x2029, 0x202F, 0x205F, 0x3000)))  # fmt: skip
"""The property White_Space, which a pattern's \\s means (Unicode Character Database, PropList)."""


@cache
def stable() -> dict[str, str]:
    """Each stable character with its general category, in the order of code points.

    Stable: assigned in Unicode 3.2 (2002) and of the same category in this Python's version, or an old emoji.
    Surrogates and private characters are not.
    """
    old, new = unicodedata.ucd_3_2_0.category, unicodedata.category
    found = {character: old(character) for character in map(chr, range(0x10000))}
    kept = {c: kind for c, kind in found.items() if kind == new(c) and kind not in ("Cn", "Cs", "Co")}
    kept.update({c: "So" for first, end in EMOJI for c in map(chr, range(first, end)) if new(c) == "So"})
    return dict(sorted(kept.items()))


@cache
def kinds() -> frozenset[str]:
    """General categories that a pattern may ask for, in \\p's short spelling: Lu, and L for all that begin so."""
    found = set(stable().values())
    return frozenset(found | {kind[0] for kind in found})


def where(test: Callable[[str, str], bool]) -> str:
    """The stable characters for which test(character, category) holds, as ranges of a `re` class."""
    return ranges(character for character, kind in stable().items() if test(character, kind))


@cache
def of_kind(name: str) -> str:
    """\\p{name} as ranges of a `re` class; name is one of kinds()."""
    return where(lambda _, kind: kind.startswith(name))


def ranges(characters: Iterable[str]) -> str:
    """Characters as escaped ranges, to stand between [ and ]."""
    spans: list[list[int]] = []
    for point in sorted(map(ord, characters)):
        if spans and point == spans[-1][1] + 1:
            spans[-1][1] = point
        else:
            spans.append([point, point])
    return "".join(f"{escaped(first)}-{escaped(last)}" if last > first else escaped(first) for first, last in spans)


def escaped(point: int) -> str:
    """One code point as it may stand anywhere in a `re` pattern."""
    return f"\\U{point:08x}"
