"""Rendered text with provenance: the interface between template execution and tokens. Knows no token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tracemask.core.vocab import Origin


class Span(NamedTuple):
    """Characters [start, end) of a rendered text and where they came from.

    message: index of the message whose loop iteration emitted the characters (position), -1 outside every message.
    source: index of the message whose field the characters are (origin), -1 for literals, tools and kwargs.
    origin: kind of field (core Origin; RENDERER for template literals).
    field: the path inside the field, as ("content",), ("tool_calls", 0, "function", "arguments", "x"); () for literals.
    coarse: the characters could only be attributed to the field as a whole (repr of a container, a boolean).
    """

    start: int
    end: int
    message: int
    source: int
    origin: Origin
    field: tuple[str | int, ...] = ()
    coarse: bool = False


@dataclass(frozen=True, slots=True)
class RenderedText:
    """`text` and the spans that cover it exactly once, in order. `generation`: ranges of {% generation %} blocks.

    Messages that were not passed as they are, because the template fails on them or quotes what is JSON already:
    `empty_content` and `null_content` had none, and "" or null was passed; `other_content` were passed as one text part
    though they are a string, or the other way round; `other_arguments` had their tool-call arguments passed as objects
    though they are strings, or as JSON text though they are objects.
    """

    text: str
    spans: list[Span]
    empty_content: tuple[int, ...] = ()
    generation: tuple[tuple[int, int], ...] = ()
    null_content: tuple[int, ...] = ()
    other_content: tuple[int, ...] = ()
    other_arguments: tuple[int, ...] = ()

    @property
    def passed_otherwise(self) -> tuple[int, ...]:
        """All messages that were not passed as they are."""
        notes = (self.empty_content, self.null_content, self.other_content, self.other_arguments)
        return tuple(sorted({index for note in notes for index in note}))
