"""Masks over a reply's tokens as spans, and streams that cover the masked tokens only. Knows no format."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tracemask.trace.model import Span
from tracemask.trace.sampled import logprobs_from


def spread(raw: Any, inside: list[bool], total: int, start: int, where: str) -> list[float | None]:
    """A stream over the sampled tokens, or over all of the node's, laid on [start, end); None: not sampled."""
    count = len(raw) if isinstance(raw, list) else -1
    if count == total and total != sum(inside):
        values = logprobs_from(raw, total, where)[start : start + len(inside)]
        return [value if flag else None for value, flag in zip(values, inside, strict=True)]
    given = iter(logprobs_from(raw, sum(inside), where))
    return [next(given) if flag else None for flag in inside]


def spans_of(inside: list[bool]) -> list[Span]:
    """Half-open spans of the tokens that are not the policy's."""
    spans: list[Span] = []
    at = 0
    for flag, run in groupby(inside):
        end = at + len(list(run))
        if not flag:
            spans.append(Span(start=at, end=end, author="environment"))
        at = end
    return spans
