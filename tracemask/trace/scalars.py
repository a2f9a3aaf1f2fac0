"""The scalars of a trace under the names that rollout logs give them. Knows no messages."""

from __future__ import annotations

import math
from typing import Any, cast

from tracemask.trace.fields import Fields
from tracemask.trace.model import Reward

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "id": ("id", "trace_id", "rollout_id", "uuid"),
    "task_id": ("task_id", "task", "problem_id", "instance_id", "example_id"),
    "group_id": ("group_id", "group", "prompt_id"),
}


def trace_scalars(row: Fields, *, default_id: str) -> dict[str, Any]:
    """Takes id, task_id, group_id, attempt, reward(s), advantage, stop, truncated, errors, trainable, template_kwargs.

    Absent stays absent: nothing is read as zero. Raises TraceError TM911 naming the field.
    """
    out: dict[str, Any] = {"id": default_id}
    for name, spellings in _SPELLINGS.items():
        for key in spellings:
            value = row.get(key)
            if type(value) is str or type(value) is int:
                out[name] = str(row.take(key))
                break
            if key == name and value is not None:
                raise row.error(key, "expected a string or an integer")
    if row.empty():
        return out
    for key in ("attempt", "sample_index", "rollout_index"):
        if row.get(key) is not None:
            out["attempt"] = row.take_int(key)
            break
    out.update(_rewards(row))
    if row.empty():
        return out
    out["advantage"] = row.take_number("advantage")
    out["stop"] = row.take_str("stop") or row.take_str("finish_reason")
    out["truncated"] = row.take_bool("truncated") if row.get("truncated") is not None else row.take_bool("is_truncated")
    out["trainable"] = row.take_bool("trainable")
    out["template_kwargs"] = row.take_dict("template_kwargs") or row.take_dict("chat_template_kwargs")
    out["errors"] = _errors(row)
    return {key: value for key, value in out.items() if value is not None}


def _rewards(row: Fields) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if row.get("reward") is not None:
        out["reward"] = row.take_number("reward")
    elif isinstance(row.get("score"), int | float) and not isinstance(row.get("score"), bool):
        out["reward"] = row.take_number("score")
    parts = row.take_dict("rewards") if isinstance(row.get("rewards"), dict) else None
    if parts is not None:
        out["rewards"] = {name: reward_of(row, name, part) for name, part in parts.items() if part is not None}
        if out["rewards"] and out.get("reward") is None:
            out["reward"] = math.fsum(reward.score * reward.weight for reward in out["rewards"].values())
    return out


def reward_of(row: Fields, name: str, part: Any) -> Reward:
    """One named reward: a number, or an object with score, weight and source."""
    if isinstance(part, dict):
        inner = Fields(cast("dict[str, Any]", part), f"rewards.{name}")
        score = inner.take_number("score")
        if score is None:
            raise inner.error("score", "missing")
        weight = inner.take_number("weight")
        source = inner.take_str("source")
        return Reward(score=score, weight=1.0 if weight is None else weight, source=source, **inner.rest())
    if isinstance(part, bool) or not isinstance(part, int | float):
        raise row.error(f"rewards.{name}", "expected a number or an object with a score")
    return Reward(score=part)


def _errors(row: Fields) -> list[str] | None:
    errors = row.take_first("errors", "error")
    if errors is None:
        return None
    items = cast("list[Any]", errors) if isinstance(errors, list) else [errors]
    return [item if isinstance(item, str) else repr(item)[:500] for item in items]
