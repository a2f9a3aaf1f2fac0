"""Inspect `.eval` archives: samples with messages, model events (each with its whole input) and attachments."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import arguments_of
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
from tracemask.trace.parse import loads, replace_surrogates
from tracemask.trace.tree import Tree

_ZSTD = 93
_SCORES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_ROLES = {"system": "harness", "user": "user", "assistant": "policy", "tool": "environment"}


def sniff(head: Head) -> str | None:
    """A zip with header.json or _journal/start.json, and samples."""
    names = head.members
    if ("header.json" in names or "_journal/start.json" in names) and any(
        name.startswith("samples/") for name in names
    ):
        return "an archive with header.json and samples/"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One archive, one trace a sample and epoch, samples in order of their names."""
    if context.file.layout is not Layout.ARCHIVE or value != context.file.path:
        raise TraceError("TM911", what="expected an .eval archive", fix="Inspect's .json logs: `inspect log convert`")
    with zipfile.ZipFile(context.file.path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json")]
        start = "header.json" if "header.json" in archive.namelist() else "_journal/start.json"
        header = _load(archive, start, context)
        evaluation = header.get("eval") if isinstance(header.get("eval"), dict) else {}
        for name in sorted(names):
            yield _sample(_load(archive, name, context), name, cast("dict[str, Any]", evaluation), context)


def _load(archive: zipfile.ZipFile, name: str, context: Context) -> dict[str, Any]:
    try:
        with _open(archive, name) as member:
            value, replaced = replace_surrogates(loads(member.read()))
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise TraceError("TM910", where=f"{context.file.rel}:{name}", what=f"unreadable member: {error}") from None
    for path in replaced:
        context.findings.append(
            Finding("TM916", f"{name}: {path}: a lone surrogate was replaced by U+FFFD", Place(path=context.file.rel))
        )
    if not isinstance(value, dict):
        raise TraceError("TM911", where=f"{context.file.rel}:{name}", what="expected an object")
    return cast("dict[str, Any]", value)


def _open(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A member for reading; those that Inspect compressed with zstd (method 93), which zipfile does not know, too."""
    info = archive.getinfo(name)
    if info.compress_type != _ZSTD:
        return archive.open(info)
    import pyarrow as pa

    handle = archive.fp
    if handle is None:
        raise ValueError("the archive is closed")
    handle.seek(info.header_offset)
    head = handle.read(30)
    if head[:4] != b"PK\x03\x04":
        raise ValueError("no local header where the directory says")
    skip = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    handle.seek(skip, io.SEEK_CUR)
    packed = handle.read(info.compress_size)
    return io.BytesIO(pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read())


# ------------------------------------------------------------------------------------------------ samples


def _sample(raw: dict[str, Any], name: str, evaluation: dict[str, Any], context: Context) -> Trace:
    sample = Fields(raw, name)
    chat = _Chat(sample.take_dict("attachments") or {}, evaluation.get("model"), context)
    pool = Fields(sample.take("events_data") or {}, f"{name}.events_data").take_list("messages") or []
    calls = list(chat.calls(sample.take_list("events") or [], pool, f"{name}.events"))
    tree = Tree()
    before: str | None = None
    compacted: str | None = None
    tools: list[Any] | None = None
    for prompt, reply, declared, compaction in calls:
        compacted = compaction or compacted
        at = tree.call(prompt, reply)
        tools = declared or tools
        if compacted is not None and before is not None:
            tree.link("compaction", before, tree.fresh, trigger=compacted)
            compacted = None
        before = at
    listed = chat.messages(sample.take_list("messages") or [], f"{name}.messages")
    if not calls:
        tree.messages = listed
    else:
        tree.walk(listed)  # results after the last call; what is there already is not added again
    identity, epoch = sample.take_id("id"), sample.take_int("epoch")
    limit = sample.take("limit")
    scores = _rewards(sample.take_dict("scores") or {})
    error = sample.take("error")
    for key in ("output", "input", "target", "choices"):
        sample.take(key)
    if not tree.messages:
        raise sample.error("messages", "missing or empty")
    return tree.trace(
        id=f"{identity}/{epoch}" if epoch is not None else identity or name,
        task_id=identity,
        group_id=identity,
        attempt=epoch,
        tools=[_tool(tool) for tool in tools] if tools else None,
        rewards=scores,
        reward=next(iter(scores.values())).score if len(scores) == 1 else None,
        stop=f"limit: {cast('dict[str, Any]', limit).get('type')}" if isinstance(limit, dict) else None,
        truncated=True if isinstance(limit, dict) or (before is not None and tree.messages[-1].cut_short) else None,
        errors=[str(cast("dict[str, Any]", error).get("message"))] if isinstance(error, dict) else [],
        source=Source(format="inspect"),
        extra=sample.rest() | {"task": evaluation.get("task"), "model": evaluation.get("model")},
    )


def _rewards(scores: dict[str, Any]) -> dict[str, Reward]:
    found: dict[str, Reward] = {}
    for name, raw in scores.items():
        value = cast("dict[str, Any]", raw).get("value") if isinstance(raw, dict) else raw
        items = cast("dict[str, Any]", value).items() if isinstance(value, dict) else [("", value)]
        for part, number in items:
            number = _SCORES.get(number) if isinstance(number, str) else number
            if isinstance(number, int | float):
                label = f"{name}.{part}" if part else name
                found[label] = Reward(score=float(number), weight=1.0, source="scorer")
    if len(found) > 1:
        for reward in found.values():
            reward.weight = 0.0
    return found


def _tool(raw: Any) -> dict[str, Any]:
    tool = Fields(raw, "tools").raw
    function = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
    return {"type": "function", "function": function}


class _Chat:
    """Inspect's chat messages as ours, attachments resolved."""

    def __init__(self, attachments: dict[str, Any], model: Any, context: Context) -> None:
        self.attachments = attachments
        self.model = model if isinstance(model, str) else None
        self.context = context

    def calls(
        self, events: list[Any], pool: list[Any], where: str
    ) -> Iterator[tuple[list[Message], Message, list[Any] | None, str | None]]:
        """(prompt, reply, tools, compaction before) of the policy's model events; scorers' and others' left out."""
        scoring: set[str] = set()
        compaction: str | None = None
        for index, raw in enumerate(events):
            event = Fields(raw, f"{where}[{index}]")
            kind, span = event.get("event"), event.get("span_id")
            if kind == "span_begin" and (
                event.get("type") in ("scorer", "scorers") or event.get("parent_id") in scoring
            ):
                scoring.add(str(event.get("id")))
            elif kind == "compaction":
                compaction = str(event.get("type") or "summary")
            elif kind == "model" and span not in scoring:
                model, role = event.get("model"), event.get("role")
                if (self.model is not None and model != self.model) or role not in (None, "default"):
                    self.context.notes[f"calls of another model or role ({role or model}) are not the policy's"] += 1
                    continue
                reply = self._reply(event, index)
                if reply is not None:
                    yield self._input(event, pool, index), reply, event.get("tools"), compaction
                    compaction = None

    def _input(self, event: Fields, pool: list[Any], index: int) -> list[Message]:
        refs = event.get("input_refs")
        raw = event.get("input") or []
        if refs:
            raw = [message for start, end in refs for message in pool[start:end]]
        prompt = self.messages(raw, event.at("input"))
        for position, message in enumerate(prompt):
            message.id = message.id if message.extra.get("log", {}).get("named") else f"e{index}.{position}"
        return prompt

    def _reply(self, event: Fields, index: int) -> Message | None:
        output = Fields(event.get("output") or {}, event.at("output"))
        choices = output.take_list("choices") or []
        if not choices:
            return None
        choice = Fields(choices[0], output.at("choices[0]"))
        reply = self.message(choice.take("message"), choice.at("message"), first_user=False)
        reply.id = f"r{index}"
        reason = choice.take_str("stop_reason")
        reply.finish_reason = "length" if reason in ("max_tokens", "model_length") else reason
        return reply

    def messages(self, raw: list[Any], where: str) -> list[Message]:
        out: list[Message] = []
        seen = False
        for index, item in enumerate(raw):
            message = self.message(item, f"{where}[{index}]", first_user=not seen)
            message.id = f"m{index}"
            seen = seen or message.role == "user"
            out.append(message)
        return out

    def message(self, raw: Any, where: str, *, first_user: bool) -> Message:
        fields = Fields(raw, where)
        role = fields.take_str("role")
        if role not in _ROLES:
            raise fields.error("role", f"unknown role {role!r}", fix=f"one of {', '.join(_ROLES)}")
        blocks, parts = self.content(fields.take("content"), f"{where}.content")
        author = "taskset" if role == "user" and first_user else _ROLES[role]
        message = Message(id="m", role=role, author=author, parts=False)  # type: ignore[arg-type]
        if role == "assistant":
            calls = fields.take_list("tool_calls") or []
            message.blocks = [*blocks, *[self._call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]]
            source = fields.take_str("source")
            if source == "input":
                message.author, message.copied = "model", True
            model = fields.take_str("model")
            if model is not None and self.model is not None and model not in (self.model, self.model.split("/", 1)[-1]):
                message.author = "model"
        elif role == "tool":
            failed = fields.take("error") is not None
            message.blocks = [
                ToolResult(
                    call_id=fields.take_id("tool_call_id"),
                    name=fields.take_str("function"),
                    content=blocks,
                    is_error=failed,
                )
            ]
        else:
            message.blocks = blocks
        message.parts = parts and any(not isinstance(block, Text | Reasoning) for block in blocks)
        keep(message, {key: value for key, value in fields.rest().items() if key not in ("id", "source", "metadata")})
        return message

    def _call(self, raw: Any, where: str) -> ToolCall:
        call = Fields(raw, where)
        name = call.take_str("function")
        if not name:
            raise call.error("function", "missing")
        values = arguments_of(call.take("arguments"), f"{where}.arguments")
        return ToolCall(id=call.take_id("id"), name=name, parse_error=call.take_str("parse_error"), **values)

    def text(self, value: Any) -> str:
        """The text itself, or what its attachment:// reference names."""
        text = value if isinstance(value, str) else ""
        if text.startswith("attachment://"):
            found = self.attachments.get(text.removeprefix("attachment://"))
            if not isinstance(found, str):
                raise TraceError("TM911", where=text, what="the attachment is not in the sample")
            return found
        return text

    def content(self, raw: Any, where: str) -> tuple[list[Block], bool]:
        if raw is None:
            return [], False
        if isinstance(raw, str):
            return [Text(text=self.text(raw))], False
        if not isinstance(raw, list):
            raise TraceError("TM911", where=where, what="expected a string or a list of parts")
        blocks: list[Block] = []
        for index, item in enumerate(cast("list[Any]", raw)):
            part = Fields(item, f"{where}[{index}]")
            kind = part.get("type")
            if kind == "text":
                blocks.append(Text(text=self.text(part.get("text"))))
            elif kind == "reasoning":
                text, redacted = self.text(part.get("reasoning")), part.get("redacted") is True
                signature = part.get("signature")
                blocks.append(
                    Reasoning(
                        text=None if redacted else text,
                        encrypted=text if redacted else None,
                        redacted=redacted,
                        signature=signature if isinstance(signature, str) else None,
                    )
                )
            elif kind in ("image", "audio", "video", "document"):
                blocks.append(Media(mime=f"{kind}/*"))
            else:
                blocks.append(Opaque(kind=str(kind), data=dict(part.raw)))
        return blocks, True


FORMAT = Format(
    name="inspect",
    title="Inspect .eval archives: contexts from model events, attachments resolved, scorers left out",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
    known=frozenset(
        {
            "task",
            "model",
            "metadata",
            "store",
            "model_usage",
            "role_usage",
            "uuid",
            "started_at",
            "completed_at",
            "total_time",
            "working_time",
            "sandbox",
            "files",
            "setup",
            "timelines",
            "description",
            "error_retries",
            "model_fallbacks",
            "invalidation",
        }
    ),
)
