"""Words in a conversation that change a template's generation prompt, as /no_think does. Knows no region."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.conversation import Conversation
from tracemask.render.layout import content_text
from tracemask.render.text import RenderedText

MAX_WORDS = 64  # of one template, and characters of a word
_QUOTED = r"(\"(?:[^\"\\\n]|\\.){1,64}\"|'(?:[^'\\\n]|\\.){1,64}')"
_ASKED = re.compile(
    rf"{_QUOTED}\s+(?:not\s+)?in\b"
    rf"|(?:\bin|==|!=|\b(?:startswith|endswith|r?find|r?index|count|r?split|r?partition|replace)\s*\()\s*{_QUOTED}"
)
_NEUTRAL = "word"
_SAID = {"role": "assistant", "content": _NEUTRAL}
_NAMES = frozenset(
    re.findall(
        r"\w+",
        "user assistant system developer tool tools function role content name type text arguments tool_calls parts "
        "tool_call_id reasoning_content reasoning thinking tool_response image image_url video audio string object "
        "array number integer boolean null properties required items description parameters enum anyOf return",
    )
)
"""Roles, fields and types: what templates ask of messages and schemas, not of what somebody said."""


@dataclass
class Switches:
    """The switches of one template, learned once per kwargs by rendering small conversations with and without them."""

    _known: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, conversation: Conversation) -> tuple[str, ...]:
        """The words that may change what is written before a reply: where one does, others may take it back (/think).

        Most templates have none.
        """
        key = conversation.setting
        if key not in self._known:
            asked = asked_for(getattr(conversation.template, "source", ""))
            usual = [_behind(conversation, chat) for chat in _chats(_NEUTRAL)] if asked else []
            changed = any(
                self._changes(conversation, word, after, usual) for word, after in zip(asked, [*asked[1:], ""])
            )
            self._known[key] = tuple(asked) if changed else ()
        return self._known[key]

    def _changes(self, conversation: Conversation, word: str, after: str, usual: list[Behind]) -> bool:
        """after: the word that is asked for next: a text may have to begin with the one and end with the other."""
        forms = (word, f"{_NEUTRAL} {word} {_NEUTRAL}", f"{word} {_NEUTRAL} {after}")
        return any([_behind(conversation, chat) for chat in _chats(form)] != usual for form in forms)

    def seen(self, conversation: Conversation, k: int) -> tuple[object, ...]:
        """(how message k - 1 holds the switches, all ways in which messages before k do, the latest last)."""
        words = self.of(conversation)
        if not words:
            return ()
        shown = conversation.switches
        for message in conversation.chat[len(shown) : k]:
            before = shown[-1][1] if shown else ()
            text = content_text(message.get("content"))
            held = tuple(
                (word, text == word, text.startswith(word), text.endswith(word)) for word in words if word in text
            )
            entry = (message.get("role"), held)
            shown.append((held, (*(each for each in before if each != entry), entry) if held else before))
        return shown[k - 1] if k else ()


def asked_for(source: str) -> list[str]:
    """The literals that a template compares text with or looks for in it, in order of appearance."""
    found = dict.fromkeys(
        literal[1:-1].encode("raw_unicode_escape").decode("unicode_escape", "replace")
        for pair in _ASKED.findall(source)
        for literal in pair
        if literal
    )
    return [word for word in found if word.strip() and word not in _NAMES][:MAX_WORDS]


def _chats(content: str) -> list[list[dict[str, Any]]]:
    asks = {"role": "user", "content": content}
    return [[asks], [asks, _SAID, {"role": "user", "content": _NEUTRAL}]]


Behind = tuple[str | None, str | None]


def _behind(conversation: Conversation, chat: Sequence[dict[str, Any]]) -> Behind:
    """What stands behind the last content of `chat` where a reply is prompted, and where one was given."""
    asked, given = _rendered(conversation, chat, prompt=True), _rendered(conversation, [*chat, _SAID], prompt=False)
    return tuple(_tail(rendered, len(chat) - 1) for rendered in (asked, given))  # pyright: ignore[reportReturnType]


def _rendered(conversation: Conversation, chat: Sequence[dict[str, Any]], *, prompt: bool) -> RenderedText | None:
    try:
        return conversation.template.render(
            list(chat), tools=conversation.tools, add_generation_prompt=prompt, kwargs=conversation.kwargs, served=True
        )
    except RenderError:
        return None


def _tail(rendered: RenderedText | None, last: int) -> str | None:
    if rendered is None:
        return None
    ends = [span.end for span in rendered.spans if span.source == last and span.origin is Origin.CONTENT]
    return rendered.text[max(ends) :] if ends else None
