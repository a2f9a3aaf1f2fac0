"""Author overrides by role, name, position or text, from a small TOML, because harnesses differ. Knows no format.

[[authors]]
role = "user"            # all given conditions must hold
name = "judge"           # the message's name
index = 0                # position among the messages; negative counts from the end
first = false            # position among the messages of its role: true is the first, false every later one
match = "^Observation:"  # a regular expression searched in the message's text
author = "environment"   # what it becomes
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from tracemask.core.errors import UsageError
from tracemask.trace.model import AuthorName, Message, RoleName, Trace

_KEYS = {"role", "name", "index", "first", "match", "author", "label"}


@dataclass(frozen=True, slots=True)
class AuthorRule:
    """One rule; conditions that are None always hold."""

    author: str
    label: str
    role: str | None = None
    name: str | None = None
    index: int | None = None
    first: bool | None = None
    match: str | None = None

    def fits(self, message: Message, index: int, count: int, is_first: bool) -> bool:
        """Whether every condition holds for the message at `index` of `count`."""
        return (
            (self.role is None or message.role == self.role)
            and (self.name is None or message.name == self.name)
            and (self.index is None or index == self.index or index - count == self.index)
            and (self.first is None or is_first == self.first)
            and (self.match is None or re.search(self.match, message.text()) is not None)
        )


@dataclass(frozen=True, slots=True)
class AuthorRules:
    """Rules in order; the first that fits decides. Picklable, and part of a conversion's fingerprint (`to_json`)."""

    rules: tuple[AuthorRule, ...]

    @classmethod
    def load(cls, source: str | os.PathLike[str] | dict[str, Any]) -> AuthorRules:
        """From a TOML file or its dict. Raises UsageError TM901, TM900 naming the rule."""
        where = "authors"
        if not isinstance(source, dict):
            where = os.fspath(source)
            try:
                source = tomllib.loads(Path(source).read_text(encoding="utf-8"))
            except OSError as error:
                raise UsageError("TM901", where=where, what=error.strerror or str(error)) from None
            except ValueError as error:
                raise UsageError("TM900", where=where, what=f"not TOML: {error}") from None
        entries = source.get("authors")
        if not isinstance(entries, list):
            raise UsageError(
                "TM900", where=where, what="no [[authors]] rules", fix="write one [[authors]] table a rule"
            )
        return cls(tuple(_rule(entry, f"{where}: rule {i}", i) for i, entry in enumerate(cast("list[Any]", entries))))

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data that names the rules completely."""
        return [{name: getattr(rule, name) for name in sorted(_KEYS)} for rule in self.rules]

    def apply(self, trace: Trace) -> dict[int, str]:
        """Sets authors in place; message index → label of the rule that decided. A rule never makes text sampled."""
        touched: dict[int, str] = {}
        seen: set[str] = set()
        for index, message in enumerate(trace.messages):
            is_first = message.role not in seen
            seen.add(message.role)
            for rule in self.rules:
                if rule.fits(message, index, len(trace.messages), is_first):
                    message.author = cast("AuthorName", rule.author)
                    touched[index] = rule.label
                    break
        return touched


def _rule(entry: Any, where: str, number: int) -> AuthorRule:
    if not isinstance(entry, dict):
        raise UsageError("TM900", where=where, what="expected a table")
    values = cast("dict[str, Any]", entry)
    unknown = sorted(set(values) - _KEYS)
    if unknown:
        raise UsageError(
            "TM900", where=where, what=f"unknown keys {', '.join(unknown)}", fix=f"known: {', '.join(sorted(_KEYS))}"
        )
    if values.get("author") not in get_args(AuthorName):
        raise UsageError(
            "TM900",
            where=where,
            what=f"author {values.get('author')!r}",
            fix=f"one of {', '.join(get_args(AuthorName))}",
        )
    if values.get("role", "user") not in get_args(RoleName):
        raise UsageError("TM900", where=where, what=f"role {values['role']!r}")
    if values["author"] == "policy" and values.get("role") != "assistant":
        raise UsageError(
            "TM900", where=where, what="the policy writes assistant messages only", fix='add role = "assistant"'
        )
    for key, kind in (("name", str), ("match", str), ("label", str), ("index", int), ("first", bool)):
        if key in values and type(values[key]) is not kind:
            raise UsageError("TM900", where=where, what=f"{key} is {values[key]!r}, expected {kind.__name__}")
    try:
        re.compile(values.get("match", ""))
    except re.error as error:
        raise UsageError("TM900", where=where, what=f"match is no regular expression: {error}") from None
    conditions = {key: values[key] for key in values if key not in ("author", "label")}
    shown = " ".join(f"{key}={value}" for key, value in conditions.items()) or "all"
    label = values.get("label") or f"{number}: {shown} → {values['author']}"
    return AuthorRule(author=values["author"], label=label, **conditions)
