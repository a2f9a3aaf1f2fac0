"""The table of log formats: one file and one line each.

A format turns records into traces; it opens no input itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tracemask.core.errors import TracemaskError
from tracemask.core.finding import Finding
from tracemask.core.registry import Table
from tracemask.core.vocab import Fidelity
from tracemask.trace.files import InputFile, Layout
from tracemask.trace.model import Message, Trace
from tracemask.trace.shape import Shape, unfamiliar

T = TypeVar("T")

# What refuses a unit, or a part of one: our own errors, and what no importer foresaw in a stranger's log.
REFUSED = (
    TracemaskError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


class UnitKind(str, Enum):
    """What one trace-bearing unit of a format is."""

    RECORD = "record"  # a line, a row, a list element
    FILE = "file"  # the whole file: a session, a results document, an archive


@dataclass(frozen=True, slots=True)
class Head:
    """What sniffing sees: the layout and the first decoded records (archives: their member names)."""

    rel: str
    layout: Layout
    records: list[Any]
    members: tuple[str, ...] = ()

    def dicts(self) -> list[dict[str, Any]]:
        """The records that are objects."""
        return [record for record in self.records if isinstance(record, dict)]


@dataclass(slots=True)
class Context:
    """What an importer may know, and report beside traces: its file, findings, counts of what it left out."""

    file: InputFile
    line: int = 1
    findings: list[Finding] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    errors: list[Exception] = field(default_factory=list)

    def where(self, line: int | None = None) -> str:
        """file:line for errors."""
        return f"{self.file.rel}:{self.line if line is None else line}"

    def apart(self, items: Iterable[T], read: Callable[[T], Trace]) -> Iterator[Trace]:
        """The traces of a unit's parts, each read on its own: one that cannot be read costs the others nothing."""
        for item in items:
            try:
                yield read(item)
            except REFUSED as error:
                self.errors.append(error)

    def familiar(self, value: Any, shape: Shape, path: str = "") -> None:
        """Counts the keys of a raw object that its shape does not know, as unknown fields below `path`."""
        self.unknown.update(unfamiliar(value, shape, path))

    def default_id(self) -> str:
        """The id of a trace whose source has none: its place below the input root."""
        return f"{self.file.rel}:{self.line}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a FILE unit: its 1-based number and value."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Format:
    """One log format.

    sniff(head): the reason why the file is of this format, or None. read(value, context): the traces of one unit;
    value is the record (RECORD), the list of Lines (FILE of lines), the document, or the path (archive, folder).
    fidelity: the best that its logs can hold. shape: what a record (each Line's value; a document) is known to hold;
    other keys are counted as unknown, kept or not (importers that open members of their own ask Context.familiar).
    None: the importer keeps every key in `extra` and model extras, and they are counted there.
    """

    name: str
    title: str
    unit: UnitKind
    fidelity: Fidelity
    sniff: Callable[[Head], str | None]
    read: Callable[[Any, Context], Iterable[Trace]]
    shape: Shape | None = None


def keep(message: Message, rest: dict[str, Any]) -> None:
    """What a log line had beside its message: kept in extra["log"].

    Under one key of its own, because `extra` itself is passed on to chat templates.
    """
    if rest:
        message.extra["log"] = rest


FORMATS: Table[Format] = Table(
    "format",
    tracemask="tracemask.trace.formats.own:FORMAT",
    openai="tracemask.trace.formats.openai:FORMAT",
    verifiers="tracemask.trace.formats.verifiers:FORMAT",
    atif="tracemask.trace.formats.atif:FORMAT",
    **{"claude-code": "tracemask.trace.formats.claude_code:FORMAT"},
    codex="tracemask.trace.formats.codex:FORMAT",
    **{"swe-agent": "tracemask.trace.formats.swe_agent:FORMAT"},
    slime="tracemask.trace.formats.slime:FORMAT",
    verl="tracemask.trace.formats.verl:FORMAT",
    skyrl="tracemask.trace.formats.skyrl:FORMAT",
    inspect="tracemask.trace.formats.inspect_ai:FORMAT",
    openhands="tracemask.trace.formats.openhands:FORMAT",
    tau2="tracemask.trace.formats.tau2:FORMAT",
)
