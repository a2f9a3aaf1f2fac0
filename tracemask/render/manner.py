"""The ways to pass a conversation to a template: what becomes of content and arguments. Runs no template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import product
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NamedTuple

from tracemask.core.vocab import Origin
from tracemask.render.text import RenderedText, Span

Message = Mapping[str, Any]
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class Absent(Enum):
    """What becomes of content that is None: transformers drops the key; templates that fail on it get null or ""."""

    DROPPED = "dropped"
    NULL = "null"
    EMPTY = "empty"


class Content(Enum):
    """The form of content: as the log has it; or a string as the one text part of a list, for templates that read
    parts; or the one text part as a string."""

    GIVEN = "given"
    PARTS = "parts"
    TEXT = "text"


class Arguments(Enum):
    """The form of tool-call arguments: as the log has them; or the strings parsed (an empty one to {}), as engines do
    for templates that iterate over them; or the objects spelled as JSON, for templates that concatenate them."""

    GIVEN = "given"
    PARSED = "parsed"
    SPELLED = "spelled"


class Manner(NamedTuple):
    """One way of passing a conversation."""

    absent: Absent = Absent.DROPPED
    arguments: Arguments = Arguments.GIVEN
    content: Content = Content.GIVEN

    def applied(self, message: Message) -> dict[str, Any]:
        """What the template gets: keys whose value is None dropped, reasoning under all its names."""
        plain = {key: value for key, value in message.items() if value is not None}
        if self != AS_GIVEN:
            self._change(plain)
        for name in REASONING_NAMES:
            if name in plain:
                return {"thinking": plain[name], **plain, "reasoning_content": plain[name]}
        return plain

    def _change(self, plain: dict[str, Any]) -> None:
        if self.absent is not Absent.DROPPED and "content" not in plain:
            plain["content"] = None if self.absent is Absent.NULL else ""
        if self.content is not Content.GIVEN:
            plain["content"] = _CONTENT[self.content](plain.get("content"), plain.get("content"))
        if self.arguments is not Arguments.GIVEN and plain.get("tool_calls"):
            plain["tool_calls"] = [_with_arguments(call, self.arguments) for call in plain["tool_calls"]]

    def shows_parts(self, rendered: RenderedText, messages: Sequence[Message]) -> bool:
        """A string that was passed as a part was not read as one: the list stands in the text, as repr or JSON."""
        if self.content is not Content.PARTS:
            return False
        given = {index for index, message in enumerate(messages) if isinstance(message.get("content"), str)}
        return any(
            span.source in given and span.field[:1] == ("content",) and span.field != ("content", 0, "text")
            for span in rendered.spans
        )

    def noted(self, rendered: RenderedText, messages: Sequence[Message]) -> RenderedText:
        """The render with a note of the messages that were not passed as they are."""
        if self == AS_GIVEN:
            return rendered
        absent = tuple(index for index, message in enumerate(messages) if message.get("content") is None)
        content = tuple(index for index, message in enumerate(messages) if self.content in _other_content([message]))
        spans = rendered.spans
        if content and self.content is Content.PARTS:  # the log knows no parts
            whole = frozenset(content)
            spans = [
                span._replace(field=span.field[:1]) if span.source in whole and span.field[:1] == ("content",) else span
                for span in spans
            ]
        return replace(
            rendered,
            spans=spans,
            empty_content=absent if self.absent is Absent.EMPTY else (),
            null_content=absent if self.absent is Absent.NULL else (),
            other_content=content,
            other_arguments=tuple(
                index for index, message in enumerate(messages) if self.arguments in _other_arguments([message])
            ),
        )


AS_GIVEN = Manner()


def manners(messages: Sequence[Message], *, asks_for_null: bool) -> Iterator[Manner]:
    """As transformers passes `messages`, then the other ways that differ from it for them, the nearest first.

    asks_for_null: the template asks whether content is none.
    """
    absent = [Absent.DROPPED]
    if any(message.get("content") is None for message in messages):
        absent.append(Absent.NULL if asks_for_null else Absent.EMPTY)
    yield from (Manner(each) for each in absent)
    arguments = [Arguments.GIVEN, *_other_arguments(messages)]
    content = [Content.GIVEN, *_other_content(messages)]
    for form, parts, each in product(arguments, content, absent):
        if form is not Arguments.GIVEN or parts is not Content.GIVEN:
            yield Manner(each, form, parts)


def quoted_arguments(rendered: RenderedText, messages: Sequence[Message]) -> dict[int, list[str]]:
    """Message → its arguments that stand in the text as a JSON string of that string: as no policy writes them.

    Templates with `arguments | tojson` do that, Qwen2.5, Llama 3.1 and gpt-oss among them: they expect an object.
    """
    strings = {
        index: [value for value in map(_arguments, message["tool_calls"]) if isinstance(value, str)]
        for index, message in enumerate(messages)
        if message.get("tool_calls")
    }
    said = dict.fromkeys(strings, "")
    alone: set[int] = set()
    calls = Origin.TOOL_CALL
    for start, end, _, source, origin, field, _ in rendered.spans:
        if origin is calls and source in said:
            said[source] += rendered.text[start:end]
            if end - start == 2 and field[-1:] == ("arguments",) and rendered.text[start:end] == _NOTHING:
                alone.add(source)

    def stands(value: str, index: int) -> bool:
        if not value:  # two quotes stand in many arguments
            return index in alone or _behind_key(_NOTHING).search(said[index]) is not None
        return any(spelled in said[index] for spelled in _quoted(value))

    found = {index: [value for value in values if stands(value, index)] for index, values in strings.items()}
    return {index: values for index, values in found.items() if values}


_NOTHING = '""'


def _behind_key(quoted: str) -> re.Pattern[str]:
    return re.compile(rf'("arguments"\s*:\s*){re.escape(quoted)}')


def _quoted(arguments: str) -> tuple[str, str]:
    return encode_basestring(arguments), encode_basestring_ascii(arguments)


def unquoted(rendered: RenderedText, quoted: Mapping[int, Sequence[str]]) -> RenderedText:
    """The text in which quoted arguments that spell no object stand as they are: malformed JSON is what was sampled."""
    broken = {index: [value for value in values if object_of(value) is None] for index, values in quoted.items()}
    if not any(broken.values()):
        return rendered
    pieces: list[str] = []
    spans: list[Span] = []
    moved: list[tuple[int, int]] = []  # (from this character on, characters fewer)
    changed: set[int] = set()
    at = 0
    for span in rendered.spans:
        said = text = rendered.text[span.start : span.end]
        if span.origin is Origin.TOOL_CALL:
            for value in broken.get(span.source, ()):
                said = _bare(said, value, inside=span.field[-1:] != ("arguments",))
        if len(said) != len(text):
            changed.add(span.source)
            moved.append((span.end, len(text) - len(said)))
        if said:
            spans.append(span._replace(start=at, end=at + len(said)))
        pieces.append(said)
        at += len(said)
    return replace(
        rendered,
        text="".join(pieces),
        spans=spans,
        generation=tuple((_moved(start, moved), _moved(end, moved)) for start, end in rendered.generation),
        other_arguments=tuple(sorted({*rendered.other_arguments, *changed})),
    )


def _bare(said: str, value: str, *, inside: bool) -> str:
    """`said` without the quotes around `value`: all of it, or (inside a call's JSON) behind the key "arguments"."""
    for quoted in dict.fromkeys(_quoted(value)):
        if not inside and said == quoted:
            return value
        if inside:
            said = _behind_key(quoted).sub(lambda match: match[1] + value, said)
    return said


def _moved(at: int, moved: Sequence[tuple[int, int]]) -> int:
    return at - sum(fewer for place, fewer in moved if place <= at)


def _other_content(messages: Sequence[Message]) -> list[Content]:
    given = [message.get("content") for message in messages]
    return [form for form, change in _CONTENT.items() if any(change(value, None) is not None for value in given)]


def _in_parts(content: Any, otherwise: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else otherwise


def _as_text(content: Any, otherwise: Any) -> Any:
    """Of one text part only: how several would be joined is the engine's secret."""
    if not isinstance(content, (list, tuple)) or len(content) != 1 or not isinstance(content[0], Mapping):
        return otherwise
    text = content[0].get("text")
    return text if content[0].get("type") == "text" and isinstance(text, str) else otherwise


_CONTENT: dict[Content, Callable[[Any, Any], Any]] = {Content.PARTS: _in_parts, Content.TEXT: _as_text}


def _other_arguments(messages: Sequence[Message]) -> list[Arguments]:
    values = [_arguments(call) for message in messages for call in message.get("tool_calls") or ()]
    forms: list[Arguments] = []
    if any(isinstance(value, str) and object_of(value) is not None for value in values):
        forms.append(Arguments.PARSED)
    if any(isinstance(value, Mapping) for value in values):
        forms.append(Arguments.SPELLED)
    return forms


def _arguments(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return function.get("arguments") if isinstance(function, Mapping) else None


def _with_arguments(call: Any, form: Arguments) -> Any:
    value = _arguments(call)
    if form is Arguments.PARSED:
        other = object_of(value) if isinstance(value, str) else None
    else:
        other = json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else None
    if other is None:
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": {**call["function"], "arguments": other}}
    return {**call, "arguments": other}


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that a string spells, or None; white space alone is a call without arguments."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
