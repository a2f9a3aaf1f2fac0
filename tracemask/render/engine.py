"""Compiles one template and runs it over one conversation in this process. Knows no token, no process, no file."""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.budget import MAX_SOURCE, Progress
from tracemask.render.codegen import refuse_nodes
from tracemask.render.fields import wrap, wrap_message
from tracemask.render.manner import Arguments, Manner, manners, object_of, quoted_arguments, unquoted
from tracemask.render.provenance import Text, plain
from tracemask.render.sandbox import TracingContext, make_environment
from tracemask.render.tags import MAX_CHARS, At, LimitExceeded, Mark, Run, Tag, Untraceable, check_size
from tracemask.render.text import RenderedText, Span

MAX_MESSAGE = 300  # characters of a template's own words in an error
_PLAIN_NAMES = {
    "Text": "str",
    "Record": "dict",
    "Items": "list",
    "Whole": "int",
    "Real": "float",
    "Flag": "bool",
    "Null": "None",
}
_WRAPPED = re.compile(rf"tracemask\.render\.(?:fields|provenance)\.({'|'.join(_PLAIN_NAMES)}) object")
_REFUSES = "the template refuses"
_REMEDY = "check the template and the conversation; transformers fails on it too"


class Job(NamedTuple):
    """One render: chat messages, declared tools, whether a reply is prompted, further template variables; served: as an
    inference server passes them, which never has JSON arguments quoted a second time."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None = None
    add_generation_prompt: bool = False
    kwargs: Mapping[str, Any] | None = None
    served: bool = False


class Engine:
    """One compiled template. `tokens`: bos_token and friends, printed as the template's own literals."""

    def __init__(self, source: str, *, name: str, tokens: Mapping[str, str], day: date) -> None:
        self.name = name or "template"
        self._tokens = {key: value for key, value in tokens.items() if value is not None}
        self._environment = make_environment(day)
        self._tools: tuple[bytes | str, Any] | None = None
        if len(source) > MAX_SOURCE:
            raise RenderError("TM922", where=self.name, what=f"the template is longer than {MAX_SOURCE} characters")
        progress = Progress()
        try:
            tree = self._environment.parse(source)
            refuse_nodes(tree)
            self._asks_for_null = _tests_content_for_none(tree)
            code = self._environment.compile(tree, name=None, filename="<template>")
            self._template = self._environment.template_class.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        except Exception as error:  # a stranger's template may raise anything
            raise self._coded(error, progress) from None

    def render(self, job: Job) -> RenderedText:
        """The text and its spans, of the messages as transformers passes them. Where that makes the template fail
        (or, served, quote arguments that are JSON already), they are passed in the other ways that engines do, and that
        is recorded."""
        for index, message in enumerate(job.messages):
            if isinstance(message.get("content"), (list, tuple)):
                self._refuse_media(message["content"], index)
        kept: RenderedText | None = None
        failed: RenderError | None = None
        for manner in manners(job.messages, asks_for_null=self._asks_for_null):
            if kept is not None and manner.arguments is not Arguments.PARSED:
                continue
            try:
                rendered = self._render(job, manner)
            except RenderError as error:
                if error.code != "TM920":
                    raise
                if failed is None or error.what.startswith(_REFUSES):  # what a template says itself tells most
                    failed = error
                continue
            if manner.shows_parts(rendered, job.messages):
                continue
            rendered = manner.noted(rendered, job.messages)
            if not job.served:
                return rendered
            quoted = quoted_arguments(rendered, job.messages)
            rendered = unquoted(rendered, quoted)
            if kept is None and any(object_of(value) is not None for values in quoted.values() for value in values):
                kept = rendered
                continue
            return rendered
        if kept is not None:
            return kept
        assert failed is not None
        raise failed

    def _render(self, job: Job, manner: Manner) -> RenderedText:
        progress = Progress()
        try:
            variables = self._variables(job, manner)
            context = cast(TracingContext, self._template.new_context(variables))
            context.progress = progress
            pieces: list[tuple[int, str]] = []
            size = 0
            for piece in self._template.root_render_func(context):
                pieces.append((progress.message, piece))
                size += len(piece)
                if size > MAX_CHARS:
                    check_size(size)
            return assemble(pieces)
        except Exception as error:  # a stranger's template may raise anything
            coded = self._coded(error, progress)
            said = _characters(job.messages) if isinstance(error, LimitExceeded) else 0
            if said > MAX_CHARS // 2:
                fix = f"the conversation says {said} characters itself: shorten it, or leave the trace out"
                coded = RenderError(coded.code, where=coded.where, what=coded.what, fix=fix)
            raise coded from None

    def _variables(self, job: Job, manner: Manner) -> dict[str, Any]:
        messages = [wrap_message(manner.applied(message), index) for index, message in enumerate(job.messages)]
        variables: dict[str, Any] = dict(self._tokens)
        variables.update(
            messages=messages,
            tools=None if job.tools is None else self._wrapped_tools(list(job.tools)),
            documents=None,
            add_generation_prompt=job.add_generation_prompt,
        )
        for key, value in (job.kwargs or {}).items():
            if key not in self._tokens or value != self._tokens[key]:  # the tokenizer's own tokens stay literals
                variables[key] = wrap(value, -1, Origin.FIELD, ("kwargs", key))
        return variables

    def _refuse_media(self, parts: Sequence[Any], index: int) -> None:
        for part in parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind is not None and kind != "text":
                raise RenderError(
                    "TM921",
                    where=f"{self.name}, message {index}",
                    what=f"a content part of type {kind!r}: images, audio, video and files are not rendered",
                    fix="leave the trace out, or replace the part by text",
                )

    def _wrapped_tools(self, tools: list[Any]) -> Any:
        """The declared tools with provenance; the last ones are kept, because a group's rollouts share theirs.

        Templates cannot change them: the sandbox is immutable.
        """
        key = _exactly(tools)
        if self._tools is None or self._tools[0] != key:
            self._tools = (key, wrap(tools, -1, Origin.TOOLS, ("tools",)))
        return self._tools[1]

    def _coded(self, error: Exception, progress: Progress) -> RenderError:
        where = self.name if progress.message < 0 else f"{self.name}, message {progress.message}"
        said = str(error)
        message = said if len(said) <= MAX_MESSAGE else said[:MAX_MESSAGE] + "…"
        message = _WRAPPED.sub(lambda match: f"{_PLAIN_NAMES[match.group(1)]} object", message)
        if isinstance(error, RenderError):
            return error
        if isinstance(error, Untraceable):
            what = f"the template uses {error.construct}, whose characters cannot be followed to their field"
            return RenderError("TM921", where=where, what=what, fix="rewrite that line of the template")
        if isinstance(error, (LimitExceeded, RecursionError, MemoryError, OverflowError)):
            what = f"the template exceeds a limit: {message or type(error).__name__}"
            return RenderError("TM922", where=where, what=what, fix="no chat template needs this; do not trust it")
        if isinstance(error, SecurityError):
            return RenderError("TM920", where=where, what=f"the sandbox refuses: {message}", fix="do not trust it")
        if isinstance(error, TemplateSyntaxError):
            return RenderError("TM920", where=f"{self.name}:{error.lineno}", what=f"syntax error: {error.message}")
        if isinstance(error, TemplateError) and not isinstance(error, UndefinedError):
            return RenderError("TM920", where=where, what=f"{_REFUSES}: {message}", fix=_REMEDY)
        return RenderError("TM920", where=where, what=f"{type(error).__name__}: {message}", fix=_REMEDY)


def _characters(value: Any) -> int:
    """Characters of all strings in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _exactly(tools: list[Any]) -> bytes | str:
    """Differs wherever the tools differ in anything that a template can print."""
    try:
        return marshal.dumps(tools, 2)
    except ValueError:  # subclasses of the JSON types
        return json.dumps(tools)


def _tests_content_for_none(tree: nodes.Template) -> bool:
    """True if the template asks whether something other than reasoning is none."""
    for test in tree.find_all(nodes.Test):
        if test.name == "none":
            operand = test.node
            name = getattr(operand, "attr", None) or getattr(operand, "name", None)
            if isinstance(operand, nodes.Getitem) and isinstance(operand.arg, nodes.Const):
                name = operand.arg.value
            if name == "content":
                return True
    return False


def assemble(pieces: Sequence[tuple[int, str]]) -> RenderedText:
    """Output pieces, each with the message whose iteration emitted it, as text with spans."""
    spans: list[Span] = []
    generation: list[tuple[int, int]] = []
    opened: list[int] = []
    at = start = 0
    last_message, last_tag = -1, NOTHING
    for message, piece in pieces:
        if type(piece) is str:
            if not piece:
                continue
            runs: Sequence[Run] = ((len(piece), None),)
        else:
            runs = cast(Text, piece)._runs
        for length, tag in runs:
            if not length:
                if type(tag) is Mark:
                    if tag.opens:
                        opened.append(at)
                    elif opened:
                        generation.append((opened.pop(), at))
                continue
            position = message
            if type(tag) is At:
                position, tag = tag
            if tag is not last_tag or position != last_message:
                if at > start and (tag != last_tag or position != last_message):
                    spans.append(new_span(Span, (start, at, last_message) + (last_tag or LITERAL)))
                    start = at
                last_message, last_tag = position, tag
            at += length
    if at > start:
        spans.append(new_span(Span, (start, at, last_message) + (last_tag or LITERAL)))
    text = plain("".join([piece for _, piece in pieces]))
    return RenderedText(text, spans, (), tuple(sorted(generation)))


NOTHING = Tag(-1, Origin.RENDERER, ("before the first character",))
LITERAL = Tag(-1, Origin.RENDERER, ())
new_span = tuple.__new__
