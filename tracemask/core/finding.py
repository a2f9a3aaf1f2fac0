"""A finding: a rule code and a place. Lives at the bottom, because render, store, loss and train report them too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum


class Severity(str, Enum):
    """How bad: E must be fixed, W should be looked at, i is worth knowing."""

    ERROR = "E"
    WARNING = "W"
    INFO = "i"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return "EWi".index(self.value)


@dataclass(frozen=True, slots=True)
class Place:
    """Where: any field that does not apply is None. `token` and `end` are a half-open range in the row.

    line: of the log that `path` names, from 1; a row that was rendered from it is known by it.
    """

    path: str | None = None
    row: int | None = None
    turn: int | None = None
    token: int | None = None
    end: int | None = None
    id: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        at = self.row if self.line is None else self.line
        row = None if at is None else str(at)
        turn = None if self.turn is None else f"turn {self.turn}"
        token = None if self.token is None else f"token {self.token}"
        return ":".join(part for part in (self.path, row, turn, token) if part is not None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that a rule states about one place; `cause` groups findings that share a root."""

    code: str
    message: str
    place: Place = field(default_factory=Place)
    severity: Severity | None = None  # None: the rule's own
    cause: str | None = None
    data: dict[str, object] = field(default_factory=dict[str, object])

    def to_json(self) -> dict[str, object]:
        """A plain dict for JSON; None fields are left out of the place."""
        place = {key: value for key, value in asdict(self.place).items() if value is not None}
        out: dict[str, object] = {"code": self.code, "message": self.message, "place": place}
        if self.severity is not None:
            out["severity"] = self.severity.value
        if self.cause is not None:
            out["cause"] = self.cause
        if self.data:
            out["data"] = self.data
        return out
