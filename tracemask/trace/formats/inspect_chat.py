"""Inspect's chat messages and model events as ours, attachments resolved. Knows no archive and no sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.blocks import beside
from tracemask.trace.chat import arguments_of
from tracemask.trace.engine import call_of
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, keep
from tracemask.trace.model import Block, Message, Reasoning, Sampled, Text, ToolCall, ToolResult
from tracemask.trace.parts import media_block, part_block
from tracemask.trace.sampled import sampled_from_fields
from tracemask.trace.shape import known

_ROLES = {"system": "harness", "user": "user", "assistant": "policy", "tool": "environment"}
_MEDIA = ("image", "audio", "video", "document")
_ATTACHMENT = "attachment://"
_PART = known(
    "type text refusal citations cache_breakpoint internal reasoning summary signature redacted image detail audio "
    "format video data document filename mime_type tool_type id name context arguments result error"
)
MESSAGE_SHAPE = known(
    "id role source metadata model tool_call_id function",
    content=_PART,
    tool_calls=known("id function arguments parse_error view type"),
    error=known("type message"),
)
_ENTRY = known("token logprob bytes top_logprobs")
OUTPUT_SHAPE = known(
    "model completion usage input_context_tokens fallback time metadata error response_id",
    choices=known(
        "stop_reason stop_details",
        message=MESSAGE_SHAPE,
        logprobs=known("", content=_ENTRY),
        prompt_logprobs=known("", content=_ENTRY),
    ),
)


@dataclass(slots=True)
class Call:
    """One call of the policy. compaction: what had happened to the context before it."""

    prompt: list[Message]
    reply: Message
    tools: list[Any] | None
    compaction: str | None


class Chat:
    """The messages of one sample. model: the policy's name, where the log says it."""

    def __init__(self, attachments: dict[str, Any], model: Any, context: Context) -> None:
        self.attachments = attachments
        self.model = model if isinstance(model, str) else None
        self.context = context

    # ---- events

    def calls(self, events: list[Any], pool: list[Any], where: str) -> Iterator[Call]:
        """The policy's model events; scorers' and others' are left out."""
        scoring: set[str] = set()
        compaction: str | None = None
        for index, raw in enumerate(events):
            event = Fields(raw, f"{where}[{index}]")
            kind, parent = event.get("event"), str(event.get("parent_id"))
            if kind == "span_begin" and (event.get("type") in ("scorer", "scorers") or parent in scoring):
                scoring.add(str(event.get("id")))
            elif kind == "compaction":
                compaction = str(event.get("type") or "summary")
            elif kind == "model":
                self.context.familiar(event.get("input"), MESSAGE_SHAPE, "events[].input")
                self.context.familiar(event.get("output"), OUTPUT_SHAPE, "events[].output")
                if str(event.get("span_id")) in scoring:
                    continue
                model, role = event.get("model"), event.get("role")
                if (self.model is not None and model != self.model) or role not in (None, "default"):
                    self.context.notes[f"calls of another model or role ({role or model}) are not the policy's"] += 1
                    continue
                reply = self._reply(event, index)
                if event.get("cache") == "read":
                    self.context.notes["a reply that came from Inspect's cache: another call sampled it"] += 1
                if reply is not None:
                    tools = event.take_list("tools")
                    yield Call(self._input(event, pool, index), reply, tools, compaction)
                    compaction = None

    def _input(self, event: Fields, pool: list[Any], index: int) -> list[Message]:
        refs = event.take_list("input_refs")
        raw = event.take_list("input") or []
        if refs:
            raw = [message for start, end in refs for message in pool[start:end]]
        prompt = self.messages(raw, event.at("input"))
        for position, message in enumerate(prompt):
            message.id = f"e{index}.{position}"
        return prompt

    def _reply(self, event: Fields, index: int) -> Message | None:
        output = Fields(event.take("output") or {}, event.at("output"))
        choices = output.take_list("choices") or []
        if not choices or event.get("error") is not None or event.get("pending") is True:
            self.context.notes["a model event without a reply (failed, or still running)"] += 1
            return None  # of a failed call Inspect logs an empty choice: nobody said it
        if len(choices) > 1:
            self.context.notes["a model event of several choices: the run went on with the first"] += 1
        choice = Fields(choices[0], output.at("choices[0]"))
        reply = self.message(choice.take("message"), choice.at("message"), first_user=False)
        reply.id = f"r{index}"
        reason = choice.take_str("stop_reason")
        reply.finish_reason = "length" if reason in ("max_tokens", "model_length") else reason
        reply.sampled = self._sampled(choice, output, reply)
        return reply

    def _sampled(self, choice: Fields, output: Fields, reply: Message) -> Sampled | None:
        """Ids where the tokens of the log-probs spell them ("token_id:7"); log-probs without ids stay in the log."""
        logprobs = choice.take("logprobs")
        if logprobs is None:
            return None
        call = call_of({"model": output.get("model"), "choices": [{"logprobs": logprobs}]}, choice.where)
        if "token_ids" not in call:
            reply.extra.setdefault("log", {})["logprobs"] = logprobs
            return None
        reason, reply.finish_reason = reply.finish_reason, None
        return sampled_from_fields(Fields(call, choice.at("logprobs")), reason=reason)

    # ---- messages

    def messages(self, raw: list[Any], where: str) -> list[Message]:
        """Messages named by their place; the first user message is the task."""
        out: list[Message] = []
        seen = False
        for index, item in enumerate(raw):
            message = self.message(item, f"{where}[{index}]", first_user=not seen)
            message.id = f"m{index}"
            seen = seen or message.role == "user"
            out.append(message)
        return out

    def message(self, raw: Any, where: str, *, first_user: bool) -> Message:
        """One message. Raises TraceError TM911 naming the field."""
        fields = Fields(raw, where)
        role = fields.take_str("role")
        if role not in _ROLES:
            raise fields.error("role", f"unknown role {role!r}", fix=f"one of {', '.join(_ROLES)}")
        blocks, parts = self._content(fields.take("content"), f"{where}.content")
        author = "taskset" if role == "user" and first_user else _ROLES[role]
        message = Message.model_validate({"id": "m", "role": role, "author": author})
        message.blocks, message.parts = blocks, parts
        if role == "assistant":
            self._said(message, fields)
        elif role == "tool":
            message.blocks = [self._result(fields, blocks)]
        left = {key: value for key, value in fields.rest().items() if key not in ("id", "source", "metadata")}
        keep(message, left)
        return message

    def _said(self, message: Message, fields: Fields) -> None:
        calls = fields.take_list("tool_calls") or []
        message.blocks += [self._call(call, fields.at(f"tool_calls[{i}]")) for i, call in enumerate(calls)]
        if fields.take_str("source") == "input":
            message.author, message.copied = "model", True
        model = fields.take_str("model")
        if model is not None and self.model is not None and model not in (self.model, self.model.split("/", 1)[-1]):
            message.author = "model"

    def _result(self, fields: Fields, blocks: list[Block]) -> ToolResult:
        """A tool's result; of one that failed, Inspect sends the error's message in place of the content."""
        error = fields.take("error")
        if error is not None:
            words = Fields(error, fields.at("error")).take_str("message")
            if words and not any(isinstance(block, Text) and words in block.text for block in blocks):
                blocks = [Text(text=words), *(block for block in blocks if not isinstance(block, Text) or block.text)]
        call_id, name = fields.take_id("tool_call_id"), fields.take_str("function")
        return ToolResult(call_id=call_id, name=name, content=blocks, is_error=error is not None)

    def _call(self, raw: Any, where: str) -> ToolCall:
        call = Fields(raw, where)
        name = call.take_str("function")
        if not name:
            raise call.error("function", "missing")
        values = arguments_of(call.take("arguments"), f"{where}.arguments")
        values["parse_error"] = call.take_str("parse_error") or values.get("parse_error")
        return ToolCall(id=call.take_id("id"), name=name, **values)

    # ---- content

    def _text(self, value: Any, where: str) -> str:
        """The text itself, or what its attachment:// reference names."""
        if not isinstance(value, str):
            raise TraceError("TM911", where=where, what=f"expected a text, found {type(value).__name__}")
        if value.startswith(_ATTACHMENT):
            found = self.attachments.get(value.removeprefix(_ATTACHMENT))
            if not isinstance(found, str):
                raise TraceError("TM911", where=where, what=f"the attachment {value!r} is not in the sample")
            return found
        return value

    def _content(self, raw: Any, where: str) -> tuple[list[Block], bool]:
        """(blocks, whether they are more than texts and reasoning)."""
        if raw is None:
            return [], False
        if isinstance(raw, str):
            return [Text(text=self._text(raw, where))], False
        if not isinstance(raw, list):
            raise TraceError("TM911", where=where, what="expected a string or a list of parts")
        blocks = [self._part(item, f"{where}[{index}]") for index, item in enumerate(cast("list[Any]", raw))]
        return blocks, any(not isinstance(block, Text | Reasoning) for block in blocks)

    def _part(self, raw: Any, where: str) -> Block:
        part = Fields(raw, where)
        kind = part.get("type")
        if kind == "text":
            text = self._text(part.take("text"), part.at("text"))
            part.take("type")
            return Text(text=text, **beside(Text, part.rest()))
        if kind == "reasoning":
            return self._reasoning(part)
        if kind in _MEDIA:
            whole = dict(part.raw)
            if isinstance(whole.get(kind), str):
                whole[kind] = self._text(whole[kind], part.at(kind))
            return media_block(whole)
        return part_block(raw, where)

    def _reasoning(self, part: Fields) -> Reasoning:
        """Redacted reasoning is opaque; what can be read of it is the summary."""
        text, redacted = self._text(part.take("reasoning") or "", part.at("reasoning")), part.get("redacted") is True
        summary = part.take("summary")
        readable = self._text(summary, part.at("summary")) if redacted and summary else None
        return Reasoning(
            text=readable if redacted else text,
            encrypted=text if redacted else None,
            redacted=redacted,
            signature=part.take_str("signature"),
        )
