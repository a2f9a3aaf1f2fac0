"""Whether a template only ever appends: what it wrote before a reply stays when the conversation goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.conversation import Conversation

_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {"x": "1"}}}
_CHATS: tuple[list[dict[str, Any]], ...] = (
    [
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": "first answer"},
        {"role": "user", "content": "second question"},
        {"role": "assistant", "content": "second answer"},
        {"role": "user", "content": "third question"},
        {"role": "assistant", "content": "third answer"},
    ],
    [
        {"role": "user", "content": "a question"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "a result", "tool_call_id": "call00001", "name": "probe"},
        {"role": "assistant", "content": "look again", "tool_calls": [_CALL]},
        {"role": "tool", "content": "another result", "tool_call_id": "call00001", "name": "probe"},
        {"role": "assistant", "content": "an answer"},
    ],
)
_SEGMENT: list[dict[str, Any]] = [
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer", "reasoning_content": "first thought"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "", "reasoning_content": "second thought", "tool_calls": [_CALL]},
    {"role": "tool", "content": "a result", "tool_call_id": "call00001", "name": "probe"},
    {"role": "assistant", "content": "again", "reasoning_content": "third thought", "tool_calls": [_CALL]},
    {"role": "tool", "content": "a result", "tool_call_id": "call00001", "name": "probe"},
    {"role": "assistant", "content": "an answer", "reasoning_content": "last thought"},
]
_SEGMENT_START = 3


@dataclass
class Stability:
    """Probes each (kwargs, tools) once: every generation-prompt render must be a prefix, up to the prompt itself."""

    open: Callable[[list[dict[str, Any]], Conversation], Conversation]
    _known: dict[tuple[str, object], bool] = field(default_factory=dict)

    def stable(self, conversation: Conversation, *, within: bool = False) -> bool:
        """True where probes that lose no text keep every prefix; within: as long as no user message is added."""
        system = conversation.chat[:1] if conversation.chat and conversation.chat[0].get("role") == "system" else []
        key = (conversation.kind, within)
        if key not in self._known:
            chats = [(_SEGMENT, _SEGMENT_START), (_CHATS[1], 0)] if within else [(chat, 0) for chat in _CHATS]
            verdicts = [
                self._probe(self.open([*system, *chat], conversation), len(system) + start) for chat, start in chats
            ]
            self._known[key] = False not in verdicts and True in verdicts
        return self._known[key]

    def keeps_reasoning(self, conversation: Conversation) -> bool:
        """True where earlier reasoning stays when a user speaks again."""
        key = (conversation.kind, "reasoning")
        if key not in self._known:
            probe = self.open(_SEGMENT, conversation)
            try:
                while_last, later = (probe.layout(end).visible(1, Origin.REASONING) for end in (2, len(probe)))
            except RenderError:
                while_last, later = 1, 0
            self._known[key] = later >= while_last
        return self._known[key]

    def _probe(self, probe: Conversation, first: int) -> bool | None:
        """None where the template refuses the probe."""
        count = len(probe)
        try:
            full = probe.layout(count)
            for k in range(first, count):
                if probe.chat[k]["role"] != "assistant":
                    continue
                start = full.extents[k].first
                if start < 0 or not probe.layout(k, prompt=True).text.startswith(full.text[:start]):
                    return False
        except RenderError:
            return None
        return True
