"""A named table of variants: the extension point of every room. A variant is one entry, never a branch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar, cast

from tracemask.core.errors import UsageError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was meant: first one of the same letters, which a slip of two fingers makes."""
    known = list(known)
    swapped = [each for each in known if sorted(each) == sorted(name)]
    return next(iter([*swapped, *difflib.get_close_matches(name, known, n=1)]), None)


class Table(Mapping[str, T], Generic[T]):
    """Names to variants of one kind. An entry is the variant itself or "module:attribute", imported on first use.

    Unknown names raise UsageError TM902 with the nearest known ones.
    """

    def __init__(self, kind: str, /, **entries: T | str) -> None:
        self.kind = kind
        self._entries: dict[str, T | str] = dict(entries)

    def __getitem__(self, name: str) -> T:
        try:
            entry = self._entries[name]
        except KeyError:
            near = nearest(name, self._entries)
            hint = f"did you mean {near!r}? " if near else ""
            raise UsageError(
                "TM902", what=f"unknown {self.kind} {name!r}", fix=f"{hint}known: {', '.join(self._entries)}"
            ) from None
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = cast(T, getattr(import_module(module), attribute))
            self._entries[name] = entry
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
