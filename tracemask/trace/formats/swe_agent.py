"""SWE-agent `.traj` (each step states its exact prompt) and mini-swe-agent `.traj.json` (one linear history)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import CALL_SHAPE, CHAT_SHAPE, cut_short, message_from_chat
from tracemask.trace.engine import call_of
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind, keep
from tracemask.trace.model import Block, Message, Source, Text, Trace
from tracemask.trace.responses import CALLS, OUTPUTS, call_block, output_block, reasoning_block, said_blocks
from tracemask.trace.shape import known
from tracemask.trace.tree import Tree

# Ends at a limit; a patch that is submitted then stands before it: submitted (exit_cost).
_LIMITS = ("exit_cost", "exit_context", "exit_total_execution_time", "LimitsExceeded", "TimeExceeded")
_CHAT_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking"}


def sniff(head: Head) -> str | None:
    """`trajectory` steps with `query` or `response` beside `info`; or `trajectory_format` of mini-swe-agent."""
    for row in head.dicts():
        form = row.get("trajectory_format")
        if isinstance(form, str) and form.startswith("mini-swe-agent"):
            return f"trajectory_format is {form}"
        steps = row.get("trajectory")
        if isinstance(steps, list) and "info" in row and all(_is_step(step) for step in steps):
            return "a SWE-agent `trajectory` of action, observation and response, and `info`"
    return None


def _is_step(step: Any) -> bool:
    return isinstance(step, dict) and "response" in step and ("action" in step or "query" in step)


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One trajectory document as one trace."""
    row = Fields(value, "")
    info = Fields(row.take("info") or {}, "info")
    form = row.take_str("trajectory_format")
    tree = Tree()
    if form is not None:
        _mini(tree, row, context)
    else:
        _steps(tree, row, context)
    if not tree.messages:
        raise row.error("messages" if form else "trajectory", "no messages")
    last = next((message for message in reversed(tree.messages) if message.role == "assistant"), None)
    stop = info.take_str("exit_status")
    name = row.take_id("instance_id") or _stem(context.file.rel)
    for key in ("history", "trajectory", "messages"):
        row.take(key)
    trace = tree.trace(
        id=name if row.get("id") is None else row.take_id("id"),
        task_id=name,
        stop=stop,
        truncated=True
        if stop is not None and stop.removeprefix("submitted (").removesuffix(")") in _LIMITS
        else cut_short([last])
        if last is not None
        else None,
        source=Source(format="swe-agent", version=form or "swe-agent"),
        extra=row.rest() | {"info": info.rest()},
    )
    return [trace]


def _stem(rel: str) -> str:
    name = rel.rsplit("/", 1)[-1]
    for suffix in (".gz", ".json", ".traj"):
        name = name.removesuffix(suffix)
    return name


# ------------------------------------------------------------------------------------------------ SWE-agent


def _steps(tree: Tree, row: Fields, context: Context) -> None:
    """Each step is one call whose prompt was `query`: elided observations and demonstrations show only there."""
    replies = _history_replies(row)
    steps = row.take_list("trajectory") or []
    at: str | None = None
    previous: str | None = None
    for index, raw in enumerate(steps):
        step = Fields(raw, f"trajectory[{index}]")
        reply = _reply(step, replies, index)
        query = step.take_list("query")
        if query is None:
            context.notes["a step without `query`: its prompt is the history so far"] += 1
        else:
            prompt = _prompt(query, step.at("query"), index)
            at = tree.walk(prompt)
        fresh = tree.fresh
        tree.add(reply, at)
        if previous is not None and query is not None and not tree.follows(reply.id, previous):
            tree.link("rewrite", previous, fresh or reply.id, trigger="history processor")
        previous = at = reply.id
        observation = step.take_str("observation")
        after = steps[index + 1] if index + 1 < len(steps) else None
        if after is None or not isinstance(after, dict) or cast("dict[str, Any]", after).get("query") is None:
            at = _observed(tree, observation, at, index)
        keep(reply, step.rest())
    history = row.take_list("history") or []
    entries = [_message(Fields(raw, f"history[{i}]"), i, f"h{i}") for i, raw in enumerate(history if steps else [])]
    if left := tree.absent(entries):
        context.notes["a history entry that is in no step's query"] += left
    if not steps:
        tree.walk(_prompt(history, "history", 0))


def _observed(tree: Tree, observation: str | None, at: str, index: int) -> str:
    """The observation after a step whose successor does not repeat it in a query."""
    if not observation:
        return at
    message = Message(id=f"o{index}", role="user", author="environment", blocks=[Text(text=observation)])
    return tree.add(message, at)


def _history_replies(row: Fields) -> list[Message]:
    """The policy's entries of `history`, in order: only there tool calls are whole."""
    found: list[Message] = []
    history = row.get("history")
    for index, raw in enumerate(cast("list[Any]", history) if isinstance(history, list) else []):
        entry = Fields(raw, f"history[{index}]")
        if entry.get("role") == "assistant" and not entry.get("is_demo"):
            found.append(_message(entry, index, f"h{index}"))
    return found


def _reply(step: Fields, replies: list[Message], index: int) -> Message:
    """The step's reply: the next history entry that says the same, else its `response` text."""
    response = step.take_str("response")
    if response is None:
        raise step.error("response", "missing")
    thought = step.get("thought")
    for position, found in enumerate(replies):
        if found.text() in (response, thought) or (not found.text() and not response):
            del replies[: position + 1]
            found.id = f"r{index}"
            return found
    calls = step.take("tool_calls")
    raw: dict[str, Any] = {"role": "assistant", "content": response}
    if calls:
        raw["tool_calls"] = calls
    message = message_from_chat(raw, index, where=step.where)
    message.id = f"r{index}"
    return message


def _prompt(query: list[Any], where: str, step: int) -> list[Message]:
    messages: list[Message] = []
    answered = False
    seen_user = False
    for index, raw in enumerate(query):
        entry = Fields(raw, f"{where}[{index}]")
        message = _message(entry, index, f"q{step}.{index}")
        demo = entry.get("is_demo") is True or entry.get("message_type") == "demonstration"
        if message.role == "user":
            message.author = (
                "harness" if demo or (seen_user and not answered) else "environment" if answered else "taskset"
            )
            seen_user = seen_user or message.author == "taskset"
        if demo:
            message.copied = message.role == "assistant"
        answered = answered or (message.role == "assistant" and not demo)
        messages.append(message)
    return messages


def _message(entry: Fields, index: int, name: str) -> Message:
    """A history entry: chat keys as they are; agent, thought, action and tags are its log."""
    kept = {key: value for key, value in entry.raw.items() if key in _CHAT_KEYS}
    calls = entry.get("tool_call_ids")
    if entry.get("role") == "tool" and isinstance(calls, list) and calls and "tool_call_id" not in kept:
        kept["tool_call_id"] = calls[0]
    blocks = entry.get("thinking_blocks")
    if isinstance(blocks, list) and "reasoning_content" not in kept:
        texts = [block.get("thinking") for block in cast("list[Any]", blocks) if isinstance(block, dict)]
        kept["reasoning_content"] = "".join(text for text in texts if isinstance(text, str)) or None
    message = message_from_chat(kept, index, where=entry.where)
    message.id = name
    keep(message, {key: value for key, value in entry.raw.items() if key not in _CHAT_KEYS and value is not None})
    return message


# ------------------------------------------------------------------------------------------------ mini-swe-agent


def _mini(tree: Tree, row: Fields, context: Context) -> None:
    """One list of messages; `exit` is the harness's note of the end, answers of the Responses API are whole objects."""
    at: str | None = None
    asked = replied = False
    for index, raw in enumerate(row.take_list("messages") or []):
        where = f"messages[{index}]"
        entry = Fields(raw, where)
        extra = entry.take("extra")
        if entry.get("role") == "exit":
            context.notes["the harness's own note of the end is not part of the context"] += 1
            continue
        if entry.get("object") == "response":
            message = _response(entry, index)
        elif entry.get("type") in OUTPUTS:
            message = Message(id=f"m{index}", role="tool", author="environment", blocks=[output_block(entry)])
        else:
            chat = {key: value for key, value in entry.raw.items() if key in _CHAT_KEYS}
            if entry.get("role") == "assistant":
                chat |= _call(extra, f"{where}.extra.response")
            message = message_from_chat(chat, index, where=where)
            if message.role == "user":
                message.author = "environment" if replied else "harness" if asked else "taskset"
                asked = True
            rest = {key: value for key, value in entry.raw.items() if key not in _CHAT_KEYS and value is not None}
            keep(message, rest | ({"extra": extra} if extra else {}))
        replied = replied or message.role == "assistant"
        at = tree.add(message, at)


def _call(extra: Any, where: str) -> dict[str, Any]:
    """What the engine said of a call: ids and log-probs where it was asked for them, why it stopped."""
    response = cast("dict[str, Any]", extra).get("response") if isinstance(extra, dict) else None
    return call_of(response, where) if isinstance(response, dict) else {}


def _response(entry: Fields, index: int) -> Message:
    blocks: list[Block] = []
    for position, raw in enumerate(entry.take_list("output") or []):
        item = Fields(raw, entry.at(f"output[{position}]"))
        kind = item.get("type")
        if kind == "reasoning":
            blocks.append(reasoning_block(item))
        elif kind in CALLS:
            blocks.append(call_block(item))
        elif kind == "message":
            blocks.extend(said_blocks(item.get("content"), item.at("content")))
        else:
            raise TraceError("TM911", where=item.at("type"), what=f"unknown output item {kind!r}")
    return Message(id=f"m{index}", role="assistant", author="policy", blocks=blocks)


_ENTRY = {
    **CHAT_SHAPE,
    **known(
        "agent message_type is_demo thought action tool_call_ids cache_control tags extra timestamp "
        # mini-swe-agent's whole responses and outputs of the Responses API
        "type object output call_id status id model usage created_at error"
    ),
    "thinking_blocks": known("type thinking signature data"),
}

FORMAT = Format(
    name="swe-agent",
    title="SWE-agent .traj (exact prompts in `query`) and mini-swe-agent .traj.json",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape=known(
        "info environment replay_config instance_id id trajectory_format swe_agent_hash swe_agent_version",
        history=_ENTRY,
        messages=_ENTRY,
        trajectory=known(
            "action observation response thought state execution_time extra_info",
            query=_ENTRY,
            tool_calls=CALL_SHAPE,
            thinking_blocks=known("type thinking signature data"),
        ),
    ),
)
