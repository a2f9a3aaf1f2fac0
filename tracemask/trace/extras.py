"""What a trace keeps that its model has no word for, by path. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracemask.trace.blocks import Base, Block, ToolResult
from tracemask.trace.model import Message, Sampled, Trace


def extras(trace: Trace) -> list[str]:
    """The path of every kept key without a word of its own, once an occurrence."""
    found = [*trace.extra, *_of(trace)]
    for edge in trace.edges:
        found += _of(edge, "edges[].")
    for reward in trace.rewards.values():
        found += _of(reward, "rewards.*.")
    if trace.source is not None:
        found += _of(trace.source, "source.")
    for message in trace.messages:
        if message.extra or message.__pydantic_extra__:
            found += _message(message)
        for block in message.blocks:
            if block.__pydantic_extra__:
                found += _of(block, "messages[].blocks[].")
            if type(block) is ToolResult:
                found += _blocks(block.content, "messages[].blocks[].content[].")
        if message.sampled is not None:
            found += _sampled(message.sampled)
    return found


def _message(message: Message) -> Iterator[str]:
    yield from (f"messages[].{key}" for key in message.extra if key != "log")
    yield from (f"messages[].{key}" for key in message.extra.get("log", ()))
    yield from _of(message, "messages[].")


def _sampled(sampled: Sampled) -> Iterator[str]:
    yield from _of(sampled, "messages[].sampled.")
    for span in sampled.spans:
        yield from _of(span, "messages[].sampled.spans[].")


def _blocks(blocks: Sequence[Block], path: str) -> Iterator[str]:
    for block in blocks:
        if block.__pydantic_extra__:
            yield from _of(block, path)
        if isinstance(block, ToolResult):
            yield from _blocks(block.content, f"{path}content[].")


def _of(model: Base, path: str = "") -> Iterator[str]:
    return (f"{path}{key}" for key in model.__pydantic_extra__ or ())
