"""A chat template that knows, for every character it prints, which field of which message it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Literal

from tracemask.core.errors import RenderError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.render.engine import Engine, Job
from tracemask.render.isolation import shared_worker
from tracemask.render.text import RenderedText

PINNED_DATE = date(2026, 1, 1)


def day_of(given: date | str | None) -> date | None:
    """A date as it is or from ISO text. Raises UsageError TM900 for other text."""
    if not isinstance(given, str):
        return given
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise UsageError("TM900", what=f"date {given!r}", fix="write it as 2026-08-01") from None


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
        definition = (source, name, self.tokens, self.date.isoformat())
        self._inline: Engine | None = None
        if sandbox == "inline":
            self._inline = Engine(source, name=name, tokens=self.tokens, day=self.date)
        elif sandbox == "worker":
            self._definition = definition
            self._key = fingerprint(*definition)
            shared_worker().check(self._key, definition)
        else:
            raise UsageError("TM900", what=f"unknown sandbox {sandbox!r}", fix='"worker" or "inline"')

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
        served: bool = False,
    ) -> RenderedText:
        """The text that transformers' apply_chat_template(tokenize=False) gives, with spans that cover it once.

        served: the text that an inference server gives: where transformers quotes arguments that are JSON already
        (`arguments | tojson` on a string), they are parsed first.
        """
        outcome = self.render_many([Job(messages, tools, add_generation_prompt, kwargs, served)])[0]
        if isinstance(outcome, RenderError):
            raise outcome
        return outcome

    def render_many(self, jobs: Sequence[Job]) -> list[RenderedText | RenderError]:
        """Many renders in one trip to the worker: a text or the error for each job, in order."""
        if self._inline is None:
            return shared_worker().render(self._key, self._definition, [tuple(job) for job in jobs])
        outcomes: list[RenderedText | RenderError] = []
        for job in jobs:
            try:
                outcomes.append(self._inline.render(job))
            except RenderError as error:
                outcomes.append(error)
        return outcomes

    def on(self, day: date) -> Template:
        """The same template on another day."""
        return Template(**{**self.__getstate__(), "date": day})

    def __getstate__(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "name": self.name,
            "tokens": self.tokens,
            "date": self.date,
            "sandbox": "worker" if self._inline is None else "inline",
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state.pop("source"), **state)
