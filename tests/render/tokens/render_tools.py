"""Short ways to render on the small tokenizer and to read a sample."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracemask.core.vocab import Author, Part
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer

SMALL = Path(__file__).resolve().parents[3] / "fixtures" / "tokenizers" / "small"


@cache
def small() -> Tokenizer:
    return Tokenizer.load(SMALL)


@cache
def small_template() -> Template:
    tokenizer = small()
    assert tokenizer.chat_template is not None
    return Template(tokenizer.chat_template, tokens=tokenizer.token_strings, sandbox="inline")


def renderer(**options: Any) -> Renderer:
    return Renderer(small(), small_template(), **options)


def text_of(sample: Sample, mask: np.ndarray | None = None) -> str:
    ids = sample.token_ids if mask is None else sample.token_ids[mask]
    return small().decode_bytes(ids.tolist()).decode(errors="replace")


def sampled_text(sample: Sample) -> list[str]:
    """The text of each maximal stretch of sampled tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], sample.sampled.astype(np.int8), [0]))))
    return [
        small().decode_bytes(sample.token_ids[start:end].tolist()).decode(errors="replace")
        for start, end in edges.reshape(-1, 2)
    ]


def of(sample: Sample, *, author: Author | None = None, part: Part | None = None) -> str:
    mask = np.ones(len(sample), bool)
    if author is not None:
        mask &= sample.author == author
    if part is not None:
        mask &= sample.part == part
    return text_of(sample, mask)


def same(left: list[Sample], right: list[Sample]) -> bool:
    """Byte for byte, columns and findings included."""
    names = ("token_ids", "author", "role", "part", "origin", "message", "sampled", "logprob")
    if len(left) != len(right):
        return False
    for one, other in zip(left, right, strict=True):
        if any(getattr(one, name).tobytes() != getattr(other, name).tobytes() for name in names):
            return False
        if any(getattr(one, name).dtype != getattr(other, name).dtype for name in names):
            return False
        if (one.fork, one.drift, one.findings, one.fidelity) != (
            other.fork,
            other.drift,
            other.findings,
            other.fidelity,
        ):
            return False
    return True
