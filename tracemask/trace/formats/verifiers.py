"""verifiers: v1 `traces.jsonl` (episodes, traces, nodes; as prime-rl writes it) and legacy results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.vocab import Fidelity
from tracemask.trace.arrays import Packed, packed_ids
from tracemask.trace.chat import message_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind, keep
from tracemask.trace.formats.rollout_columns import flags
from tracemask.trace.formats.verifiers_legacy import legacy_trace, nested_tool
from tracemask.trace.formats.verifiers_shape import SHAPE
from tracemask.trace.model import EdgeKind, Message, Sampled, Source, Trace
from tracemask.trace.sampled import build_sampled, ids_from
from tracemask.trace.scalars import reward_of
from tracemask.trace.spans import spans_of, spread
from tracemask.trace.tree import Tree

_TOKEN_COLUMNS = {
    "reference_logprobs": "ref_logprob",
    "trainer_logprobs": "trainer_logprob",
    "entropies": "entropy",
    "advantages": "advantage",
}
_EDGES: dict[str, EdgeKind] = {
    "compaction": "compaction",
    "compaction_attempt": "compaction",
    "continuation": "continuation",
    "subagent_call": "subagent",
}
_LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}


def sniff(head: Head) -> str | None:
    """v1: `nodes`, or `traces` that hold them. Legacy: `trajectory` steps with `tokens` or `completion`."""
    for row in head.dicts():
        if _is_trace(row):
            return "records are verifiers v1 traces with `nodes`"
        inner = row.get("traces")
        if isinstance(inner, list) and "task" in row and all(isinstance(t, dict) and _is_trace(t) for t in inner):
            return "records are verifiers v1 episodes with `traces` of `nodes`"
        steps = row.get("trajectory")
        if isinstance(steps, list) and steps and isinstance(steps[0], dict) and "completion" in steps[0]:
            return "records have a verifiers `trajectory` of prompt and completion"
    return None


def _is_trace(row: dict[str, Any]) -> bool:
    nodes = row.get("nodes")
    return isinstance(nodes, list) and all(isinstance(node, dict) and "message" in node for node in nodes)


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One record: an episode gives each of its agents' traces, a trace or a legacy result gives one."""
    row = Fields(value, "")
    if row.has("nodes"):
        return [_v1_trace(row, context, {})]
    if row.has("traces"):
        return _episode(row, context)
    return [legacy_trace(row, context)]


# ------------------------------------------------------------------------------------------------ v1


def _episode(row: Fields, context: Context) -> Iterable[Trace]:
    group = Fields(row.take("group") or {}, "group").take_id("id")
    episode = row.take_id("id")
    shared = {"group_id": group or _task_key(row.take("task") or {}), "episode": episode, "env": row.take("env")}
    errors = [_error(error) for error in row.take_list("errors") or []]
    traces = row.take_list("traces") or []

    def trace_of(index: int) -> Trace:
        trace = _v1_trace(Fields(traces[index], f"traces[{index}]"), context, shared)
        trace.errors.extend(error for error in errors if error not in trace.errors)
        return trace

    return context.apart(range(len(traces)), trace_of)


def _task_key(task: Any) -> str | None:
    fields = Fields(task, "task")
    return fields.take_id("key") or fields.take_id("hash")


def _v1_trace(row: Fields, context: Context, shared: dict[str, Any]) -> Trace:
    nodes = [Fields(node, row.at(f"nodes[{i}]")) for i, node in enumerate(row.take_list("nodes") or [])]
    calls = _calls(row)
    agent = Fields(row.take("agent") or {}, "agent")
    messages = _messages(nodes, calls)
    tree = Tree()
    tree.messages = messages
    links = _links(nodes)
    for index, kind, source in links:
        tree.link(_EDGES.get(kind, "continuation"), f"n{source}", f"n{index}", trigger=kind or None)
    stop = row.take_str("stop_condition")
    last = next((call for call in reversed(list(calls.values())) if call.get("error") is None), {})
    trainable = agent.take_bool("trainable")
    task = row.take("task") or {}
    key = _task_key(task)
    version = row.take("version")
    given = row.take_dict("rewards") or {}
    rewards = {name: reward_of(row, name, part) for name, part in given.items() if part is not None}
    declared = [node.take_list("tools") for node in nodes]
    schemas = row.take_list("tools") or next((tools for tools in reversed(declared) if tools), None)
    trace = tree.trace(
        id=row.take_id("id") or context.default_id(),
        task_id=key,
        group_id=shared.get("group_id") or key,
        tools=[nested_tool(tool) for tool in schemas] if schemas else None,
        rewards=rewards,
        reward=math.fsum(part.score * part.weight for part in rewards.values()) if rewards else None,
        stop=stop,
        truncated=True if stop in _LIMITS or last.get("finish_reason") == "length" or _cut(messages) else None,
        errors=[_error(error) for error in row.take_list("errors") or []],
        trainable=True if trainable is None else trainable,
        source=Source(format="verifiers", version=str(version or 1)),
        extra=row.rest() | _beside(agent, task, shared),
    )
    _set_aside(trace, links)
    for message, node in zip(trace.messages, nodes, strict=True):
        keep(message, {key: value for key, value in node.rest().items() if value != []})
    return trace


def _beside(agent: Fields, task: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """What of the episode and its task a trace keeps."""
    kept = {"agent": agent.get("name") or "agent", "task": task or None}
    kept |= {name: shared.get(name) for name in ("episode", "env")}
    return {name: value for name, value in kept.items() if value is not None}


def _calls(row: Fields) -> dict[int, dict[str, Any]]:
    """Model calls by the node they committed; the last one wins (retries are sequential)."""
    found: dict[int, dict[str, Any]] = {}
    for call in row.take_list("calls") or []:
        if isinstance(call, dict) and isinstance(cast("dict[str, Any]", call).get("node"), int):
            found[call["node"]] = cast("dict[str, Any]", call)
    return found


def _messages(nodes: list[Fields], calls: dict[int, dict[str, Any]]) -> list[Message]:
    messages: list[Message] = []
    parents: list[int | None] = []
    held: list[Packed] = []  # each node's ids
    seen_user = False
    for index, node in enumerate(nodes):
        parent = node.take_int("parent")
        if parent is not None and not 0 <= parent < index:
            raise node.error("parent", f"{parent} is not a node before {index}", code="TM110")
        message = message_from_chat(node.take("message"), index, where=node.at("message"), first_user=not seen_user)
        seen_user = seen_user or message.role == "user"
        message.id, message.parent = f"n{index}", None if parent is None else f"n{parent}"
        sampled = node.take_bool("sampled") or False
        ids = ids_from(node.take("token_ids") or [], node.at("token_ids"))
        if node.get("mask"):
            flags(node.get("mask"), len(ids), node.at("mask"))
        if message.role == "assistant" and not sampled:
            message.author, message.copied = "model", True
        elif sampled:
            call = calls.get(index, {})
            reason = node.take_str("finish_reason") or call.get("finish_reason")
            before = _context(parent, parents, held)
            message.sampled = _sampled(node, ids, before, call | {"finish_reason": reason})
            message.finish_reason = None if message.sampled else reason
        parents.append(parent)
        held.append(packed_ids(ids))
        message.created = node.take_number("timestamp")
        messages.append(message)
    return messages


def _context(at: int | None, parents: list[int | None], held: list[Packed]) -> Packed | None:
    """The ids from the root to node `at`, in one piece; None where a node has none."""
    path: list[Packed] = []
    while at is not None:
        path.append(held[at])
        at = parents[at]
    if not all(path):
        return None
    context = packed_ids()
    for ids in reversed(path):
        context.extend(ids)
    return context


def _sampled(node: Fields, ids: list[int], before: Packed | None, call: dict[str, Any]) -> Sampled | None:
    """The ids from the first to the last masked one were sampled; unmasked ones between are the environment's."""
    if not ids:
        return None
    mask = flags(node.take("mask") or [], len(ids), node.at("mask"))
    owned = [t for t, flag in enumerate(mask) if flag]
    if not owned:
        return None
    start, end = owned[0], owned[-1] + 1
    if before is not None:
        before.extend(ids[:start])
    inside = mask[start:end]
    values: dict[str, Any] = {
        "token_ids": ids[start:end],
        "prompt_ids": before,
        "spans": spans_of(inside),
        "finish_reason": call.get("finish_reason"),
        "model": call.get("model"),
        "usage": call.get("usage"),
        **_sampling(call),
    }
    raw = node.take("logprobs")
    if raw:
        values["logprobs"] = spread(raw, inside, len(ids), start, node.at("logprobs"))
    values |= _columns(node, len(ids), start, inside)
    return build_sampled(values, node.where)


def _columns(node: Fields, total: int, start: int, inside: list[bool]) -> dict[str, Any]:
    """Other numbers of the sampled tokens: fields of Sampled."""
    values: dict[str, Any] = {}
    columns: dict[str, list[float]] = {}
    for name, column in _TOKEN_COLUMNS.items():
        raw = node.take(name)
        if raw is None:
            continue
        laid = spread(raw, inside, total, start, node.at(name))
        own = [value for value, flag in zip(laid, inside, strict=True) if flag]
        if name == "advantages" and own and len(set(own)) == 1:
            values["advantage"] = own[0]
        elif None not in own:
            columns[column] = [0.0 if value is None else value for value in laid]
        else:
            node.give(name, raw)  # some are missing: no column, but kept
    for name, weights in (node.take_dict("loss_weights") or {}).items():
        if not isinstance(weights, list) or len(weights) != total:
            raise node.error(f"loss_weights.{name}", f"not one weight for each of {total} token_ids", code="TM101")
        columns[f"weight.{name}"] = weights[start : start + len(inside)]
    return values | {"columns": columns}


def _sampling(call: dict[str, Any]) -> dict[str, Any]:
    sampling = call.get("sampling")
    if not isinstance(sampling, dict):
        return {}
    return {name: sampling.get(name) for name in ("temperature", "top_p", "top_k") if sampling.get(name) is not None}


def _links(nodes: list[Fields]) -> list[tuple[int, str, int]]:
    """(node, kind, the node it comes of) of every semantic parent. Raises TraceError TM110, TM911."""
    found: list[tuple[int, str, int]] = []
    for index, node in enumerate(nodes):
        for position, raw in enumerate(node.take_list("semantic_parents") or []):
            link = Fields(raw, node.at(f"semantic_parents[{position}]"))
            kind, source = link.take_str("type") or "", link.take_int("node")
            if source is None or not 0 <= source < len(nodes):
                raise link.error("node", f"{source} is no node of this trace", code="TM110")
            found.append((index, kind, source))
    return found


def _cut(messages: list[Message]) -> bool:
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    return last is not None and last.cut_short


def _set_aside(trace: Trace, links: list[tuple[int, str, int]]) -> None:
    """A compaction attempt that the harness did not resume from is a dangling reply: kept, never trained."""
    accepted = {source for _, kind, source in links if kind == "compaction"}
    attempts = {index for index, kind, _ in links if kind == "compaction_attempt"}
    parents = set(trace.parents().values())
    for index in sorted(attempts - accepted):
        if f"n{index}" not in parents:
            trace.messages[index].copied = True


def _error(error: Any) -> str:
    if isinstance(error, dict):
        return f"{error.get('type', 'error')}: {error.get('message', '')}"
    return str(error)


FORMAT = Format(
    name="verifiers",
    title="verifiers v1 and prime-rl traces.jsonl (episodes of message graphs), and legacy results with a trajectory",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape=SHAPE,
)
