"""A message as labels need it: its role, its author, and the authors of single blocks. Knows no render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracemask.core.vocab import Author, Role
from tracemask.trace.model import Message, Text, ToolResult

_AUTHOR = {author.name.lower(): author for author in Author}
_ROLE = {name: Role[name.upper()] for name in ("system", "developer", "user", "assistant", "tool")}


@dataclass(slots=True)
class Speaker:
    """A message as labels need it. index: in the trace's list. blocks: (length, author) where blocks name authors."""

    index: int
    role: Role
    author: Author
    blocks: list[tuple[int, Author]] = field(default_factory=list)

    @classmethod
    def of(cls, message: Message, index: int) -> Speaker:
        """Reads role, author and the authors of single text blocks."""
        author = fallback = _AUTHOR[message.author]
        blocks: Sequence[object] = message.blocks
        for block in blocks:
            if isinstance(block, ToolResult):
                blocks = block.content
                fallback = _AUTHOR[block.author] if block.author else author
                break
        texts = [block for block in blocks if isinstance(block, Text)]
        if fallback is author and not [True for block in texts if block.author]:
            return cls(index, _ROLE[message.role], author)
        named = [(len(block.text), _AUTHOR[block.author] if block.author else fallback) for block in texts]
        return cls(index, _ROLE[message.role], author, named)
