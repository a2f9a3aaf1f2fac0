"""tau2-bench results: an agent and a user simulator, whose words are another model's and never trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import message_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind, keep
from tracemask.trace.model import Message, Source, Trace

_LIMITS = {"max_steps", "timeout"}


def sniff(head: Head) -> str | None:
    """`simulations` with messages, beside `tasks` or `info`."""
    for row in head.dicts():
        if isinstance(row.get("simulations"), list) and ("tasks" in row or "info" in row):
            return "a results document with `simulations`"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One results document as one trace a simulation."""
    row = Fields(value, "")
    info = row.take_dict("info") or {}
    traces: list[Trace] = []
    for index, raw in enumerate(row.take_list("simulations") or []):
        traces.append(_simulation(Fields(raw, f"simulations[{index}]"), info, context, index))
    if not traces:
        raise TraceError("TM904", where="simulations", what="no simulations")
    return traces


def _simulation(run: Fields, info: dict[str, Any], context: Context, index: int) -> Trace:
    messages: list[Message] = []
    for position, raw in enumerate(run.take_list("messages") or []):
        _append(messages, Fields(raw, run.at(f"messages[{position}]")), position, context)
    if not messages:
        raise run.error("messages", "missing or empty")
    reward = Fields(run.take("reward_info") or {}, run.at("reward_info")).take_number("reward")
    stop, task = run.take_str("termination_reason"), run.take_id("task_id")
    context.notes["the agent's system prompt and tool schemas are not in this log"] += 1
    return Trace(
        id=run.take_id("id") or f"{context.file.rel}:{index}",
        task_id=task,
        group_id=task,
        attempt=run.take_int("trial"),
        messages=messages,
        reward=reward,
        stop=stop,
        truncated=True if stop in _LIMITS else None,
        source=Source(format="tau2"),
        extra=run.rest() | {"agent": Fields(info.get("agent_info") or {}, "info.agent_info").get("llm")},
    )


def _append(messages: list[Message], entry: Fields, position: int, context: Context) -> None:
    """What the agent saw or said; the simulator's own tool use is in another context and is left out, counted."""
    role = entry.get("role")
    several = entry.take_list("tool_messages")
    if several is not None:
        for number, raw in enumerate(several):
            _append(messages, Fields(raw, entry.at(f"tool_messages[{number}]")), position, context)
        return
    if (role == "tool" and entry.get("requestor") == "user") or (role == "user" and entry.get("tool_calls")):
        context.notes["tool use of the user simulator is not in the agent's context"] += 1
        if not entry.get("content") or role == "tool":
            return
        entry.take("tool_calls")
    chat = {key: entry.get(key) for key in ("role", "content", "tool_calls", "name") if entry.get(key) is not None}
    if role == "tool":
        chat["tool_call_id"] = entry.get("id") or entry.get("tool_call_id")
        chat["is_error"] = entry.get("error") or None
    message = message_from_chat(chat, position, where=entry.where)
    message.id = f"m{len(messages)}"
    if role == "user":
        message.author = "model"
    elif role == "assistant" and not messages:
        message.author = "harness"  # the fixed greeting
    keep(message, {key: value for key, value in entry.rest().items() if key not in (*chat, "id", "error")})
    messages.append(message)


FORMAT = Format(
    name="tau2",
    title="tau2-bench results: the user simulator's words are another model's",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
    known=frozenset(
        {
            "agent",
            "start_time",
            "end_time",
            "duration",
            "agent_cost",
            "user_cost",
            "seed",
            "turn_idx",
            "timestamp",
            "cost",
            "usage",
            "raw_data",
            "requestor",
            "mode",
            "speech_environment",
        }
    ),
)
