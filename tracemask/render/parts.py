"""What each stretch of a reply is: reasoning, tool call, content. Reads tags in text; knows no token and no author."""

from __future__ import annotations

import re

from tracemask.core.vocab import Part

REASONING_TAGS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
)
CALL_TAGS = (
    ("<tool_call>", "</tool_call>"),
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<|START_ACTION|>", "<|END_ACTION|>"),
    ("<|tool_call>", "<tool_call|>"),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("[TOOL_CALLS]", None),
    ("<|python_tag|>", None),
    ("<|channel|>commentary to=", None),
)
_CLOSER: dict[str, str | None] = dict((*REASONING_TAGS, *CALL_TAGS))
_PART = {opener: Part.REASONING for opener, _ in REASONING_TAGS} | {opener: Part.TOOL_CALL for opener, _ in CALL_TAGS}
_HEADER = "<|start|>assistant"
_RECIPIENT = r" to=[^\s<]+ ?<\|channel\|>commentary"
_TAGS = "|".join(re.escape(tag) for tag in sorted(_PART, key=len, reverse=True))
_CHANNEL = "<|channel|>"
_CHANNELS = "|".join(re.escape(tag) for tag in sorted(_PART, key=len, reverse=True) if _CHANNEL in tag)
_OPENER = re.compile(_TAGS)
_INITIALS = frozenset(tag[0] for tag in _PART)
_HARMONY_OPENER = re.compile(f"(?:{re.escape(_HEADER)})?(?:{_RECIPIENT}|{_CHANNELS})|{_TAGS}")
"""A harmony block begins with its own header; a call may name its recipient before its channel. Slow to search for."""
_EMPTY = re.compile(
    r"\s*(?:" + "|".join(re.escape(a) + r"\s*" + re.escape(b) for a, b in REASONING_TAGS[:-2]) + r")\s*"
)


def empty_reasoning(text: str, start: int, end: int) -> int:
    """Where a leading reasoning block of tags and white space alone ends in text[start:end]; else `start`."""
    match = _EMPTY.match(text, start, end)
    return match.end() if match else start


def open_reasoning(prompt: str) -> str | None:
    """The closer that a generation prompt leaves open ("<think>\\n" is prefilled), or None."""
    for opener, closer in REASONING_TAGS:
        at = prompt.rfind(opener)
        if at >= 0 and prompt.find(closer, at) < 0:
            return closer
    return None


def reply_parts(text: str, *, opened: str | None = None) -> tuple[list[int], list[Part]]:
    """Boundaries and parts of a reply: parts[i] holds from starts[i] to starts[i + 1].

    opened: the closer of a reasoning block that the generation prompt opened.
    """
    starts, parts, at = [0], [Part.CONTENT], 0
    if opened is not None:
        close = text.find(opened)
        if close < 0:
            return [0], [Part.REASONING]
        at = close + len(opened)
        starts, parts = [0, at], [Part.REASONING, Part.CONTENT]
    if not any(initial in text for initial in _INITIALS):  # much faster than the search
        return starts, parts
    opening = _HARMONY_OPENER if _CHANNEL in text else _OPENER
    while (match := opening.search(text, at)) is not None:
        opener = match[0].removeprefix(_HEADER)
        closer = _CLOSER.get(opener)
        close = text.find(closer, match.end()) if closer else -1
        at = len(text) if close < 0 else close + len(closer or "")
        starts += [match.start(), at]
        parts += [_PART.get(opener, Part.TOOL_CALL), Part.CONTENT]
    return starts, parts
