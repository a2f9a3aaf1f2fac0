"""Replies with tool calls that a template cannot print: the sampled ids stand for them. Knows no render and no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.core.finding import Finding
from tracemask.render.manner import object_of
from tracemask.render.turns import finding
from tracemask.trace.model import Message, ToolCall


def unprintable(messages: Sequence[Message]) -> list[int]:
    """The messages of a branch with a call whose arguments spell no object: many templates take nothing else."""
    return [k for k, message in enumerate(messages) if any(map(_broken, message.blocks))]


def standing(messages: Sequence[Message]) -> frozenset[int] | None:
    """Those messages, if no token of them is read from a render; None if the text of one is needed, or none is there.

    A reply whose ids are known needs none. A message that the policy did not sample here needs none where engines gave
    the whole context of every later reply, and a later reply there is.
    """
    found = unprintable(messages)
    replies = [k for k, message in enumerate(messages) if message.from_policy]
    for k in found:
        if messages[k].from_policy:
            known = messages[k].sampled is not None
        else:
            later = [messages[reply].sampled for reply in replies if reply > k]
            known = bool(later) and all(sampled is not None and sampled.prompt_ids is not None for sampled in later)
        if not known:
            return None
    return frozenset(found) or None


def stood_in(chat: Sequence[dict[str, Any]], at: frozenset[int]) -> list[dict[str, Any]]:
    """The chat in which {} stands for arguments that spell no object; other arguments, and messages, as they are."""
    return [
        {**message, "tool_calls": [_emptied(call) for call in message["tool_calls"]]} if k in at else message
        for k, message in enumerate(chat)
    ]


def noted(messages: Sequence[Message], at: frozenset[int], index: Sequence[int]) -> list[Finding]:
    """TM116 for each message that ids stand for. index: of each message in the trace."""
    found: list[Finding] = []
    for k in sorted(at):
        names = [block.name for block in messages[k].blocks if isinstance(block, ToolCall) and _broken(block)]
        what = f"the template takes no arguments that spell no object, as those of {names[0]!r}: "
        if messages[k].sampled is None:
            what += "only the ids of later contexts hold them"
        else:
            rendered = [
                later
                for later in range(k + 1, len(messages))
                if messages[later].from_policy and not _has_context(messages[later])
            ]
            what += "the sampled ids stand for the reply"
            what += ", in the contexts of later replies, too: the log has no ids of these" if rendered else ""
        found.append(finding("TM116", what, index[k], count=len(names)))
    return found


def told(error: RenderError, messages: Sequence[Message]) -> RenderError:
    """A template's refusal with what would make the trace renderable, where unprintable calls may be the reason."""
    at = unprintable(messages)
    if error.code != "TM920" or not at:
        return error
    what = f"{error.what}; the arguments of message {at[0]} spell no JSON object"
    return RenderError(error.code, where=error.where, what=what, fix="log token_ids: with them its text is not needed")


def _has_context(message: Message) -> bool:
    return message.sampled is not None and message.sampled.prompt_ids is not None


def _broken(block: object) -> bool:
    return isinstance(block, ToolCall) and block.raw_arguments is not None and object_of(block.raw_arguments) is None


def _emptied(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str) or object_of(arguments) is not None:
        return dict(call)
    return {**call, "function": {**function, "arguments": {}}}
