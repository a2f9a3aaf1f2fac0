"""What trainers' rollout dumps share: rendered prompts, response-only masks and columns, summed rewards.

Knows no trainer. Pickles are never read.
"""

from __future__ import annotations

from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.chat import messages_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.model import Message, Sampled, Text
from tracemask.trace.sampled import logprobs_from


def prompt(raw: Any, where: str) -> list[Message]:
    """A prompt of messages, or one string: the text that the trainer rendered, kept as one user message."""
    if raw is None:
        return []
    if isinstance(raw, str):
        raw = [{"role": "user", "content": raw}]
    messages = messages_from_chat(raw, where=where, clean=False)
    for message in messages:
        message.copied = message.role == "assistant"
    return messages


def reply(text: str | None, sampled: Sampled | None, name: str) -> Message:
    """The policy's one reply."""
    return Message(
        id=name, role="assistant", author="policy", blocks=[] if text is None else [Text(text=text)], sampled=sampled
    )


def flags(raw: Any, count: int, where: str) -> list[bool]:
    """A response-only mask as booleans; null: all true. Raises TraceError TM911, TM101 naming both lengths."""
    if raw is None:
        return [True] * count
    return [_flag(flag, f"{where}[{index}]") for index, flag in enumerate(_sized(raw, count, where))]


def logprobs(raw: Any, mask: list[bool], where: str) -> list[float | None] | None:
    """Response-only log-probs; those of tokens that the policy did not write are nobody's: None."""
    if raw is None or (raw == [] and mask):
        return None
    values = logprobs_from(raw, len(mask), where)
    return [value if flag else None for value, flag in zip(values, mask, strict=True)]


def columns(row: Fields, names: dict[str, str], count: int, *, keep: int | None = None) -> dict[str, Any]:
    """Other response-only numbers, field → column: the first `keep` of `count`, a constant advantage as one number.

    Fields of Sampled: `columns`, and `advantage` where it is the same for every token.
    """
    found: dict[str, Any] = {}
    for name, column in names.items():
        raw = row.take(name)
        if raw is not None:
            found[column] = _sized(raw, count, row.at(name))[:keep]
    values: dict[str, Any] = {"columns": found}
    advantage = found.get("advantage")
    if advantage and len(set(map(repr, advantage))) == 1:
        values["advantage"] = found.pop("advantage")[0]
    return values


def total(raw: Any, where: str) -> float | None:
    """A reward, or the sum of per-token ones."""
    if raw is None:
        return None
    values = cast("list[Any]", raw) if isinstance(raw, list) else [raw]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise TraceError("TM911", where=where, what="expected a number or a list of numbers")
    try:
        return float(sum(values))
    except OverflowError:
        raise TraceError("TM911", where=where, what="a number is beyond the range of floats") from None


def _sized(raw: Any, count: int, where: str) -> list[Any]:
    if not isinstance(raw, list):
        raise TraceError("TM911", where=where, what="expected a list")
    values = cast("list[Any]", raw)
    if len(values) != count:
        raise TraceError(
            "TM101",
            where=where,
            what=f"{len(values)} entries for {count} response tokens",
            fix="masks and log-probs cover the response, one entry a token",
        )
    return values


def _flag(value: Any, where: str) -> bool:
    if value in (0, 1) and isinstance(value, int | float):
        return bool(value)
    raise TraceError("TM911", where=where, what=f"a mask entry is {value!r}"[:80], fix="use 0 and 1")
