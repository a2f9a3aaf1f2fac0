"""A message as labels need it: its role, its author, and the authors of single blocks. Knows no render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracemask.core.vocab import Author, Role
from tracemask.trace.model import Block, Message, Text, ToolResult

_AUTHOR = {author.name.lower(): author for author in Author}
_ROLE = {name: Role[name.upper()] for name in ("system", "developer", "user", "assistant", "tool")}


@dataclass(slots=True)
class Speaker:
    """A message as labels need it. index: in the trace's list. blocks: (length, author) where blocks name authors."""

    index: int
    role: Role
    author: Author
    blocks: Sequence[tuple[int, Author]] = ()

    @classmethod
    def of(cls, message: Message, index: int) -> Speaker:
        """Reads role, author and the authors of single text blocks."""
        author = fallback = _AUTHOR[message.author]
        blocks: Sequence[Block] = message.blocks
        if blocks and isinstance(result := blocks[0], ToolResult):  # nothing else stands beside one
            blocks = result.content
            fallback = _AUTHOR[result.author] if result.author else author
        if fallback is author and not [True for block in blocks if block.author and isinstance(block, Text)]:
            return cls(index, _ROLE[message.role], author)
        texts = [block for block in blocks if isinstance(block, Text)]
        named = [(len(block.text), _AUTHOR[block.author] if block.author else fallback) for block in texts]
        return cls(index, _ROLE[message.role], author, named)
