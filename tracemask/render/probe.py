"""A plain exchange that shows what a template writes around a reply, whatever the trace. Knows no trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.render.conversation import Conversation

PROBE_REPLY = "tracemask probes this reply"
PROBE_CHAT: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "tracemask probes this template"},
    {"role": "assistant", "content": PROBE_REPLY},
)


def learn_stop(open_probe: Callable[[Sequence[dict[str, Any]]], Conversation], known: frozenset[int]) -> int | None:
    """The stop that the template writes after a plain reply: the control tokens that follow at once, both at the end
    of a conversation and inside it; of several a known end, else the last."""
    last, inner = (_controls_after_reply(open_probe(chat)) for chat in (PROBE_CHAT, (*PROBE_CHAT, PROBE_CHAT[0])))
    both = [one for one, other in zip(last, inner, strict=False) if one == other]
    run = both or last
    return next((token for token in run if token in known), run[-1] if run else None)


def _controls_after_reply(conversation: Conversation) -> list[int]:
    try:
        layout = conversation.layout(len(conversation))
    except RenderError:
        return []
    at = layout.text.rfind(PROBE_REPLY)
    if at < 0:
        if isinstance(conversation.chat[1]["content"], str):
            return _controls_after_reply(replace(conversation, chat=_in_parts(conversation.chat)))
        return []
    at += len(PROBE_REPLY)
    while at < len(layout.text) and layout.text[at].isspace():
        at += 1
    found: list[int] = []
    for mark in layout.marks[bisect_left(layout.mark_starts, at) :]:
        if found and mark.start != at:
            break
        found.append(mark.id)
        at = mark.end
    return found


def _in_parts(chat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same chat with contents as lists of parts: some templates print nothing else."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
