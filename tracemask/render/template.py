"""A chat template that knows, for every character it prints, which field of which message it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Literal

from tracemask.core.fingerprint import fingerprint
from tracemask.render.engine import Engine, Job
from tracemask.render.text import RenderedText

PINNED_DATE = date(2026, 1, 1)


class Template:
    """One chat template, ready to render.

    source: Jinja. name: for messages. tokens: bos_token and friends. date: what strftime_now prints (pinned: the same
    bytes any day). sandbox: "worker" runs a stranger's template in a process with limits, "inline" in this one.
    Raises RenderError TM920 (the template fails, with transformers too), TM921 (a construct that cannot be followed),
    TM922 (a limit).
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "",
        tokens: Mapping[str, str] | None = None,
        date: date | None = None,
        sandbox: Literal["worker", "inline"] = "worker",
    ) -> None:
        self.source = source
        self.name = name
        self.tokens = dict(tokens or {})
        self.date = date or PINNED_DATE
        self._engine = Engine(source, name=name, tokens=self.tokens, day=self.date)

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the text besides the conversation."""
        return fingerprint(self.source, self.tokens, self.date.isoformat())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedText:
        """The text that transformers' apply_chat_template(tokenize=False) gives, with spans that cover it once."""
        return self._engine.render(Job(messages, tools, add_generation_prompt, kwargs))
