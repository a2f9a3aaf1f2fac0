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
from tracemask.trace.shape import known

_LIMITS = {"max_steps", "timeout", "context_window_exceeded"}
_FAILED = {"infrastructure_error", "unexpected_error"}  # the run broke: nobody's policy earned its reward


def sniff(head: Head) -> str | None:
    """`simulations` with messages, beside `tasks` or `info`, or one simulation of a folder of them."""
    for row in head.dicts():
        if "termination_reason" in row and "task_id" in row and ("messages" in row or "ticks" in row):
            return "a simulation with its `termination_reason`"
        if isinstance(row.get("simulations"), list) and ("tasks" in row or "info" in row):
            return "a results document with `simulations`"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One results document as one trace a simulation; a file of one simulation as one trace."""
    row = Fields(value, "")
    if row.has("termination_reason"):
        return [_simulation(row, {}, context, 0)]
    info = row.take_dict("info") or {}
    simulations = row.take_list("simulations") or []
    if not simulations:
        raise TraceError("TM904", where="simulations", what="no simulations")

    def simulation(index: int) -> Trace:
        return _simulation(Fields(simulations[index], f"simulations[{index}]"), info, context, index)

    return context.apart(range(len(simulations)), simulation)


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
        errors=[stop] if stop in _FAILED else [],
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
    if entry.get("is_audio") is True:  # then the content is no text
        chat["content"] = [{"type": "audio", "audio": entry.get("audio_path"), "data": entry.get("content")}]
    if entry.get("context_truncation") is not None:
        context.notes["a reply's context was cut: what it still held is not in this log"] += 1
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


_CALL = known("id name arguments requestor")
_MESSAGE = known(
    # what is read of it
    "role content id error requestor tool_call_id name "
    # its log
    "turn_idx timestamp cost usage raw_data generation_time_seconds context_truncation is_audio audio_format "
    "audio_path audio_script_gold speech_effects source_effects channel_effects turn_taking_action utterance_ids "
    "chunk_id is_final_chunk source contains_speech",
    tool_calls=_CALL,
)
_SIMULATION = known(
    "id task_id trial termination_reason start_time end_time timestamp duration agent_cost user_cost seed mode "
    "speech_environment info effect_timeline ticks policy voice_settings agent_usage review user_only_review "
    "auth_classification hallucination_retries_used hallucination_check provider_session_id",
    messages={**_MESSAGE, "tool_messages": _MESSAGE},
    reward_info=known(
        "reward db_check env_assertions action_checks nl_assertions communicate_checks reward_basis "
        "reward_breakdown info partial_action_reward"
    ),
)

FORMAT = Format(
    name="tau2",
    title="tau2-bench results: the user simulator's words are another model's",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
    shape={**_SIMULATION, **known("timestamp info tasks simulation_index format_version", simulations=_SIMULATION)},
)
