"""Chat-messages rows: `messages` or `prompt` + `completion`, with sampled ids and log-probs where there are any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import cut_short, messages_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.files import Layout
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.model import Message, Trace
from tracemask.trace.parse import DEEP, loads_text, too_deep
from tracemask.trace.sampled import ID_KEYS, sampled_from_fields
from tracemask.trace.scalars import trace_scalars
from tracemask.trace.shape import known

_SIDES = ("messages", "completion", "prompt")
_ENTRY = known("token bytes logprob top_logprobs")
_LOGPROBS = known("", content=_ENTRY, refusal=_ENTRY)

# Keys by which a row with messages is a row of another format.
FOREIGN = (
    "termination_reason",
    "blocks",
    "nodes",
    "trajectory",
    "steps",
    "simulations",
    "history",
    "schema_version",
    "trajectory_format",
    "traces",
    "response_ids",
    "loss_mask",
)


def sniff(head: Head) -> str | None:
    """A `messages` list, or `prompt` and `completion`, in the first records, and no key of another format."""
    rows = head.dicts()
    if any(key in row for row in rows for key in FOREIGN):
        return None
    for row in rows:
        if isinstance(row.get("messages"), list) and _chat_like(row["messages"]):
            return "records have a `messages` list of chat messages"
        prompt, completion = row.get("prompt"), row.get("completion")
        if isinstance(prompt, list) and isinstance(completion, list):
            return "records have `prompt` and `completion` lists of chat messages"
        if isinstance(prompt, str) and isinstance(completion, str):
            return "records have `prompt` and `completion` texts"
    return None


def _chat_like(messages: list[Any]) -> bool:
    return all(isinstance(message, dict) and "role" in message and "blocks" not in message for message in messages)


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One row as one trace; the row's other known keys are the trace's scalars, the rest goes to `extra`."""
    if context.file.layout is Layout.PARQUET:
        value = strip_nulls(value)
    row = Fields(value, "")
    _familiar(row, context)
    messages = _messages(row, context)
    tools = tools_from(row)
    scalars = trace_scalars(row, default_id=context.default_id())
    scalars["edges"] = row.take_list("edges") or []
    _sampled_columns(row, messages)
    if scalars.get("truncated") is None:
        scalars["truncated"] = cut_short(messages)
    return [Trace(messages=messages, tools=tools, extra=row.rest(), **scalars)]


def _familiar(row: Fields, context: Context) -> None:
    """Counts what is dropped of the API's log-prob objects, and refusals, which no template renders.

    Raises TraceError TM911 where a key beside the messages nests too deep.
    """
    if too_deep({key: value for key, value in row.raw.items() if key not in _SIDES}):
        raise row.error("", f"nested deeper than {DEEP} levels", fix="remove the record")
    for key in _SIDES:
        side = row.get(key)
        for raw in cast("list[Any]", side) if isinstance(side, list) else []:
            if isinstance(raw, dict) and ("logprobs" in raw or "refusal" in raw):
                message = cast("dict[str, Any]", raw)
                context.familiar(message.get("logprobs"), _LOGPROBS, f"{key}[].logprobs")
                if message.get("refusal"):
                    context.notes["a refusal is kept, but templates do not render it"] += 1


def _messages(row: Fields, context: Context) -> list[Message]:
    if row.has("messages"):
        raw = row.take("messages")
        if isinstance(raw, str):
            raw = _parsed(raw, row, "messages")
        messages = messages_from_chat(raw, where="messages", clean=False)
        if not messages:
            raise row.error("messages", "the list is empty")
        return messages
    if row.has("prompt") and row.has("completion"):
        return _prompt_completion(row, context)
    raise row.error("messages", "missing", fix="a row needs `messages`, or `prompt` and `completion`")


def _prompt_completion(row: Fields, context: Context) -> list[Message]:
    """prompt and completion: lists of messages, or plain strings (a user turn and a reply).

    Replies inside the prompt were not sampled in this run: they are copied context.
    """
    sides: list[list[Any]] = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        side = row.take(key)
        if isinstance(side, str):
            context.notes[f"`{key}` is a text: one {role} message, not rendered again if it was rendered already"] += 1
        sides.append([{"role": role, "content": side}] if isinstance(side, str) else side)
        if not isinstance(sides[-1], list):
            raise row.error(key, "expected a list of messages or a string")
    messages = messages_from_chat(sides[0], where="prompt", clean=False)
    for message in messages:
        message.copied = message.role == "assistant"
    seen_user = any(message.role == "user" for message in messages)
    for index, message in enumerate(messages_from_chat(sides[1], where="completion", clean=False)):
        if message.id == f"m{index}":
            message.id = f"m{len(messages)}"
        if message.role == "user" and message.author == "taskset" and seen_user:
            message.author = "user"
        seen_user = seen_user or message.role == "user"
        messages.append(message)
    if not messages:
        raise row.error("prompt", "prompt and completion are both empty")
    return messages


def _sampled_columns(row: Fields, messages: list[Message]) -> None:
    """Ids of the whole row (`prompt_token_ids`, `token_ids`) belong to its last reply, where that has none itself."""
    if not any(row.get(key) is not None for key in ID_KEYS):
        return
    replies = [message for message in messages if message.from_policy]
    if len(replies) != 1 or replies[0].sampled is not None:
        raise row.error(
            "token_ids",
            f"one array of ids for {len(replies)} replies",
            fix="put token_ids and logprobs on each assistant message",
        )
    replies[0].sampled = sampled_from_fields(row, reason=replies[0].finish_reason)


def tools_from(row: Fields) -> list[dict[str, Any]] | None:
    """The declared tools: a list of schemas, or its JSON string."""
    tools = row.take_first("tools", "functions")
    if isinstance(tools, str):
        tools = _parsed(tools, row, "tools") if tools.strip() else None
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in cast("list[Any]", tools)):
        raise row.error("tools", "expected a list of objects")
    return cast("list[dict[str, Any]]", tools)


def _parsed(text: str, row: Fields, key: str) -> Any:
    try:
        return loads_text(text)
    except ValueError as error:
        raise row.error(key, f"a string that is not JSON: {error}") from None


def strip_nulls(value: Any) -> Any:
    """Without the nulls of objects: a struct column fills every key that any row has. Nulls in lists stay."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: strip_nulls(item) for key, item in items if item is not None}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return items if items and isinstance(items[0], int | float) else [strip_nulls(item) for item in items]
    return value


FORMAT = Format(
    name="openai",
    title="chat messages as JSONL, JSON or Parquet, with token ids and log-probs per reply where there are any",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
)

__all__ = ["FORMAT", "read", "sniff", "strip_nulls", "tools_from"]
