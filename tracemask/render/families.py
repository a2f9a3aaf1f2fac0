"""Stops of model families that their vocabulary gives away, for tokenizers without generation_config.json."""

from __future__ import annotations

from collections.abc import Container

FAMILY_STOPS: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    # gpt-oss: a tool call ends with <|call|>, an answer with <|return|>.
    (frozenset({"<|channel|>", "<|message|>", "<|call|>", "<|return|>"}), ("<|return|>", "<|call|>")),
    # GLM-4.5 and later: the next speaker's opener is what the model samples last.
    (frozenset({"[gMASK]", "<|user|>", "<|observation|>"}), ("<|user|>", "<|observation|>")),
    # Gemma 4: the opener of a tool's answer ends a call.
    (frozenset({"<|turn>", "<turn|>", "<|tool_response>"}), ("<turn|>", "<|tool_response>")),
)
"""(added tokens that mark the family, its stops as published in its generation configuration)."""


def family_stops(added: Container[str]) -> tuple[str, ...]:
    """The stops of the first family all of whose marks are added tokens; empty for an unknown one."""
    for marks, stops in FAMILY_STOPS:
        if all(mark in added for mark in marks):
            return stops
    return ()
