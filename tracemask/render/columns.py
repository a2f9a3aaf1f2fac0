"""Per-token columns that an engine gave with a reply, and how they are joined. Knows no row and no message's text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracemask.core.errors import RenderError
from tracemask.trace.model import Sampled

VERSION = "policy_version"
ADVANTAGE, CALL_REWARD = "advantage", "call_reward"


def engine_columns(sampled: Sampled) -> dict[str, np.ndarray]:
    """float32[n] of each column, of the temperature and of the call's advantage; `call_reward`: the call's reward at
    its last token, 0 before it, so that a sum over tokens counts it once. Policy versions are text in an object array,
    "" where unknown.

    Raises RenderError TM911 for a column of versions (its numbers could not be told from those of the field), and for
    advantages or rewards that are given both for the call and for its tokens.
    """
    if VERSION in sampled.columns:
        raise RenderError(
            "TM911", where=f"columns.{VERSION}", what="versions are no column", fix=f"give {VERSION}, a value or spans"
        )
    for name, value in ((ADVANTAGE, sampled.advantage), (CALL_REWARD, sampled.reward)):
        if value is not None and name in sampled.columns:
            what = "given for the call and for each of its tokens"
            raise RenderError("TM911", where=f"columns.{name}", what=what, fix="keep one of them")
    count = len(sampled.token_ids)
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, which check reports (TM404)
        columns = {name: np.asarray(values, np.float32) for name, values in sorted(sampled.columns.items())}
        if sampled.temperature is not None:
            columns["temperature"] = np.full(count, sampled.temperature, np.float32)
        if sampled.advantage is not None:
            columns[ADVANTAGE] = np.full(count, sampled.advantage, np.float32)
        if sampled.reward is not None:
            columns[CALL_REWARD] = np.zeros(count, np.float32)
            columns[CALL_REWARD][-1:] = sampled.reward
    version = sampled.policy_version
    if version is not None:
        texts = columns[VERSION] = np.full(count, "", object)
        if isinstance(version, list):
            for span in version:
                texts[span.start : span.end] = str(span.version)
        else:
            texts[:] = str(version)
    return columns


def blank(like: np.ndarray, count: int) -> np.ndarray:
    """`count` entries of a column that say nothing: "" where it holds text, else NaN."""
    return np.full(count, "", object) if like.dtype == object else np.full(count, np.nan, np.float32)


def finished(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns as a sample has them: versions int64 with -1 for none where all are whole numbers, else text."""
    return {name: _versions(values) if values.dtype == object else values for name, values in columns.items()}


def _versions(texts: np.ndarray) -> np.ndarray:
    if all(map(_is_number, _distinct(texts))):
        return np.array([int(text) if text else -1 for text in texts.tolist()], np.int64)
    return texts.astype(str)


def _distinct(texts: np.ndarray) -> Iterable[str]:
    return set(texts.tolist()) - {""}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and str(int(text)) == text and len(text) < 19
