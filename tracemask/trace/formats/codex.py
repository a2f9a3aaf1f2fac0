"""Codex rollout files: response items in order, contexts replaced by `compacted`, turns rolled back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, Line, UnitKind
from tracemask.trace.formats.codex_window import Window
from tracemask.trace.model import AuthorName, Block, Message, Opaque, RoleName, Source, Text, Trace
from tracemask.trace.responses import CALLS, OUTPUTS, call_block, output_block, reasoning_block, said_blocks
from tracemask.trace.shape import known

_TYPES = {"session_meta", "response_item", "turn_context", "compacted", "event_msg"}
_PART = known(
    "type text image_url detail annotations logprobs refusal file_id filename file_data audio_url encrypted_content"
)
_ITEM = known(
    "type id status phase metadata namespace success execution end_turn role call_id name arguments input action "
    "encrypted_content encrypted_function_args tools revised_prompt result author recipient other_recipients",
    internal_chat_message_metadata_passthrough=known(
        "turn_id create_time content_item_kinds content_item_metadata cell_id executed_tool_calls tool_calls_complete"
    ),
    content=_PART,
    summary=_PART,
    output={**_PART, **known("success body output metadata"), "content": _PART},
)
# Events that say once more what the items say, or that are no part of a context.
_REPEATED = known(
    "token_count user_message agent_message agent_reasoning agent_reasoning_raw_content agent_reasoning_section_break "
    "exec_command_begin exec_command_end patch_apply_begin patch_apply_end mcp_tool_call_begin mcp_tool_call_end "
    "web_search_begin web_search_end view_image_tool_call turn_diff plan_update background_event context_compacted "
    "warning stream_error item_started item_completed session_configured thread_name_updated entered_review_mode "
    "exited_review_mode shutdown_complete thread_goal_updated thread_settings_applied image_generation_begin "
    "image_generation_end realtime_conversation_closed sub_agent_activity undo_started undo_completed"
)
_HARNESS = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<permissions instructions>",
    "<turn_aborted>",
    "<INSTRUCTIONS>",
    "<collaboration_mode>",
    "<skills_instructions>",
)


def sniff(head: Head) -> str | None:
    """Lines of `type` and `payload` whose types are Codex's."""
    rows = head.dicts()
    lines = [row for row in rows if isinstance(row.get("type"), str) and isinstance(row.get("payload"), dict)]
    named = [row["type"] for row in lines if row["type"] in _TYPES]
    if named and len(lines) == len(rows) == len(head.records):
        return f"lines are Codex rollout items ({named[0]}, …)"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One session file as one trace."""
    if not isinstance(value, list):
        raise TraceError("TM911", where="", what="expected one rollout item a line")
    session = _Session(context)
    for line in cast("list[Any]", value):
        if not isinstance(line, Line):
            raise TraceError("TM911", where="", what="expected one rollout item a line")
        session.line(line)
    return [session.trace()]


class _Session:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.window = Window()
        self.meta: dict[str, Any] = {}
        self.models: list[str] = []
        self.instructions: Message | None = None
        self.history_start: int | None = None
        self.task = ""
        self.stop: str | None = None
        self.errors: list[str] = []

    # ---- lines

    def line(self, line: Line) -> None:
        """One rollout line."""
        where = f"{self.context.where(line.number)}:"
        row = Fields(line.value, where)
        kind = row.take_str("type")
        payload = Fields(row.take("payload"), row.at("payload"))
        if self.history_start is not None:
            ordinal = row.take_int("ordinal")
            self.window.copied = ordinal is not None and ordinal < self.history_start
        if kind == "response_item":
            self.item(payload, line.number, row.take_str("timestamp"))
        elif kind == "compacted":
            self.compacted(payload, line.number)
        elif kind == "session_meta":
            self.session_meta(payload)
        elif kind == "turn_context":
            model = payload.take_str("model")
            if model is not None:
                self.models.append(model)
        elif kind == "event_msg":
            self.event(payload)
        elif kind == "inter_agent_communication":
            self.spoken_to(payload, line.number)
        else:
            self.context.notes[f"line type {kind!r} is not part of the context"] += 1

    def session_meta(self, payload: Fields) -> None:
        """The first one names the session; later ones are of the parents whose history was copied in."""
        if self.meta:
            return
        self.meta = dict(payload.raw)
        start = payload.take("subagent_history_start_ordinal")
        self.history_start = start if isinstance(start, int) else None
        base = payload.take("base_instructions")
        text = cast("dict[str, Any]", base).get("text") if isinstance(base, dict) else payload.take("instructions")
        if isinstance(text, str) and text:
            self.instructions = Message(id="instructions", role="system", author="harness", blocks=[Text(text=text)])
            self.window.append(self.instructions)

    def spoken_to(self, payload: Fields, number: int) -> None:
        """Another agent's words: the model sees them, and the policy did not write them here."""
        text = payload.take_str("content")
        block = Text(text=text) if text else Opaque(kind="inter_agent_communication", data=dict(payload.raw))
        self.window.append(self.made(number, "user", "model", [block]))

    def event(self, payload: Fields) -> None:
        """Events that end a call, abort a turn or roll turns back; the rest repeats what the items say."""
        kind = payload.take_str("type")
        if kind == "token_count" and payload.get("info") is not None:
            self.window.open = None
        elif kind == "turn_aborted":
            self.stop = f"aborted: {payload.get('reason') or 'unknown'}"
            if self.window.open is not None:
                self.window.open.finish_reason = "abort"
        elif kind == "error":
            self.errors.append(str(payload.get("message") or "unknown"))
        elif kind == "thread_rolled_back":
            self.window.roll_back(payload.take_int("num_turns") or 0)
        elif kind in ("task_started", "turn_started", "task_complete", "turn_complete"):
            self.window.open = None
            self.stop = "task_complete" if kind.endswith("_complete") else None
        elif kind not in _REPEATED:
            self.context.notes[f"event {kind!r} is not part of the context"] += 1

    # ---- items

    def item(self, item: Fields, number: int, created: str | None = None) -> None:
        """One response item: joins the open reply, or is a message of its own."""
        kind = item.get("type")
        if kind in ("message", "agent_message", "additional_tools", "reasoning", *CALLS, *OUTPUTS):
            self.context.familiar(item.raw, _ITEM, str(kind))
        if kind == "message":
            self.message(item, number, created)
        elif kind == "reasoning":
            self.reply(number, created).blocks.append(reasoning_block(item))
        elif kind in CALLS:
            self.reply(number, created).blocks.append(call_block(item))
        elif kind in OUTPUTS:
            self.window.append(self.made(number, "tool", "environment", [output_block(item)], created))
        elif kind == "agent_message":
            blocks = said_blocks(item.take("content"), item.at("content"))
            self.window.append(self.made(number, "user", "model", blocks, created))
        elif kind == "additional_tools":
            self.window.append(
                self.made(number, "developer", "harness", [Opaque(kind=kind, data=dict(item.raw))], created)
            )
        elif kind in ("ghost_snapshot", "other"):
            self.context.notes[f"item {kind!r} is not part of the context"] += 1
        elif isinstance(kind, str):  # compaction items and kinds to come: kept whole
            self.window.append(self.made(number, "user", "model", [Opaque(kind=kind, data=dict(item.raw))], created))
        else:
            raise item.error("type", "missing")

    def message(self, item: Fields, number: int, created: str | None) -> None:
        role = item.take_str("role")
        content = item.take("content")
        if content is None:
            raise item.error("content", "missing")
        blocks = said_blocks(content, item.at("content"))
        if role == "assistant":
            self.reply(number, created).blocks.extend(blocks)
        elif role in ("user", "developer", "system"):
            author = "harness" if role != "user" else self.user_author(blocks, _kinds(item))
            self.window.append(self.made(number, role, author, blocks, created))
        else:
            raise item.error("role", f"unknown role {role!r}", fix="one of user, assistant, developer, system")

    def user_author(self, blocks: list[Block], kinds: list[str]) -> AuthorName:
        """Codex itself speaks in the user slot (environment, instructions); the first other message is the task.

        kinds: what Codex says of each part (user.text, environments.environment_context); older files say nothing.
        """
        text = next((block.text for block in blocks if isinstance(block, Text)), "")
        users = any(kind.startswith("user.") for kind in kinds)
        if not users if kinds else text.lstrip().startswith(_HARNESS):
            return "harness"
        self.task = self.task or text
        return "taskset" if text == self.task else "user"

    def reply(self, number: int, created: str | None) -> Message:
        """The open reply, or a new one by the policy, or by another model after the session's first."""
        author = "model" if self.models and self.models[-1] != self.models[0] else "policy"
        return self.window.reply(self.made(number, "assistant", author, [], created))

    def made(
        self, number: int, role: RoleName, author: AuthorName, blocks: list[Block], created: str | None = None
    ) -> Message:
        """A message of a line, copied where the history was."""
        return Message(
            id=f"l{number}", role=role, author=author, blocks=blocks, created=created, copied=self.window.copied
        )

    # ---- breaks

    def compacted(self, payload: Fields, number: int) -> None:
        """The context from here on is the base instructions, which no history holds, and replacement_history, item by
        item; none of it was sampled here."""
        summary = payload.take_str("message") or ""
        history = payload.take_list("replacement_history")
        gone = self.window.replace()
        if history is None:
            history = _rebuilt(gone, summary)
            self.context.notes["compaction without replacement_history: rebuilt from user messages and summary"] += 1
        tree, copied = self.window.tree, self.window.copied
        first, self.window.copied = len(tree.messages), True
        if self.instructions is not None:
            self.window.append(self.instructions.model_copy(update={"copied": True}))
        for index, raw in enumerate(history):
            self.item(Fields(raw, payload.at(f"replacement_history[{index}]")), number)
        for message in tree.messages[first:]:
            if summary and message.role != "assistant" and summary in message.text():
                message.author = "model"
        if summary and not any(summary in message.text() for message in tree.messages[first:]):
            self.context.notes["a compaction summary that its replacement_history does not hold"] += 1
        self.window.open, self.window.copied = None, copied

    def trace(self) -> Trace:
        if not self.window.tree.messages:
            raise TraceError("TM904", where=self.context.where(), what="the session has no response items")
        extra: dict[str, Any] = {
            key: self.meta[key] for key in self.meta if key not in ("instructions", "base_instructions")
        }
        last = next((m for m in reversed(self.window.tree.messages) if m.role == "assistant"), None)
        trace_id = self.meta.get("id") or self.meta.get("session_id")
        return self.window.tree.trace(
            id=trace_id if isinstance(trace_id, str) else self.context.file.rel,
            stop=self.stop,
            truncated=True if last is not None and last.cut_short else None,
            errors=self.errors,
            source=Source(format="codex", version=self.meta.get("cli_version")),
            extra={"session": extra, "model": self.models[0] if self.models else None},
        )


def _kinds(item: Fields) -> list[str]:
    """What Codex says of a message's parts, [] where it says nothing (or "unknown", which says no more)."""
    beside = item.get("internal_chat_message_metadata_passthrough")
    kinds = cast("dict[str, Any]", beside).get("content_item_kinds") if isinstance(beside, dict) else None
    found = cast("list[Any]", kinds) if isinstance(kinds, list) else []
    return [kind for kind in found if isinstance(kind, str) and kind != "unknown"]


def _rebuilt(gone: list[Message], summary: str) -> list[dict[str, Any]]:
    """What older files leave out: developer and user messages so far, then the summary as a user message."""
    said = [(message.role, message.text()) for message in gone if message.role in ("developer", "user")]
    return [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in [*said, ("user", summary)]
    ]


FORMAT = Format(
    name="codex",
    title="Codex rollout JSONL: compaction by replacement_history, encrypted reasoning, free-form tools, roll-backs",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
    shape=known("timestamp type ordinal payload"),
)
