"""OpenHands event logs: folders of event files, or lists; actions, observations, condensations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import message_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, Line, UnitKind
from tracemask.trace.inputs import Layout
from tracemask.trace.model import Block, Message, Reasoning, Source, Text, ToolCall, ToolResult, Trace
from tracemask.trace.parse import loads, replace_surrogates
from tracemask.trace.tree import Tree

_SAID = (
    "message",
    "run",
    "run_ipython",
    "read",
    "write",
    "edit",
    "browse",
    "browse_interactive",
    "delegate",
    "finish",
    "reject",
    "think",
    "task_tracking",
    "call_tool_mcp",
)
_EVENT = frozenset(
    {
        "id",
        "timestamp",
        "source",
        "message",
        "extras",
        "cause",
        "llm_metrics",
        "tool_call_metadata",
        "args",
        "content",
        "timeout",
        "success",
        "action",
        "action_id",
        "llm_response_id",
        "security_risk",
        "sender",
        "activated_skills",
        "activated_microagents",
        "extended_content",
        "critic_result",
        "thinking_blocks",
        "responses_reasoning_item",
        "summary",
        "tool_call",
        "tool_name",
        "tool_call_id",
        "observation",
        "forgotten_event_ids",
        "forgotten_events_start_id",
        "forgotten_events_end_id",
        "summary_offset",
        "llm_message",
        "dynamic_context",
        "dynamic_context_content",
        "tools",
    }
)
_CALL = frozenset({"function_name", "total_calls_in_response"})
_RESPONSE = frozenset(
    {
        "created",
        "model",
        "object",
        "system_fingerprint",
        "usage",
        "service_tier",
        "prompt_logprobs",
        "prompt_token_ids",
        "kv_transfer_params",
    }
)
_MESSAGE = frozenset(
    {
        "role",
        "content",
        "reasoning_content",
        "tool_calls",
        "tool_call_id",
        "name",
        "thinking_blocks",
        "responses_reasoning_item",
        "function_call",
        "provider_specific_fields",
        "cache_enabled",
        "vision_enabled",
        "function_calling_enabled",
        "force_string_serializer",
    }
)


def sniff(head: Head) -> str | None:
    """A folder `events` of JSON files, or records with `source` and `action`, `observation` or an SDK `kind`."""
    if head.layout is Layout.FOLDER:
        return "a folder of event files"
    rows = head.dicts()
    if rows and all(_is_event(row) for row in rows) and len(rows) == len(head.records):
        return "records are OpenHands events (`source` with `action`, `observation` or `kind`)"
    return None


def _is_event(row: dict[str, Any]) -> bool:
    if not isinstance(row.get("source"), str) or "id" not in row:
        return False
    kind = row.get("kind")
    return (
        "action" in row or "observation" in row or (isinstance(kind, str) and kind.endswith(("Event", "Condensation")))
    )


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One conversation as one trace."""
    events = _events(value, context)
    conversation = _Conversation(context)
    for event in events:
        conversation.event(event)
    return [conversation.trace()]


def _events(value: Any, context: Context) -> list[Fields]:
    if context.file.layout is Layout.FOLDER:
        folder = Path(context.file.path)
        paths = sorted((path for path in folder.iterdir() if path.suffix == ".json"), key=_number)
        found: list[Fields] = []
        for path in paths:
            where = f"{context.file.rel}/{path.name}:"
            try:
                raw, _ = replace_surrogates(loads(path.read_bytes()))
            except (OSError, ValueError) as error:
                raise TraceError("TM910", where=where, what=f"invalid JSON: {error}") from None
            found.append(Fields(raw, where))
        return found
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [
        Fields(item.value, f"{context.where(item.number)}:") if isinstance(item, Line) else Fields(item, "")
        for item in items
    ]


def _number(path: Path) -> tuple[int, str]:
    digits = "".join(char for char in path.stem.removeprefix("event-").split("-")[0] if char.isdigit())
    return (int(digits) if digits else -1, path.name)


class _Conversation:
    """Events in order as a view; a condensation rebuilds the view below a new root."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.tree = Tree()
        self.view: list[tuple[str, Message]] = []  # (event id, message) in the order the model sees them
        self.at: str | None = None
        self.before: str | None = None
        self.group: str | None = None  # the llm response whose actions are one reply
        self.tools: list[dict[str, Any]] | None = None
        self.errors: list[str] = []
        self.seen_user = False
        self.stop: str | None = None
        self.calls: dict[str, str] = {}  # action event id → tool call id

    def event(self, event: Fields) -> None:
        """One event of either generation."""
        name = event.take_id("id") or f"e{len(self.view)}"
        if event.get("action") == "condensation" or event.get("kind") in ("Condensation", "CondensationEvent"):
            self.condense(event if event.has("kind") else self.args(event), name)
        elif event.has("kind"):
            self.sdk(event, name)
        else:
            self.legacy(event, name)
        self.context.unused(event, "event", _EVENT)

    # ---- events of the SDK (kind)

    def sdk(self, event: Fields, name: str) -> None:
        kind = event.take_str("kind") or ""
        source = event.take_str("source")
        if kind == "SystemPromptEvent":
            prompt = Fields(event.take("system_prompt") or {}, event.at("system_prompt"))
            self.append(name, Message(id=name, role="system", author="harness", blocks=[_text(prompt.take("text"))]))
            tools = event.take_list("tools") or []
            self.tools = [tool for tool in tools if isinstance(tool, dict)] or self.tools
        elif kind == "MessageEvent":
            chat = event.take_dict("llm_message") or {}
            message = self.message(chat, name, source, event.at("llm_message"))
            self.append(name, message)
        elif kind == "ActionEvent":
            self.action(event, name)
        elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
            self.observation(event, name, kind)
        else:
            self.context.notes[f"event {kind!r} is not part of the context"] += 1

    def message(self, chat: dict[str, Any], name: str, source: str | None, where: str) -> Message:
        self.context.unused(Fields(chat, where), "message", _MESSAGE)
        allowed = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
        raw = {key: chat[key] for key in allowed if chat.get(key) is not None}
        content = raw.get("content")
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raw["content"] = "".join(str(part.get("text", "")) for part in content)
        message = message_from_chat(raw, 0, where=where, first_user=not self.seen_user)
        message.id = name
        if message.role == "user":
            message.author = "taskset" if not self.seen_user else ("user" if source == "user" else "environment")
            self.seen_user = True
        return message

    def action(self, event: Fields, name: str) -> None:
        """An action joins the reply of its llm response: parallel calls are one message."""
        call = Fields(event.take("tool_call") or {}, event.at("tool_call"))
        response = event.take_id("llm_response_id")
        function = call.raw.get("function") if isinstance(call.raw.get("function"), dict) else call.raw
        arguments = cast("dict[str, Any]", function).get("arguments")
        tool = event.take_str("tool_name") or cast("dict[str, Any]", function).get("name") or "action"
        call_id = event.take_id("tool_call_id") or call.take_id("id")
        from tracemask.trace.chat import arguments_of

        block = ToolCall(id=call_id, name=tool, **arguments_of(arguments, call.at("arguments")))
        if response is not None and response == self.group and self.view[-1][1].role == "assistant":
            self.view[-1][1].blocks.append(block)
            return
        thought = _parts(event.take("thought"))
        reasoning = event.take_str("reasoning_content")
        blocks: list[Block] = [] if not reasoning else [Reasoning(text=reasoning)]
        blocks += [_text(thought)] if thought else []
        self.append(name, Message(id=name, role="assistant", author="policy", blocks=[*blocks, block]))
        self.group = response

    def observation(self, event: Fields, name: str, kind: str) -> None:
        raw = event.take("observation")
        text = event.take_str("error") or event.take_str("rejection_reason")
        if text is None and isinstance(raw, dict):
            text = _parts(cast("dict[str, Any]", raw).get("content")) or _parts(raw.get("output"))
        block = ToolResult(
            call_id=event.take_id("tool_call_id"),
            name=event.take_str("tool_name"),
            content=[_text(text)],
            is_error=kind != "ObservationEvent",
        )
        self.append(name, Message(id=name, role="tool", author="environment", blocks=[block]))

    # ---- events of the older app (action, observation)

    def args(self, event: Fields) -> Fields:
        """The arguments of an action. Raises TraceError TM911 where it has none."""
        return Fields(event.take("args"), event.at("args"))

    def legacy(self, event: Fields, name: str) -> None:
        source, action = event.take_str("source"), event.take_str("action")
        args = self.args(event) if action is not None else Fields({}, event.where)
        meta = event.take("tool_call_metadata")
        if action == "system":
            self.append(name, Message(id=name, role="system", author="harness", blocks=[_text(args.get("content"))]))
            tools = args.get("tools")
            self.tools = tools if isinstance(tools, list) else self.tools
        elif action == "message" and source == "user":
            author = "user" if self.seen_user else "taskset"
            self.seen_user = True
            self.append(name, Message(id=name, role="user", author=author, blocks=[_text(args.get("content"))]))
        elif action is not None and source == "agent":
            self.legacy_action(action, args, meta, name)
        elif event.has("observation"):
            self.legacy_observation(event, meta, name)
        else:
            self.context.notes[f"event {action or source!r} is not part of the context"] += 1

    def legacy_action(self, action: str, args: Fields, meta: Any, name: str) -> None:
        """With tool_call_metadata the model's own message is there; without, the action is text."""
        if isinstance(meta, dict):
            call = Fields(meta, args.at("tool_call_metadata"))
            self.calls[name] = call.take_id("tool_call_id") or ""
            response = Fields(call.take("model_response") or {}, call.at("model_response"))
            self.context.unused(call, "tool_call_metadata", _CALL)
            identity = response.take_id("id")
            if identity is not None and identity == self.group:
                return  # another call of the same reply
            choices = response.take_list("choices") or []
            self.context.unused(response, "model_response", _RESPONSE)
            if choices:
                choice = Fields(choices[0], response.at("choices[0]"))
                self.append(name, self.message(choice.take_dict("message") or {}, name, "agent", choice.at("message")))
                self.group = identity
                return
        if action not in _SAID:
            self.context.notes[f"event {action!r} is not part of the context"] += 1
            return
        self.stop = "finish" if action == "finish" else self.stop
        thought = args.get("thought") or args.get("content") or ""
        rest = {key: value for key, value in args.raw.items() if key in ("command", "code", "path", "url")}
        text = str(thought) if not rest else f"{thought}\n{json.dumps(rest, ensure_ascii=False)}".strip()
        self.append(name, Message(id=name, role="assistant", author="policy", blocks=[_text(text)]))

    def legacy_observation(self, event: Fields, meta: Any, name: str) -> None:
        kind = event.take_str("observation")
        if kind in ("agent_state_changed", "recall", "null"):
            self.context.notes[f"event {kind!r} is not part of the context"] += 1
            return
        text = _text(event.take("content"))
        call_id = Fields(meta, "tool_call_metadata").take_id("tool_call_id") if isinstance(meta, dict) else None
        call_id = call_id or self.calls.get(str(event.get("cause")))
        if call_id:
            block = ToolResult(call_id=call_id, content=[text], is_error=kind == "error")
            self.append(name, Message(id=name, role="tool", author="environment", blocks=[block]))
        else:
            self.append(name, Message(id=name, role="user", author="environment", blocks=[text]))

    # ---- the view

    def append(self, name: str, message: Message) -> None:
        self.group = None
        self.tree.add(message, self.at)
        if self.before is not None:
            self.tree.link("compaction", self.before, message.id, trigger="condensation")
            self.before = None
        self.at = message.id
        self.view.append((name, message))

    def condense(self, args: Fields, name: str) -> None:
        """The forgotten events leave the view, the summary (another call's words) enters at its offset: a new root."""
        ids = args.take("forgotten_event_ids")
        start, end = args.take_int("forgotten_events_start_id"), args.take_int("forgotten_events_end_id")
        gone = {str(item) for item in cast("list[Any]", ids or [])}
        if start is not None and end is not None:
            gone |= {str(number) for number in range(start, end + 1)}
        summary, offset = args.take_str("summary"), args.take_int("summary_offset")
        kept = [(event, message) for event, message in self.view if event not in gone]
        new = [
            (event, message.model_copy(update={"copied": True, "sampled": None}, deep=True)) for event, message in kept
        ]
        if summary is not None:
            block = Message(id=name, role="user", author="model", blocks=[_text(summary)])
            new.insert(len(new) if offset is None else min(offset, len(new)), (name, block))
        prefix = 0  # what is unchanged from the root stays the same nodes
        while prefix < len(new) and prefix < len(self.view) and new[prefix][0] == self.view[prefix][0]:
            prefix += 1
        self.before, old = self.at, self.view
        self.view = old[:prefix]
        self.at = self.view[-1][1].id if self.view else None
        for event, message in new[prefix:]:
            self.append(event, message)

    def trace(self) -> Trace:
        if not self.tree.messages:
            raise TraceError("TM904", where="", what="no event is part of a context")
        name = self.context.file.rel.removesuffix("/events").removesuffix(".json").removesuffix(".jsonl")
        return self.tree.trace(
            id=name, tools=self.tools, stop=self.stop, errors=self.errors, source=Source(format="openhands")
        )


def _text(value: Any) -> Text:
    return Text(text=value if isinstance(value, str) else _parts(value))


def _parts(value: Any) -> str:
    """The text of a string or of a list of text parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in cast("list[Any]", value) if isinstance(part, dict))
    return ""


FORMAT = Format(
    name="openhands",
    title="OpenHands event folders and event lists: condensations rebuild the context",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
)
