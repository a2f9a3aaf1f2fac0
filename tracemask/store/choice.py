"""Options that are one of a few words. Knows no option."""

from __future__ import annotations

from enum import StrEnum

from tracemask.core.errors import UsageError


class Choice(StrEnum):
    """A word of a fixed set; any other word is UsageError TM902 with the known ones."""

    @classmethod
    def _missing_(cls, value: object) -> Choice:
        known = ", ".join(member.value for member in cls)
        raise UsageError("TM902", what=f"unknown {cls.__name__.lower()} {value!r}", fix=f"known: {known}")
