"""The words of the trade as fixed codes: who wrote a token, in which slot, what it is. Knows nothing else.

Codes are written into shards and never change meaning; new members take new numbers.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """An integer code whose public spelling is its lower-case name."""

    @property
    def label(self) -> str:
        """The spelling used in JSON, TOML, tables and messages."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Code:
        """The member spelled `label`. Raises KeyError with the known spellings."""
        try:
            return cls[label.upper()]
        except KeyError:
            raise KeyError(f"{label!r} is not one of {', '.join(cls.labels())}") from None

    @classmethod
    def labels(cls) -> tuple[str, ...]:
        """All spellings in code order."""
        return tuple(member.label for member in cls)


class Author(Code):
    """Who decided on a token. `policy` alone may enter the policy gradient."""

    RENDERER = 0  # the chat template: headers, separators, closers nobody sampled
    POLICY = 1  # the model being trained
    MODEL = 2  # another model: teacher, demonstrator, user simulator, summariser
    ENVIRONMENT = 3  # tool output, file contents, logs
    TASKSET = 4  # the task's text
    HARNESS = 5  # system prompt, scaffolding, nudges, tool schemas
    VERIFIER = 6  # a judge's or test's message
    USER = 7  # a live person


class Role(Code):
    """The chat slot a token lies in; `none` is outside every message (bos, generation prompt of nobody)."""

    NONE = 0
    SYSTEM = 1
    DEVELOPER = 2
    USER = 3
    ASSISTANT = 4
    TOOL = 5


class Part(Code):
    """What a token is."""

    HEADER = 0
    REASONING = 1
    CONTENT = 2
    TOOL_CALL = 3
    TOOL_OUTPUT = 4
    STOP = 5
    SEPARATOR = 6
    BOS = 7


class Origin(Code):
    """Where a token's characters came from, independent of who decided on it."""

    RENDERER = 0  # a literal of the template
    CONTENT = 1  # a message's content
    REASONING = 2  # a message's reasoning
    TOOL_CALL = 3  # a message's tool calls
    TOOLS = 4  # the declared tool schemas
    FIELD = 5  # any other field: name, role, call id, template kwargs
    ENGINE = 6  # ids taken from the engine whose text no render explains


class Fidelity(Code):
    """How a sampled message's ids are known; ordered, never promoted."""

    MESSAGES = 0  # text only: ids are rendered, rl refuses them unless told
    COMPLETION = 1  # sampled ids, context rendered
    EXACT = 2  # prompt ids and sampled ids


AUTHOR_LETTER = {
    Author.RENDERER: "R",
    Author.POLICY: "P",
    Author.MODEL: "M",
    Author.ENVIRONMENT: "E",
    Author.TASKSET: "K",
    Author.HARNESS: "H",
    Author.VERIFIER: "V",
    Author.USER: "U",
}
