"""The steps of one ATIF trajectory as a tree: replies with their results, copies, boundaries. Knows no file."""

from __future__ import annotations

from typing import Any, cast

from tracemask.core.finding import Finding, Place
from tracemask.trace.blocks import beside
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, keep
from tracemask.trace.model import Block, Media, Message, Reasoning, Sampled, ToolCall, ToolResult
from tracemask.trace.parts import content_blocks, media_block
from tracemask.trace.sampled import build_sampled, ids_from, logprobs_from
from tracemask.trace.tree import Tree


class Steps:
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
        keep(message, message.extra.pop("log", {}) | step.rest() | ({"extra": extra} if extra else {}))
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
        metrics = step.get("metrics")
        if metrics is not None and not copied and count != 0:
            message.sampled = self._sampled(Fields(metrics, step.at("metrics")), count, model)
        if message.sampled is not None:
            step.take("metrics")  # else they stay in the log: usage, log-probs that no ids place
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
            message.extra["log"] = {"model_name": model}
        return message

    def _sampled(self, metrics: Fields, count: int | None, model: str | None) -> Sampled | None:
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
            if result.rest():
                self.context.notes["what a boundary's results hold beside their content is left out"] += 1
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
    values: dict[str, Any] = {"id": call.take_id("tool_call_id"), "arguments": call.take_dict("arguments") or {}}
    return ToolCall(name=name, **values, **beside(ToolCall, call.rest()))


def _content(raw: Any, where: str) -> tuple[list[Block], bool]:
    """(blocks, whether they were parts). A media part's `source` names its path and type."""
    blocks = content_blocks(raw or None, where)
    for index, block in enumerate(blocks):
        source = block.part.get("source") if isinstance(block, Media) and block.part else None
        if isinstance(source, dict):
            fields = Fields(source, f"{where}[{index}].source")
            assert isinstance(block, Media) and block.part
            blocks[index] = media_block(block.part, uri=fields.take_str("path"), mime=fields.take_str("media_type"))
    return blocks, isinstance(raw, list)
