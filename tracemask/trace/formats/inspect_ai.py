"""Inspect `.eval` archives: samples with messages, model events (each with its whole input) and attachments."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from typing import IO, Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.files import Layout
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.formats.inspect_chat import MESSAGE_SHAPE, OUTPUT_SHAPE, Call, Chat
from tracemask.trace.model import Message, Reward, Source, Trace
from tracemask.trace.parse import loads, replace_surrogates
from tracemask.trace.shape import known
from tracemask.trace.streams import open_archive
from tracemask.trace.tree import Tree

_ZSTD = 93
_SCORES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


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
    with open_archive(context.file.path, context.file.rel) as archive:
        names = {name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json")}
        start = "header.json" if "header.json" in archive.namelist() else "_journal/start.json"
        header = _load(archive, start, context)
        evaluation = header.get("eval") if isinstance(header.get("eval"), dict) else {}

        def sample(name: str) -> Trace:
            return _sample(_load(archive, name, context), name, cast("dict[str, Any]", evaluation), context)

        yield from context.apart(sorted(names), sample)


def _load(archive: zipfile.ZipFile, name: str, context: Context) -> dict[str, Any]:
    try:
        with _open(archive, name) as member:
            value, replaced = replace_surrogates(loads(member.read()))
    except Exception as error:  # what the decompressors raise has no common name
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
    context.familiar(raw, _SAMPLE)
    chat = Chat(sample.take_dict("attachments") or {}, evaluation.get("model"), context)
    pool = Fields(sample.take("events_data") or {}, f"{name}.events_data").take_list("messages") or []
    calls = list(chat.calls(sample.take_list("events") or [], pool, f"{name}.events"))
    tree, last = _grown(calls)
    listed = chat.messages(sample.take_list("messages") or [], f"{name}.messages")
    if not calls:
        tree.messages = listed
    else:
        tree.walk(listed)  # results after the last call; what is there already is not added again
    identity, epoch = sample.take_id("id"), sample.take_int("epoch")
    limit = sample.take("limit")
    scores = _rewards(sample.take_dict("scores") or {}, context)
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
        tools=next(([_tool(tool) for tool in call.tools] for call in reversed(calls) if call.tools), None),
        rewards=scores,
        reward=next(iter(scores.values())).score if len(scores) == 1 else None,
        stop=f"limit: {cast('dict[str, Any]', limit).get('type')}" if isinstance(limit, dict) else None,
        truncated=True if isinstance(limit, dict) or (last is not None and last.cut_short) else None,
        errors=[str(cast("dict[str, Any]", error).get("message"))] if isinstance(error, dict) else [],
        source=Source(format="inspect"),
        extra=sample.rest() | {"task": evaluation.get("task"), "model": evaluation.get("model")},
    )


def _grown(calls: list[Call]) -> tuple[Tree, Message | None]:
    """The tree of the calls, compactions linked, and the last reply."""
    tree = Tree()
    before: str | None = None
    compacted: str | None = None
    for call in calls:
        compacted = call.compaction or compacted
        at = tree.call(call.prompt, call.reply)
        if compacted is not None and before is not None:
            tree.link("compaction", before, tree.fresh, trigger=compacted)
            compacted = None
        before = at
    return tree, calls[-1].reply if calls else None


def _rewards(scores: dict[str, Any], context: Context) -> dict[str, Reward]:
    """Named numbers of the scorers, C, I, P and N among them; the weight is 1 where there is only one."""
    found: dict[str, Reward] = {}
    for name, raw in scores.items():
        value = cast("dict[str, Any]", raw).get("value") if isinstance(raw, dict) else raw
        items = cast("dict[str, Any]", value).items() if isinstance(value, dict) else [("", value)]
        for part, number in items:
            number = _SCORES.get(number) if isinstance(number, str) else number
            label = f"{name}.{part}" if part else name
            if isinstance(number, int | float):
                found[label] = Reward(score=float(number), weight=1.0, source="scorer")
            else:
                context.notes[f"score {label!r} is no number: it is no reward"] += 1
    if len(found) > 1:
        for reward in found.values():
            reward.weight = 0.0
    return found


def _tool(raw: Any) -> dict[str, Any]:
    tool = Fields(raw, "tools").raw
    function = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
    return {"type": "function", "function": function}


_SAMPLE = known(
    "id epoch input choices target description sandbox files setup metadata store timelines model_usage role_usage "
    "model_fallbacks started_at completed_at total_time working_time uuid invalidation error_retries attachments "
    "turn_count token_limit token_limit_type token_limit_usage message_limit time_limit events",
    messages=MESSAGE_SHAPE,
    output=OUTPUT_SHAPE,
    scores={"*": known("value answer explanation reason metadata history sample_id")},
    events_data=known("calls", messages=MESSAGE_SHAPE),
    error=known("message traceback traceback_ansi"),
    limit=known("type limit reason"),
)

FORMAT = Format(
    name="inspect",
    title="Inspect .eval archives: contexts from model events, attachments resolved, scorers left out",
    unit=UnitKind.FILE,
    fidelity=Fidelity.COMPLETION,
    sniff=sniff,
    read=read,
    shape=_SAMPLE,
)
