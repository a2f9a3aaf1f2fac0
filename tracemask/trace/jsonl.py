"""Our own JSON Lines: one trace a line, every known field explicit or at its default, unknown ones kept.

Knows no other format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, cast

import orjson
from pydantic import BaseModel, ValidationError

from tracemask.core.errors import TraceError
from tracemask.core.whole import whole_file
from tracemask.trace.arrays import Packed, floats_to_base64, ints_to_base64
from tracemask.trace.fields import first_problem
from tracemask.trace.model import SCHEMA_VERSION, Sampled, Trace

MAJOR = int(SCHEMA_VERSION.split(".")[0])


class Arrays(str, Enum):
    """How token arrays are written: decimal lists, or base64 (ids int32, the rest float32: log-probs are rounded)."""

    LIST = "list"
    BASE64 = "base64"


def to_json(trace: Trace, *, arrays: Arrays = Arrays.LIST) -> dict[str, Any]:
    """The trace as plain JSON values; fields at their default are left out. from_json gives an equal trace back."""
    return _dump(trace, arrays)


def _dump(model: BaseModel, arrays: Arrays) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, spec in type(model).model_fields.items():
        value = getattr(model, name)
        always = name in ("type", "schema_version") or (name == "parent" and name in model.model_fields_set)
        if always or spec.is_required() or value != spec.get_default(call_default_factory=True):
            out[name] = _plain(value, arrays)
    if arrays is Arrays.BASE64 and isinstance(model, Sampled):
        _pack(out)
    out.update({key: _plain(value, arrays) for key, value in (model.model_extra or {}).items()})
    return out


def _plain(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, BaseModel):
        return _dump(value, arrays)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_plain(item, arrays) for item in items] if items and isinstance(items[0], BaseModel) else items
    if isinstance(value, dict):
        return {key: _plain(item, arrays) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, Packed) and arrays is Arrays.LIST:
        return value.tolist()
    return value


def _pack(out: dict[str, Any]) -> None:
    for name in ("token_ids", "prompt_ids"):
        if out.get(name) is not None:
            out[name] = ints_to_base64(out[name])
    if out.get("logprobs") is not None:
        out["logprobs"] = floats_to_base64(out["logprobs"])
    if out.get("columns"):
        out["columns"] = {name: floats_to_base64(values) for name, values in out["columns"].items()}


def dumps(value: Any) -> bytes:
    """One JSON line without its newline; integers of any size and NaN as Python writes them. UTF-8."""
    try:
        if not _has_nonfinite(value):
            return orjson.dumps(value)
    except TypeError:
        pass
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def _has_nonfinite(value: Any) -> bool:
    """orjson writes NaN and infinities as null, which would turn a fault into a missing value."""
    if isinstance(value, float):
        return value - value != 0.0
    if isinstance(value, dict):
        return any(_has_nonfinite(item) for item in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return any(_has_nonfinite(item) for item in cast("list[Any]", value))
    return False


def write_traces(path: str | os.PathLike[str], traces: Iterable[Trace], *, arrays: Arrays = Arrays.LIST) -> int:
    """Writes one line a trace to a new file (replaced whole when complete); how many. Same traces, same bytes."""
    count = 0
    with whole_file(path) as file:
        for trace in traces:
            file.write(dumps(to_json(trace, arrays=arrays)))
            file.write(b"\n")
            count += 1
    return count


def from_json(value: dict[str, Any]) -> Trace:
    """A trace from its JSON value, upgraded where the version is older. Raises TraceError TM914, TM911."""
    try:
        return Trace.model_validate(upgrade(value))
    except ValidationError as error:
        field, reason = first_problem(error)
        raise TraceError("TM911", where=field, what=reason, fix="see `tracemask schema trace`") from None


def _from_0(value: dict[str, Any]) -> dict[str, Any]:
    """0.x had `content` as one string per message and no blocks."""
    messages: list[Any] = []
    old = value.get("messages")
    if not isinstance(old, list):
        return {**value, "schema_version": "1.0"}
    for message in cast("list[Any]", old):
        if isinstance(message, dict) and "blocks" not in message and isinstance(message.get("content"), str):
            kept = {key: item for key, item in cast("dict[str, Any]", message).items() if key != "content"}
            messages.append({**kept, "blocks": [{"type": "text", "text": message["content"]}]})
        else:
            messages.append(message)
    return {**value, "schema_version": "1.0", "messages": messages}


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {0: _from_0}


def upgrade(value: dict[str, Any]) -> dict[str, Any]:
    """The value in the current major version, by pure steps; minor versions are additive. Raises TraceError TM914."""
    version = value.get("schema_version", SCHEMA_VERSION)
    major_text = version.split(".")[0] if isinstance(version, str) else ""
    if not major_text.isdigit() or int(major_text) > MAJOR:
        raise TraceError(
            "TM914",
            where="schema_version",
            what=f"version {version!r}, this reads up to {MAJOR}.x",
            fix="install a newer tracemask",
        )
    for major in range(int(major_text), MAJOR):
        value = UPGRADES[major](value)
    return value


__all__ = ["Arrays", "dumps", "from_json", "to_json", "upgrade", "write_traces"]
