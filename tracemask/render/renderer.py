"""Traces to samples: the room's front. Composes template, tokenizer, turns and rows; knows no weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tracemask.core.errors import RenderError, TracemaskError, UsageError
from tracemask.core.finding import Finding, Place
from tracemask.core.fingerprint import fingerprint
from tracemask.core.vocab import Origin
from tracemask.render.branch import BranchPlan, Planner, build
from tracemask.render.collector import collector_paused
from tracemask.render.control import Control
from tracemask.render.conversation import Conversation, Counter, Renders
from tracemask.render.encode import Encoder, Mode, Run
from tracemask.render.engine import Job
from tracemask.render.extend import Extender
from tracemask.render.layout import Layout
from tracemask.render.probe import learn_stop
from tracemask.render.reading import History
from tracemask.render.rows import Assembler
from tracemask.render.sample import Sample
from tracemask.render.speaker import Speaker
from tracemask.render.stability import Stability
from tracemask.render.standing import noted, standing, stood_in, told
from tracemask.render.stream import Pieces
from tracemask.render.template import Template, day_of
from tracemask.render.text import RenderedText
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.turns import Turns
from tracemask.trace.chat import to_chat
from tracemask.trace.model import Message, Trace

RENDERER_VERSION = "4"
"""Changes whenever the same trace could give other tokens or labels."""


class Renderer:
    """Renders traces with one tokenizer and one chat template.

    tokenizer: folder, tokenizer.json, "hub:OWNER/NAME" or a Tokenizer. template: Jinja source, a file, a Template;
    default: the tokenizer's own. template_kwargs: passed to the template; a trace's own kwargs win over them.
    history: what becomes of text-only replies that a later render cuts ("auto" forks, "as_rendered" reports,
    "per_turn" makes a row of each). control_text: "text" (content cannot write control tokens) or "ids".
    stop: further stop tokens, ids or texts. date: the day (ISO) that templates print with strftime_now; default: the
    template's own, for text PINNED_DATE. Raises RenderError, UsageError.
    """

    def __init__(self, tokenizer: str | Path | Tokenizer, template: str | Path | Template | None = None,
                 template_kwargs: Mapping[str, Any] | None = None, history: str = "auto",
                 control_text: Literal["text", "ids"] = "text", stop: Sequence[int | str] | None = None,
                 backend: str = "auto", date: date | str | None = None) -> None:  # fmt: skip
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer, backend=backend)
        self.template = _template(template, self.tokenizer, day_of(date))
        self.template_kwargs = dict(template_kwargs or {})
        self.history = _history(history)
        if control_text not in ("text", "ids"):
            raise UsageError("TM900", what=f"control_text {control_text!r}", fix='use "text" or "ids"')
        self.control_text = control_text
        self.counter = Counter()
        self.control = Control.of(self.tokenizer, self.template.source)
        self.encoder = Encoder(self.tokenizer, self.control)
        self.stop_ids = self._stops(stop or ())
        self._planner = Planner(
            self.tokenizer,
            Turns(self.control, self.stop_ids),
            Stability(self._probe),
            self.history,
            control_text,
        )
        self._assembler = Assembler(
            self.tokenizer, self.control, self.encoder, self.stop_ids, *self._tables(self.stop_ids)
        )

    # ------------------------------------------------------------------ traces

    def render(self, trace: Trace) -> list[Sample]:
        """The samples of one trace, in creation order. Raises RenderError naming the trace."""
        return self.render_many([trace])[0]

    def render_many(self, traces: Iterable[Trace]) -> list[list[Sample]]:
        """The samples of each trace; everything is encoded in one call. Same result as one by one."""
        batch = list(traces)
        with collector_paused():
            return self._batch(batch)

    def _batch(self, batch: Sequence[Trace]) -> list[list[Sample]]:
        opened = [self._open(trace) for trace in batch]
        self._render_ahead([entry for entries in opened for entry in entries])
        planned = [self._plan(trace, entries) for trace, entries in zip(batch, opened, strict=True)]
        for plans in planned:
            for plan in plans:
                plan.want(self.encoder)
        self.encoder.fill()
        build([plan for plans in planned for plan in plans])
        return [self._assembler.samples(trace, plans) for trace, plans in zip(batch, planned, strict=True)]

    def plan(self, trace: Trace) -> list[BranchPlan]:
        """Each branch with its renders and regions, nothing encoded yet. Raises RenderError naming the trace."""
        return self._plan(trace, self._open(trace))

    def _open(self, trace: Trace) -> list[tuple[list[Message], Conversation]]:
        if not trace.messages:
            raise RenderError("TM904", where=f"trace {trace.id}", what="it has no messages", fix="leave it out")
        return [
            (branch, self._conversation([to_chat(message) for message in branch], trace.tools, trace.template_kwargs))
            for branch in trace.branches()
        ]

    def _render_ahead(self, opened: Sequence[tuple[list[Message], Conversation]]) -> None:
        """Whole renders of many branches in one trip to the template's process; errors come up when they are used."""
        if self.history is History.PER_TURN:
            return
        jobs = [Job(item.chat, item.tools, False, item.kwargs, True) for _, item in opened]
        for (_, conversation), outcome in zip(opened, self.template.render_many(jobs), strict=True):
            if isinstance(outcome, RenderedText):
                conversation.give(outcome)

    def _plan(self, trace: Trace, opened: Sequence[tuple[list[Message], Conversation]]) -> list[BranchPlan]:
        index = {message.id: at for at, message in enumerate(trace.messages)}
        plans: list[BranchPlan] = []
        try:
            for branch, conversation in opened:
                speakers = [Speaker.of(message, index[message.id]) for message in branch]
                plans.append(self._plan_branch(conversation, branch, speakers))
                if trace.tools and not _has_tools(plans[-1]):
                    plans[-1].findings.append(Finding("TM112", "the template ignores the declared tools"))
                plans[-1].findings += _passed_otherwise(plans[-1])
        except TracemaskError as error:
            place = f"trace {trace.id}" + (f": {error.where}" if error.where else "")
            raise type(error)(error.code, where=place, what=error.what, fix=error.fix) from None
        return plans

    def _plan_branch(self, conversation: Conversation, branch: list[Message], speakers: list[Speaker]) -> BranchPlan:
        """A branch as the log has it; where the template cannot print a call of it whose ids are known, by these."""
        try:
            return self._planner.plan(conversation, branch, speakers)
        except RenderError as error:
            at = standing(branch) if error.code == "TM920" else None
            if at is None:
                raise told(error, branch) from None
            other = replace(conversation, chat=stood_in(conversation.chat, at), standing=at)
            try:
                plan = self._planner.plan(other, branch, speakers)
            except RenderError:
                raise error from None
        plan.findings += noted(branch, at, [speaker.index for speaker in speakers])
        return plan

    # ------------------------------------------------------------------ chat messages

    def render_text(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None = None, *,
                    add_generation_prompt: bool = False) -> RenderedText:  # fmt: skip
        """The text of chat messages, as transformers renders them, and where each character came from."""
        return self.template.render(
            messages, tools=tools or None, add_generation_prompt=add_generation_prompt, kwargs=self.template_kwargs
        )

    def prompt_ids(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """The ids that a sampler must be given for the next reply."""
        conversation = self._conversation(messages, tools, {})
        return self._context_ids(conversation.layout(len(conversation), prompt=True), 0)

    def next_prompt_ids(self, previous_ids: Sequence[int], new_messages: Sequence[dict[str, Any]],
                        tools: list[dict[str, Any]] | None = None) -> list[int]:  # fmt: skip
        """previous_ids (a prompt and the reply sampled after it) plus what the template writes for new_messages.

        Nothing before is rendered or encoded again. Raises RenderError TM924 where the next prompt would not start
        with previous_ids, or where that cannot be known.
        """

        def open_like(chat: list[dict[str, Any]]) -> Conversation:
            return self._conversation(chat, tools, {})

        extender = Extender(self.tokenizer, self._planner.turns, self._planner.stability, open_like)
        layout, at = extender.between(previous_ids, new_messages)
        return [*map(int, previous_ids), *self._context_ids(layout, at)]

    def _context_ids(self, layout: Layout, start: int) -> list[int]:
        mode = Mode.IDS if self.control_text == "ids" else Mode.CONTENT
        pieces = Pieces()
        pieces.add_text(-1, layout, start, len(layout.text), mode, self.encoder)
        self.encoder.fill()
        return pieces.ids().tolist()

    # ------------------------------------------------------------------ identity

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides tokens and labels; the backend is not among it."""
        return fingerprint(
            RENDERER_VERSION,
            self.tokenizer.sha256,
            self.template.fingerprint,
            self.template_kwargs,
            self.history.value,
            self.control_text,
            sorted(self.stop_ids),
        )

    # ------------------------------------------------------------------

    def _conversation(self, chat: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None,
                      kwargs: Mapping[str, Any]) -> Conversation:  # fmt: skip
        return Conversation(
            self.template, self.control, chat, tools or None, {**self.template_kwargs, **kwargs}, self.counter
        )

    def _probe(self, chat: list[dict[str, Any]], like: Conversation) -> Conversation:
        return Conversation(self.template, self.control, chat, like.tools, like.kwargs, self.counter)

    def _stops(self, given: Sequence[int | str]) -> frozenset[int]:
        """Stops of the tokenizer and its generation configuration, those given, and the one the template writes."""
        stops: set[int] = set(self.tokenizer.stop_ids)
        for stop in given:
            token = self.tokenizer.id_of(stop) if isinstance(stop, str) else stop
            if token is None or token not in self.tokenizer.added:
                raise UsageError("TM902", what=f"stop {stop!r} is no added token", fix="give an added token or its id")
            stops.add(token)
        learned = learn_stop(lambda chat: self._conversation(chat, None, {}), frozenset(stops))
        if learned is not None:
            stops.add(learned)
        return frozenset(stops)

    def _tables(self, stops: frozenset[int]) -> tuple[np.ndarray, np.ndarray]:
        """Bool tables by id with one entry more, False, for ids that the tokenizer does not have."""
        size = self.tokenizer.size
        is_stop = np.zeros(size + 1, bool)
        is_stop[[stop for stop in stops if stop < size]] = True
        return is_stop, self.tokenizer.spaces


def _has_tools(plan: BranchPlan) -> bool:
    return any(span.origin is Origin.TOOLS for base in plan.bases.values() for span in base.layout.rendered.spans)


def _passed_otherwise(plan: BranchPlan) -> list[Finding]:
    """TM115 for the messages whose content or arguments the template did not take as the log has them."""
    renders = [base.layout.rendered for base in plan.bases.values()]
    found: list[Finding] = []
    for note, what in (("other_content", "content"), ("other_arguments", "tool-call arguments")):
        messages = sorted({index for rendered in renders for index in getattr(rendered, note)})
        if messages:
            say = f"the template does not take the {what} as the log has them: they were passed in their other form"
            place = Place(turn=plan.speakers[messages[0]].index)
            found.append(Finding("TM115", say, place, data={"count": len(messages), "what": what}))
    return found


def _history(name: str) -> History:
    try:
        return History(name)
    except ValueError:
        known = ", ".join(entry.value for entry in History)
        raise UsageError("TM902", what=f"unknown history {name!r}", fix=f"known: {known}") from None


def _template(template: str | Path | Template | None, tokenizer: Tokenizer, day: date | None) -> Template:
    if isinstance(template, Template):
        return template if day is None else template.on(day)
    if isinstance(template, Path):
        source, name = template.read_text(encoding="utf-8"), template.name
    elif template is not None:
        source, name = template, "template"
    elif tokenizer.chat_template:
        source, name = tokenizer.chat_template, "the tokenizer's template"
    else:
        raise RenderError(
            "TM920", where=tokenizer.path, what="the tokenizer has no chat template", fix="pass template=…"
        )
    return Template(source, name=name, tokens=tokenizer.token_strings, date=day)


__all__ = ["RENDERER_VERSION", "Renderer", "Renders", "Run"]
