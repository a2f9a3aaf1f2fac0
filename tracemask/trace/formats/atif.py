"""ATIF trajectories (Harbor) v1.0 to 1.8: steps with observations, ids, copies, sub-agents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind, keep
from tracemask.trace.inputs import Layout
from tracemask.trace.model import (
    Block,
    Media,
    Message,
    Opaque,
    Reasoning,
    Reward,
    Source,
    Text,
    ToolCall,
    ToolResult,
    Trace,
)
from tracemask.trace.parse import loads
from tracemask.trace.sampled import build_sampled, ids_from, logprobs_from
from tracemask.trace.tree import Tree

_PREFIX = "ATIF-v"
_MINOR = 8


def sniff(head: Head) -> str | None:
    """`schema_version` that begins with ATIF-v, and steps."""
    for row in head.dicts():
        version = row.get("schema_version")
        if isinstance(version, str) and version.startswith(_PREFIX):
            return f"schema_version is {version}"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One trajectory document as one trace, and one more for each sub-agent that is embedded in it."""
    row = Fields(value, "")
    version = row.take_str("schema_version") or ""
    _check_version(version)
    name = row.get("trajectory_id") or row.get("session_id")
    trace_id = name if isinstance(name, str) else context.default_id()
    if context.file.layout is Layout.DOCUMENT and name is None:
        trace_id = context.file.rel
    result = _trial(context)
    return _trajectory(row, context, trace_id, version, result)


def _check_version(version: str) -> None:
    major, _, minor = version.removeprefix(_PREFIX).partition(".")
    if not version.startswith(_PREFIX) or not major.isdigit() or (minor and not minor.isdigit()):
        raise TraceError("TM914", where="schema_version", what=f"{version!r} is no ATIF version")
    if int(major) != 1:
        raise TraceError(
            "TM914", where="schema_version", what=f"ATIF {major}.x, this reads 1.x", fix="install a newer tracemask"
        )


def _trajectory(row: Fields, context: Context, trace_id: str, version: str, result: dict[str, Any]) -> list[Trace]:
    agent = Fields(row.take("agent") or {}, row.at("agent"))
    steps = row.take_list("steps")
    if not steps:
        raise row.error("steps", "missing or empty")
    tree = _Steps(agent.take_str("model_name"), context)
    for index, raw in enumerate(steps):
        tree.step(Fields(raw, row.at(f"steps[{index}]")), row.get("session_id"))
    inner = row.take_list("subagent_trajectories") or []
    row.take("trajectory_id")
    row.take("session_id")
    trace = tree.tree.trace(
        id=trace_id,
        tools=agent.take_list("tool_definitions"),
        source=Source(format="atif", version=version.removeprefix(_PREFIX)),
        extra=row.rest() | {"agent": agent.get("name")},
        **_outcome(result),
    )
    traces = [trace]
    for index, raw in enumerate(inner):
        sub = Fields(raw, f"subagent_trajectories[{index}]")
        sub_id = sub.take_id("trajectory_id")
        if sub_id is None:
            raise sub.error("trajectory_id", "missing on an embedded sub-agent")
        sub_version = sub.take_str("schema_version") or version
        traces.extend(_trajectory(sub, context, f"{trace_id}/{sub_id}", sub_version, {}))
    return traces


class _Steps:
    """The steps of one trajectory as a tree; a boundary starts a new root."""

    def __init__(self, model: str | None, context: Context) -> None:
        self.tree = Tree()
        self.model = model
        self.context = context
        self.at: str | None = None
        self.before: str | None = None  # the last message before a boundary that is not linked yet
        self.system: list[Message] = []
        self.seen_user = False
        self.handed_over = False  # a boundary came, and the words that carry on have not

    def step(self, step: Fields, session: Any) -> None:
        """One step: its message, then the results it observed."""
        number = step.take_id("step_id")
        source = step.take_str("source")
        if source not in ("system", "user", "agent"):
            raise step.error("source", f"unknown source {source!r}", fix="one of system, user, agent")
        blocks, parts = _content(step.take("message"), step.at("message"))
        extra = step.take_dict("extra") or {}
        copied = step.take_bool("is_copied_context") or False
        results = _results(step)
        boundary = _boundary(extra)
        name = f"s{number}" if number else f"s{len(self.tree.messages)}"
        if boundary:
            self._boundary(step, boundary, results, name)
            return
        if source == "agent":
            message = self._reply(step, name, blocks, parts, copied)
        else:
            message = self._given(name, source, blocks, parts, copied)
        message.created = step.take_str("timestamp")
        keep(message, step.rest() | ({"extra": extra} if extra else {}))
        self._append(message)
        for index, result in enumerate(results):
            self._result(result, message, f"{name}.r{index}", copied)

    def _append(self, message: Message) -> None:
        self.tree.add(message, self.at)
        if self.before is not None:
            self.tree.link("compaction", self.before, message.id, trigger="replace")
            self.before = None
        self.at = message.id

    def _given(self, name: str, source: str, blocks: list[Block], parts: bool, copied: bool) -> Message:
        if source == "system":
            message = Message(id=name, role="system", author="harness", blocks=blocks, parts=parts, copied=copied)
            if self.at is None and not self.tree.messages:
                self.system.append(message)
            return message
        author = "model" if self.handed_over else "user" if self.seen_user else "taskset"
        self.seen_user, self.handed_over = True, False
        return Message(id=name, role="user", author=author, blocks=blocks, parts=parts, copied=copied)

    def _reply(self, step: Fields, name: str, blocks: list[Block], parts: bool, copied: bool) -> Message:
        thought = step.take_str("reasoning_content")
        calls = [_call(raw, step.at(f"tool_calls[{i}]")) for i, raw in enumerate(step.take_list("tool_calls") or [])]
        count = step.take_int("llm_call_count")
        model = step.take_str("model_name") or self.model
        before: list[Block] = [] if thought is None else [Reasoning(text=thought)]
        message = Message(
            id=name, role="assistant", author="policy", blocks=[*before, *blocks, *calls], parts=parts, copied=copied
        )
        metrics = step.take("metrics")
        if metrics is not None and not copied and count != 0:
            message.sampled = self._sampled(Fields(metrics, step.at("metrics")), count, model)
        if count == 0:
            message.author = "harness"  # dispatched by code, no model was asked
        elif count is not None and count > 1:
            message.copied = True  # several calls in one step: which tokens were one reply is lost
            self.context.findings.append(
                Finding(
                    "TM110",
                    f"step {name[1:]} sums up {count} model calls; it is kept as context",
                    Place(path=self.context.file.rel, turn=len(self.tree.messages)),
                    cause="aggregated_step",
                )
            )
        elif model is not None and self.model is not None and model != self.model:
            message.author = "model"
        return message

    def _sampled(self, metrics: Fields, count: int | None, model: str | None) -> Any:
        raw = metrics.take("completion_token_ids")
        if raw is None or (count or 1) > 1:
            return None
        ids = ids_from(raw, metrics.at("completion_token_ids"))
        prompt = metrics.take("prompt_token_ids")
        logprobs = metrics.take("logprobs")
        values: dict[str, Any] = {
            "token_ids": ids,
            "prompt_ids": None if prompt is None else ids_from(prompt, metrics.at("prompt_token_ids")),
            "logprobs": None if logprobs is None else logprobs_from(logprobs, len(ids), metrics.at("logprobs")),
            "model": model,
            "usage": metrics.rest() or None,
        }
        return build_sampled(values, metrics.where)

    def _result(self, result: Fields, step: Message, name: str, copied: bool) -> None:
        call_id = result.take_id("source_call_id")
        blocks, parts = _content(result.take("content"), result.at("content"))
        names = {block.id: block.name for block in step.blocks if isinstance(block, ToolCall)}
        if call_id is not None and call_id not in names:
            raise result.error("source_call_id", f"{call_id!r} is no call of this step", code="TM105")
        refs = result.take_list("subagent_trajectory_ref") or []
        if call_id is None:
            message = Message(id=name, role="user", author="environment", blocks=blocks, parts=parts, copied=copied)
        else:
            block = ToolResult(call_id=call_id, content=blocks)
            message = Message(id=name, role="tool", author="environment", blocks=[block], parts=parts, copied=copied)
        keep(message, result.rest())
        if blocks or call_id is not None:
            self._append(message)
        for ref in refs:
            fields = Fields(ref, result.at("subagent_trajectory_ref"))
            target = fields.get("trajectory_id") or fields.get("trajectory_path") or fields.get("session_id")
            self.tree.link("subagent", step.id, None, ref=target if isinstance(target, str) else None)

    def _boundary(self, step: Fields, kind: str, results: list[Fields], name: str) -> None:
        """What came before is gone; the system prompt stays, a summary in the results is context."""
        self.before = before = self.before or self.at
        self.at, self.handed_over = None, True
        for message in self.system:
            copy = message.model_copy(update={"id": f"{message.id}.{name}", "copied": True})
            self._append(copy)
        for index, result in enumerate(results):
            blocks, parts = _content(result.take("content"), result.at("content"))
            if blocks:  # the summary: another call wrote it, it was never sampled here
                self.handed_over = False
                self._append(Message(id=f"{name}.r{index}", role="user", author="model", blocks=blocks, parts=parts))
            for ref in result.take_list("subagent_trajectory_ref") or []:
                target = Fields(ref, result.where).get("trajectory_id") or Fields(ref, result.where).get(
                    "trajectory_path"
                )
                self.tree.link("subagent", before, None, ref=target if isinstance(target, str) else None)
        self.context.notes[f"context boundary ({kind})"] += 1


def _boundary(extra: dict[str, Any]) -> str | None:
    management = extra.get("context_management")
    if isinstance(management, dict) and cast("dict[str, Any]", management).get("boundary") == "replace":
        return str(cast("dict[str, Any]", management).get("type") or "replace")
    return None


def _results(step: Fields) -> list[Fields]:
    observation = step.take("observation")
    if observation is None:
        return []
    fields = Fields(observation, step.at("observation"))
    results = fields.take_list("results")
    if results is None:
        raise fields.error("results", "missing")
    return [Fields(raw, step.at(f"observation.results[{index}]")) for index, raw in enumerate(results)]


def _call(raw: Any, where: str) -> ToolCall:
    """ATIF keeps arguments as an object only; the sampled string is lost at the source."""
    call = Fields(raw, where)
    name = call.take_str("function_name")
    if not name:
        raise call.error("function_name", "missing")
    return ToolCall(
        id=call.take_id("tool_call_id"), name=name, arguments=call.take_dict("arguments") or {}, **call.rest()
    )


def _content(raw: Any, where: str) -> tuple[list[Block], bool]:
    if raw is None or raw == "":
        return [], False
    if isinstance(raw, str):
        return [Text(text=raw)], False
    if not isinstance(raw, list):
        raise TraceError("TM911", where=where, what="expected a string or a list of parts")
    blocks: list[Block] = []
    for index, item in enumerate(cast("list[Any]", raw)):
        part = Fields(item, f"{where}[{index}]")
        kind = part.take_str("type")
        if kind == "text":
            text = part.take_str("text")
            if text is None:
                raise part.error("text", "missing")
            blocks.append(Text(text=text))
        elif kind in ("image", "audio"):
            source = Fields(part.take("source"), part.at("source"))
            blocks.append(Media(uri=source.take_str("path"), mime=source.take_str("media_type")))
        else:
            blocks.append(Opaque(kind=kind or "unknown", data=part.raw))
    return blocks, True


def _trial(context: Context) -> dict[str, Any]:
    """The trial's result.json beside the agent folder (…/agent/trajectory.json), where there is one."""
    folder = Path(context.file.path).parent
    for place in (folder, folder.parent):
        path = place / "result.json"
        if path.is_file():
            try:
                found = loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise TraceError(
                    "TM910", where=f"{path.name}", what=f"the trial's result is unreadable: {error}"
                ) from None
            if isinstance(found, dict) and "trial_name" in found:
                return cast("dict[str, Any]", found)
    return {}


def _outcome(result: dict[str, Any]) -> dict[str, Any]:
    """reward(s), task and attempt of a trial; an absent verifier result leaves the reward absent."""
    if not result:
        return {}
    out: dict[str, Any] = {"task_id": result.get("task_name"), "group_id": result.get("task_name")}
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    out["rewards"] = {
        name: Reward(
            score=float(value), weight=1.0 if len(rewards) == 1 or name == "reward" else 0.0, source="verifier"
        )
        for name, value in rewards.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if len(rewards) == 1 or "reward" in rewards:
        value = rewards.get("reward", next(iter(rewards.values())))
        out["reward"] = float(value) if isinstance(value, int | float) else None
    exception = result.get("exception_info")
    if isinstance(exception, dict):
        out["errors"] = [f"{exception.get('exception_type')}: {exception.get('exception_message')}"]
    return {key: value for key, value in out.items() if value is not None}


FORMAT = Format(
    name="atif",
    title="ATIF trajectories v1.0 to 1.8 (Harbor), with the trial's reward beside them and sub-agents inside",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    known=frozenset({"agent", "notes", "final_metrics", "continued_trajectory_ref", "extra", "reasoning_effort"}),
)
