"""One branch as a template sees it: its renders, each made once and counted. Knows no token stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from tracemask.render.control import Control
from tracemask.render.layout import Layout
from tracemask.render.text import RenderedText


class Renders(Protocol):
    """What runs a chat template with provenance (render/template.py)."""

    def render(self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None,
               add_generation_prompt: bool = False, kwargs: Mapping[str, Any] = ...,
               served: bool = ...) -> RenderedText:  # fmt: skip
        """The text of `messages` and where each character came from."""
        ...


@dataclass
class Counter:
    """How often a template ran: linear time is tested by this number."""

    renders: int = 0
    fallbacks: int = 0


@dataclass
class Conversation:
    """Chat messages with tools and template kwargs. Renders of its prefixes are kept.

    standing: messages for which ids stand, because the template cannot print them (render/standing.py).
    """

    template: Renders
    control: Control
    chat: Sequence[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    kwargs: Mapping[str, Any]
    counter: Counter
    standing: frozenset[int] = frozenset()
    prompts: dict[int, Any] = field(default_factory=dict, init=False)  # what Turns found before each reply
    switches: list[tuple[Any, ...]] = field(default_factory=list, init=False)  # up to each message (render/switches.py)
    _layouts: dict[tuple[int, bool], Layout] = field(default_factory=dict, init=False)

    @cached_property
    def setting(self) -> str:
        """Kwargs, and whether tools are declared."""
        return f"{bool(self.tools)} {json.dumps(dict(self.kwargs), sort_keys=True, default=str)}"

    @cached_property
    def kind(self) -> str:
        """What the manner of rendering may depend on besides the messages' shapes: kwargs, tools, the system text."""
        first = self.chat[0] if self.chat else {}
        system = str(first.get("content")) if first.get("role") in ("system", "developer") else ""
        return f"{self.setting} {system}"

    def __len__(self) -> int:
        return len(self.chat)

    def give(self, rendered: RenderedText) -> None:
        """The whole render, where it was made beside others in one trip."""
        self.counter.renders += 1
        self._layouts[(len(self.chat), False)] = Layout(rendered, len(self.chat), self.control)

    def layout(self, end: int, *, prompt: bool = False) -> Layout:
        """The render of messages [0, end), with the generation prompt where asked. Raises RenderError."""
        key = (end, prompt)
        if key not in self._layouts:
            self.counter.renders += 1
            rendered = self.template.render(
                list(self.chat[:end]), tools=self.tools, add_generation_prompt=prompt, kwargs=self.kwargs, served=True
            )
            self._layouts[key] = Layout(rendered, end, self.control)
        return self._layouts[key]
