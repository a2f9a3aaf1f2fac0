"""A sample: one branch's token stream in which every token knows its author, role, part, origin and message."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracemask.core.finding import Finding
from tracemask.core.vocab import Fidelity


@dataclass(frozen=True, slots=True)
class Fork:
    """This sample shares its first `position` tokens with sample `row` (its branch number) of the same trace."""

    row: int
    position: int


@dataclass(frozen=True, slots=True)
class Drift:
    """Rendered ids differ from sampled ids in one turn; the sampled ones were kept.

    cause: the taxonomy of check (bpe_split, boundary_merge, special_token_text, invalid_utf8, nfc, whitespace_trim,
    think_strip, json_reserialize, tool_call_lost, text_changed). token: first differing index in the sample.
    """

    message: int
    cause: str
    token: int
    changed: int
    where: str = "sampled"  # or "context"


@dataclass(slots=True)
class Sample:
    """Token streams of one branch, all of length T; index t speaks of token t, nothing is shifted.

    token_ids int32; author, role, part, origin uint8 (codes of core/vocab); message int32 (-1: none);
    sampled bool (author is policy and this row owns the token); logprob float32 (NaN: none, or missing where sampled).
    columns: further per-token arrays (temperature, policy_version, …), each of length T.
    complete: the run's last reply stopped for length at its own stop token: the run was not cut.
    straddling: context tokens that hold characters of two authors; each has the author of its first byte.
    """

    trace_id: str
    branch: int
    token_ids: np.ndarray
    author: np.ndarray
    role: np.ndarray
    part: np.ndarray
    origin: np.ndarray
    message: np.ndarray
    sampled: np.ndarray
    logprob: np.ndarray
    fidelity: Fidelity
    approximate: bool = False
    truncated: bool = False
    stop: str | None = None
    fork: Fork | None = None
    drift: list[Drift] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    straddling: int = 0
    complete: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)
