"""What a trace keeps that its model has no word for, by path. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracemask.trace.blocks import Base, Block, ToolResult
from tracemask.trace.model import Message, Trace


def extras(trace: Trace) -> Iterator[str]:
    """The path of every kept key without a word of its own, once an occurrence."""
    yield from trace.extra
    yield from _of(trace)
    for edge in trace.edges:
        yield from _of(edge, "edges[].")
    for reward in trace.rewards.values():
        yield from _of(reward, "rewards.*.")
    if trace.source is not None:
        yield from _of(trace.source, "source.")
    for message in trace.messages:
        if message.extra or message.__pydantic_extra__:
            yield from _message(message)
        yield from _blocks(message.blocks, "messages[].blocks[].")
        if message.sampled is not None:
            yield from _of(message.sampled, "messages[].sampled.")


def _message(message: Message) -> Iterator[str]:
    yield from (f"messages[].{key}" for key in message.extra if key != "log")
    yield from (f"messages[].{key}" for key in message.extra.get("log", ()))
    yield from _of(message, "messages[].")


def _blocks(blocks: Sequence[Block], path: str) -> Iterator[str]:
    for block in blocks:
        if block.__pydantic_extra__:
            yield from _of(block, path)
        if isinstance(block, ToolResult):
            yield from _blocks(block.content, f"{path}content[].")


def _of(model: Base, path: str = "") -> Iterator[str]:
    return (f"{path}{key}" for key in model.__pydantic_extra__ or ())
