"""Legacy verifiers results: a `trajectory` of steps that each state their whole prompt and carry their tokens."""

from __future__ import annotations

from typing import Any

from tracemask.trace.chat import messages_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, keep
from tracemask.trace.formats.openai import tools_from
from tracemask.trace.formats.rollout_columns import flags
from tracemask.trace.model import Message, Sampled, Source, Trace
from tracemask.trace.sampled import build_sampled, ids_from
from tracemask.trace.scalars import trace_scalars
from tracemask.trace.spans import spans_of, spread
from tracemask.trace.tree import Tree


def legacy_trace(row: Fields, context: Context) -> Trace:
    """Each step states its whole prompt: equal prefixes are shared, rewritten history forks."""
    tree = Tree()
    previous: str | None = None
    steps = row.take_list("trajectory")
    if not steps:
        raise row.error(
            "trajectory", "missing or empty", fix="results were saved without their steps: read them as openai"
        )
    for index, raw in enumerate(steps):
        step = Fields(raw, f"trajectory[{index}]")
        prompt = _side(step, "prompt")
        completion = _side(step, "completion")
        if not completion:
            raise step.error("completion", "missing")
        at, fresh = tree.walk(prompt), tree.fresh
        reply = completion[0]
        _sample(reply, step)
        keep(reply, step.rest())
        at = tree.add(reply, at)
        if previous is not None and not tree.follows(at, previous):
            tree.link("rewrite", previous, fresh or at, trigger="prompt does not extend the last reply")
        previous = at
        for message in completion[1:]:
            at = tree.walk([message], at)
    for key in ("prompt", "completion"):
        if left := tree.absent(_whole(row, key)):
            context.notes[f"a message of `{key}` that no step of the trajectory holds"] += left
    tools = tools_from(row)
    if tools is None:
        declared = row.take_list("tool_defs") or row.take_list("oai_tools") or []
        tools = [nested_tool(tool) for tool in declared] or None
    scalars = trace_scalars(row, default_id=context.default_id())
    return tree.trace(tools=tools, source=Source(format="verifiers", version="legacy"), extra=row.rest(), **scalars)


def _sample(reply: Message, step: Fields) -> None:
    """The reply's tokens, and why it stopped."""
    cut = "length" if step.take_bool("is_truncated") else None
    reply.sampled = _legacy_tokens(step)
    if reply.sampled is None:
        reply.finish_reason = reply.finish_reason or cut
        return
    reply.finish_reason = None
    reply.sampled.finish_reason = reply.sampled.finish_reason or cut
    reply.sampled.reward, reply.sampled.advantage = step.take_number("reward"), step.take_number("advantage")


def nested_tool(raw: Any) -> dict[str, Any]:
    """A flat verifiers tool as the nested form that chat templates expect."""
    tool = Fields(raw, "tools").raw
    if "function" in tool:
        return dict(tool)
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _whole(row: Fields, key: str) -> list[Message]:
    """The row's own prompt or completion, which repeats the steps."""
    side = row.take(key)
    if isinstance(side, str):
        side = [{"role": "user" if key == "prompt" else "assistant", "content": side}]
    return messages_from_chat(side or [], where=key, clean=False)


def _side(step: Fields, key: str) -> list[Message]:
    side = step.take(key)
    if isinstance(side, str):
        side = [{"role": "user" if key == "prompt" else "assistant", "content": side}]
    messages = messages_from_chat(side or [], where=step.at(f"{key}"), clean=False)
    for message in messages:
        message.id = f"{'p' if key == 'prompt' else 'c'}{step.where[11:-1]}.{message.id[1:]}"
        if key == "completion" and message.author == "taskset":
            message.author = "user"
    return messages


def _legacy_tokens(step: Fields) -> Sampled | None:
    raw = step.take("tokens")
    if raw is None:
        return None
    tokens = Fields(raw, step.at("tokens"))
    ids = ids_from(tokens.take("completion_ids"), tokens.at("completion_ids"))
    inside = flags(tokens.take("completion_mask"), len(ids), tokens.at("completion_mask"))
    values: dict[str, Any] = {"token_ids": ids, "spans": spans_of(inside)}
    if tokens.get("prompt_ids") is not None:
        values["prompt_ids"] = ids_from(tokens.take("prompt_ids"), tokens.at("prompt_ids"))
    logprobs = tokens.take("completion_logprobs")
    if logprobs:
        values["logprobs"] = spread(logprobs, inside, len(ids), 0, tokens.at("completion_logprobs"))
    if tokens.take_bool("is_truncated"):
        values["finish_reason"] = "length"
    return build_sampled(values, tokens.where)
