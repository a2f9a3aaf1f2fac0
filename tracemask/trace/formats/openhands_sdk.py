"""Events of the OpenHands SDK (`kind`): messages, actions, observations, token ids. Knows no file."""

from __future__ import annotations

from typing import Any, cast

from tracemask.trace.chat import CALL_SHAPE, CHAT_SHAPE, arguments_of
from tracemask.trace.fields import Fields
from tracemask.trace.formats.openhands_told import told
from tracemask.trace.formats.openhands_view import View
from tracemask.trace.model import AuthorName, Block, Message, Reasoning, Text, ToolCall, ToolResult
from tracemask.trace.parts import content_blocks
from tracemask.trace.responses import reasoning_block
from tracemask.trace.sampled import build_sampled, ids_from
from tracemask.trace.shape import known

_OBSERVING = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
_PART = known("type text image_urls cache_prompt enable_truncation thinking signature data")
_SAID = {
    "thinking_blocks": _PART,
    "responses_reasoning_item": known("id summary content encrypted_content status"),
    "reasoning_details": None,
    "reasoning_content": None,
}
SDK_SHAPE = {
    **known(
        "id timestamp source parent_id kind message tool_name tool_call_id llm_response_id security_risk summary "
        "critic_result observation action action_id error classification rejection_reason rejection_source "
        "activated_skills sender tools forgotten_event_ids summary_offset reason code detail "
        "prompt_token_ids response_token_ids"
    ),
    **_SAID,
    "system_prompt": _PART,
    "dynamic_context": _PART,
    "extended_content": _PART,
    "thought": _PART,
    "tool_call": {**CALL_SHAPE, **known("responses_item_id origin security_risk summary")},
    "llm_message": {
        **CHAT_SHAPE,
        **_SAID,
        **known("cache_enabled vision_enabled function_calling_enabled force_string_serializer send_reasoning_content"),
        "content": _PART,
    },
}


class Sdk:
    """Puts the SDK's events into a view."""

    def __init__(self, view: View) -> None:
        self.view = view

    def event(self, event: Fields, name: str) -> None:
        """One event; kinds that the model does not see are noted."""
        kind = event.take_str("kind") or ""
        if kind == "SystemPromptEvent":
            self._system(event, name)
        elif kind == "MessageEvent":
            self._message(event, name)
        elif kind == "ActionEvent":
            self._action(event, name)
        elif kind in _OBSERVING:
            self._observation(event, name, kind)
        elif kind == "TokenEvent":
            self._tokens(event)
        elif kind == "CondensationSummaryEvent":
            words: list[Block] = [Text(text=event.take_str("summary") or "")]
            self.view.append(name, Message(id=name, role="user", author="model", blocks=words))
        elif kind == "ConversationErrorEvent":
            self.view.errors.append(f"{event.take_str('code') or 'error'}: {event.take_str('detail') or ''}")
        else:
            self.view.passed_over(kind)

    def _system(self, event: Fields, name: str) -> None:
        """The prompt, and the part of it that changes with each conversation."""
        blocks = [
            block
            for key in ("system_prompt", "dynamic_context")
            for block in content_blocks(_as_list(event.take(key)), event.at(key))
        ]
        self.view.append(name, Message(id=name, role="system", author="harness", blocks=blocks))
        tools = event.take_list("tools") or []
        self.view.tools = [tool for tool in tools if isinstance(tool, dict)] or self.view.tools

    def _message(self, event: Fields, name: str) -> None:
        first = not self.view.seen_user
        chat = event.take_dict("llm_message") or {}
        message = self.view.chat(chat, name, event.at("llm_message"))
        if message.role == "user" and not first:
            message.author = "user" if event.get("source") == "user" else "environment"
        if message.role == "assistant":
            thoughts = _thoughts(Fields(chat, event.at("llm_message")))
            spoken = [block for block in message.blocks if not isinstance(block, Reasoning)]
            message.blocks = [*(thoughts or message.blocks[: len(message.blocks) - len(spoken)]), *spoken]
        self._extend(message.blocks, event, "harness")
        self.view.append(name, message)

    def _action(self, event: Fields, name: str) -> None:
        """An action joins the reply of its llm response: parallel calls are one message."""
        response, block = event.take_id("llm_response_id"), _call(event)
        last = self.view.last_reply()
        if response is not None and response == self.view.group and last is not None:
            last.blocks.append(block)
            return
        thought = content_blocks(_as_list(event.take("thought")), event.at("thought"))
        spoken = [part for part in thought if not isinstance(part, Text) or part.text]
        blocks: list[Block] = [*_thoughts(event), *spoken, block]
        message = Message(id=name, role="assistant", author="policy", blocks=blocks)
        self.view.append(name, message)
        self.view.group = response

    def _observation(self, event: Fields, name: str, kind: str) -> None:
        """What the model was told of a call: the tool's content, the scaffold's error, or a rejection."""
        raw = event.take("observation")
        inner = Fields(raw, event.at("observation")) if isinstance(raw, dict) else Fields({}, event.where)
        failed = inner.get("is_error") is True or kind != "ObservationEvent"
        said = event.take_str("error")
        if kind == "UserRejectObservation":
            said = f"Action rejected: {event.take_str('rejection_reason') or ''}"
        blocks: list[Block] = [Text(text=said)] if said is not None else told(inner, self.view.context.notes)
        self._extend(blocks, event, "harness")
        call_id, tool = event.take_id("tool_call_id"), event.take_str("tool_name")
        result = ToolResult(call_id=call_id, name=tool, content=blocks or [Text(text="")], is_error=failed)
        group = self.view.group  # an error may come between two actions of one response
        self.view.append(name, Message(id=name, role="tool", author="environment", blocks=[result]))
        self.view.group = group if kind == "AgentErrorEvent" else None

    def _extend(self, blocks: list[Block], event: Fields, author: AuthorName) -> None:
        """What the agent's context adds to a message before the model sees it."""
        for block in content_blocks(_as_list(event.take("extended_content")), event.at("extended_content")):
            block.author = author
            blocks.append(block)

    def _tokens(self, event: Fields) -> None:
        """The engine's ids of the last reply: the SDK writes them after its message or its actions."""
        sampled = build_sampled(
            {
                "token_ids": ids_from(event.take("response_token_ids"), event.at("response_token_ids")),
                "prompt_ids": ids_from(event.take("prompt_token_ids"), event.at("prompt_token_ids")),
            },
            event.where,
        )
        last = self.view.last_reply()
        if last is not None and last.sampled is None and last.from_policy:
            last.sampled = sampled
        else:
            self.view.context.notes["token ids of a reply that is not in this log"] += 1


def _call(event: Fields) -> ToolCall:
    call = Fields(event.take("tool_call") or {}, event.at("tool_call"))
    function = call.raw.get("function")
    inner: dict[str, Any] = dict(cast("dict[str, Any]", function) if isinstance(function, dict) else call.raw)
    tool = event.take_str("tool_name") or inner.get("name") or "action"
    arguments = arguments_of(inner.get("arguments"), call.at("arguments"))
    return ToolCall(id=event.take_id("tool_call_id") or call.take_id("id"), name=tool, **arguments)


def _thoughts(fields: Fields) -> list[Block]:
    """Reasoning in the form that says most: signed blocks, an item of the Responses API, or its plain text."""
    text, item = fields.take_str("reasoning_content"), fields.take("responses_reasoning_item")
    blocks: list[Block] = []
    for index, raw in enumerate(fields.take_list("thinking_blocks") or []):
        part = Fields(raw, fields.at(f"thinking_blocks[{index}]"))
        thought, data = part.take_str("thinking"), part.take_str("data")
        if thought or data:
            blocks.append(
                Reasoning(text=thought, encrypted=data, signature=part.take_str("signature"), redacted=not thought)
            )
    if not blocks and item is not None:
        blocks.append(reasoning_block(Fields(item, fields.at("responses_reasoning_item"))))
    if text and not any(isinstance(block, Reasoning) and block.text for block in blocks):
        blocks.insert(0, Reasoning(text=text))
    return blocks


def _as_list(value: Any) -> Any:
    """A single part is a list of one."""
    return [value] if isinstance(value, dict) else value
