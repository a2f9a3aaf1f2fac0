"""The next prompt from the ids so far and what was said since, without rendering the conversation again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.render.conversation import Conversation
from tracemask.render.layout import Layout
from tracemask.render.parts import REASONING_TAGS
from tracemask.render.probe import PROBE_REPLY
from tracemask.render.stability import Stability
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.turns import Turns

_ASK = {"role": "user", "content": "tracemask asks"}


@dataclass
class Extender:
    """What a template writes between a reply and the next generation prompt, shown not to depend on what was before.

    open: makes a Conversation of chat messages.
    """

    tokenizer: Tokenizer
    turns: Turns
    stability: Stability
    open: Callable[[list[dict[str, Any]]], Conversation]

    def between(self, previous: Sequence[int], new: Sequence[Mapping[str, Any]]) -> tuple[Layout, int]:
        """(a render, the character in it where the continuation of `previous` begins).

        Raises RenderError TM924 naming what stands in the way.
        """
        self._refuse_rewriting(previous, new)
        ended = bool(len(previous)) and int(previous[-1]) in self.turns.stops
        found: list[tuple[Layout, int]] = []
        for stub in _stubs(new):
            try:
                found.append(self._suffix(stub, new, ended))
            except RenderError as error:
                refused = error
        if not found:
            raise _cannot(f"the template refuses the new messages: {refused.what}")  # pyright: ignore[reportPossiblyUnboundVariable]
        if len({layout.text[at:] for layout, at in found}) > 1:
            raise _cannot("what the template writes for the new messages depends on earlier ones")
        return found[0]

    def _suffix(self, stub: list[dict[str, Any]], new: Sequence[Mapping[str, Any]], ended: bool) -> tuple[Layout, int]:
        conversation = self.open([*stub, *(dict(message) for message in new)])
        layout = conversation.layout(len(conversation), prompt=True)
        region = self.turns.region(conversation, layout, len(stub) - 1)
        if region is None:
            raise _cannot("the template does not print the last reply")
        return layout, region.end if ended else region.stop

    def _refuse_rewriting(self, previous: Sequence[int], new: Sequence[Mapping[str, Any]]) -> None:
        if not new:
            raise _cannot("there are no new messages")
        if any(message.get("role") == "assistant" for message in new):
            raise _cannot("the new messages hold a reply: give its sampled ids instead")
        probe = self.open([_ASK])
        speaks = any(message.get("role") not in ("tool",) for message in new)
        if not self.stability.stable(probe, within=not speaks):
            raise _cannot("this template rewrites what it wrote before when the conversation goes on")
        if speaks and not self.stability.keeps_reasoning(probe):
            text = self.tokenizer.decode_bytes(previous).decode(errors="replace")
            if any(opener in text for opener, _ in REASONING_TAGS):
                raise _cannot("this template drops earlier reasoning once a user speaks, and there is some")


def _stubs(new: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Conversations of different pasts that end in a reply such as the new messages answer."""
    calls = [
        {
            "id": message.get("tool_call_id") or f"call{index:05}",
            "type": "function",
            "function": {"name": message.get("name") or "probe", "arguments": "{}"},
        }
        for index, message in enumerate(new)
        if message.get("role") == "tool"
    ]
    reply: dict[str, Any] = {"role": "assistant", "content": PROBE_REPLY}
    if calls:
        reply["tool_calls"] = calls
    system = {"role": "system", "content": "tracemask sets the scene"}
    past = [_ASK, {"role": "assistant", "content": "before"}]
    stubs = [[_ASK, reply], [system, _ASK, reply], [*past, _ASK, reply]]
    if calls:
        answers = [
            {"role": "tool", "content": "found", "tool_call_id": call["id"], "name": call["function"]["name"]}
            for call in calls
        ]
        stubs.append([_ASK, reply, *answers, reply])
    return stubs


def _cannot(what: str) -> RenderError:
    return RenderError("TM924", what=what, fix="use prompt_ids on the whole conversation: it starts a new row")
