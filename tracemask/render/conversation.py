"""One branch as a template sees it: its renders, each made once and counted. Knows no token stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tracemask.render.control import Control
from tracemask.render.layout import Layout
from tracemask.render.text import RenderedText


class Renders(Protocol):
    """What runs a chat template with provenance (render/template.py)."""

    def render(self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None,
               add_generation_prompt: bool = False, kwargs: Mapping[str, Any] = ...) -> RenderedText:  # fmt: skip
        """The text of `messages` and where each character came from."""
        ...


@dataclass
class Counter:
    """How often a template ran: linear time is tested by this number."""

    renders: int = 0
    fallbacks: int = 0


@dataclass
class Conversation:
    """Chat messages with tools and template kwargs. Renders of its prefixes are kept."""

    template: Renders
    control: Control
    chat: Sequence[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    kwargs: Mapping[str, Any]
    counter: Counter
    _layouts: dict[tuple[int, bool], Layout] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.chat)

    def layout(self, end: int, *, prompt: bool = False) -> Layout:
        """The render of messages [0, end), with the generation prompt where asked. Raises RenderError."""
        key = (end, prompt)
        if key not in self._layouts:
            self.counter.renders += 1
            rendered = self.template.render(
                list(self.chat[:end]), tools=self.tools, add_generation_prompt=prompt, kwargs=self.kwargs
            )
            self._layouts[key] = Layout(rendered, end, self.control)
        return self._layouts[key]
