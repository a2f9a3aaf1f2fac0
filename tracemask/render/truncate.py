"""Cutting a sample to a length: what is cut is said, nothing is invented. Knows no recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tracemask.core.errors import UsageError
from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Author, Part
from tracemask.render.sample import Sample

_COLUMNS = ("token_ids", "author", "role", "part", "origin", "message", "sampled", "logprob")


def truncate(sample: Sample, max_length: int, *, side: Literal["right", "left"] = "right") -> Sample:
    """The first (side="right": the right end is cut) or last max_length tokens, marked truncated; as is if it fits.

    Sampled tokens that remain stay sampled; no stop is added. Finding TM505 says where the cut lies, in whose text, and
    whether the last turn lost its stop. Raises UsageError TM900 for a length below 1.
    """
    if max_length < 1:
        raise UsageError("TM900", what=f"max_length {max_length}", fix="keep at least one token")
    if side not in ("right", "left"):
        raise UsageError("TM900", what=f"side {side!r}", fix='use "right" or "left"')
    total = len(sample)
    if total <= max_length:
        return sample
    start, end = (0, max_length) if side == "right" else (total - max_length, total)
    cut = end - 1 if side == "right" else start
    author = Author(int(sample.author[cut]))
    inside = bool(sample.sampled[cut]) and sample.part[cut] != Part.STOP and side == "right"
    finding = Finding(
        "TM505",
        f"cut from {total} to {max_length} tokens, in text of {author.label}",
        Place(token=cut),
        data={"lost": total - max_length, "sampled": int(sample.sampled.sum() - sample.sampled[start:end].sum()),
              "author": author.label, "stop_lost": inside},
    )  # fmt: skip
    return replace(
        sample,
        **{name: getattr(sample, name)[start:end] for name in _COLUMNS},
        columns={name: values[start:end] for name, values in sample.columns.items()},
        truncated=True,
        fork=sample.fork if side == "right" and sample.fork and sample.fork.position <= end else None,
        drift=[replace(d, token=d.token - start) for d in sample.drift if start <= d.token < end],
        findings=[*sample.findings, finding],
    )
