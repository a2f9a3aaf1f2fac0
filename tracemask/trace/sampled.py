"""What an engine returned, under the names that engines and trainers use, as one Sampled. Knows no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import ValidationError

from tracemask.core.errors import TraceError
from tracemask.trace.arrays import numbers, plain_list, token_ids
from tracemask.trace.fields import Fields, first_problem
from tracemask.trace.model import Sampled

ID_KEYS = ("token_ids", "completion_ids", "completion_token_ids", "output_ids", "output_token_ids")
PROMPT_KEYS = ("prompt_ids", "prompt_token_ids")
_TOKEN_ID = "token_id:"
LOGPROB_KEYS = ("logprobs", "completion_logprobs", "output_logprobs")


def sampled_from_fields(fields: Fields, *, reason: str | None = None) -> Sampled | None:
    """Takes the engine's fields of a reply (or its `sampled` object); None where there are no sampled ids.

    Log-probs without ids cannot be placed: they stay in the rest. Raises TraceError TM911, TM101 on unequal lengths.
    """
    inner = fields.get("sampled")
    if isinstance(inner, dict):
        fields.take("sampled")
        return _whole(inner, fields.at("sampled"))
    key = next((name for name in ID_KEYS if fields.get(name) is not None), None)
    if key is None:
        key, given = "logprobs", _spelled(fields.get("logprobs"))
        if given is None:
            return None
    else:
        given = fields.take(key)
    token_ids = _ids(given, fields.at(f"{key}"))
    values: dict[str, Any] = {"token_ids": token_ids, "finish_reason": reason or fields.take_str("finish_reason")}
    for name in PROMPT_KEYS:
        if fields.get(name) is not None:
            values["prompt_ids"] = _ids(fields.take(name), fields.at(f"{name}"))
            break
    for name in LOGPROB_KEYS:
        if fields.get(name) is not None:
            values["logprobs"] = _logprobs(fields.take(name), len(token_ids), fields.at(f"{name}"))
            break
    _scalars(fields, values)
    if values["finish_reason"] is None:
        values["finish_reason"] = fields.take_str("stop_reason")
    return build_sampled(values, fields.where)


def spelled_ids(entries: Any) -> list[int] | None:
    """The ids that the tokens of log-prob entries spell ("token_id:7": vLLM on request), where all do."""
    found: list[int] = []
    for entry in cast("list[Any]", entries) if isinstance(entries, list) else []:
        token = cast("dict[str, Any]", entry).get("token") if isinstance(entry, dict) else None
        if not isinstance(token, str) or not token.startswith(_TOKEN_ID):
            return None
        digits = token.removeprefix(_TOKEN_ID)
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 12):
            return None
        found.append(int(digits))
    return found or None


def _spelled(logprobs: Any) -> list[int] | None:
    return spelled_ids(cast("dict[str, Any]", logprobs).get("content")) if isinstance(logprobs, dict) else None


def _scalars(fields: Fields, values: dict[str, Any]) -> None:
    for name in ("temperature", "top_p", "reward", "advantage"):
        values[name] = fields.take_number(name)
    values["top_k"] = fields.take_int("top_k")
    values["model"] = fields.take_str("model")
    values["usage"] = fields.take_dict("usage")
    values["policy_version"] = fields.take_first("policy_version", "weight_version")
    for name in ("spans", "columns"):
        values[name] = fields.take(name)


def build_sampled(values: dict[str, Any], where: str) -> Sampled:
    """A Sampled from known fields, None left out. Raises TraceError TM911 naming the field."""
    try:
        return Sampled(**{key: value for key, value in values.items() if value is not None})
    except ValidationError as error:
        field, why = first_problem(error)
        raise TraceError("TM911", where=f"{where}.{field}", what=why, fix="see `tracemask schema trace`") from None


def _whole(inner: dict[str, Any], where: str) -> Sampled:
    if inner.get("token_ids") is None:
        raise TraceError("TM911", where=f"{where}.token_ids", what="missing")
    values = dict(inner)
    values["token_ids"] = _ids(inner["token_ids"], f"{where}.token_ids")
    if inner.get("logprobs") is not None:
        values["logprobs"] = _logprobs(inner["logprobs"], len(values["token_ids"]), f"{where}.logprobs")
    return build_sampled(values, where)


def ids_from(value: Any, where: str) -> list[int]:
    """Token ids as a list of int in [0, 2**31); base64 accepted. Raises TraceError TM911."""
    return plain_list(_ids(value, where))


def _ids(value: Any, where: str) -> Sequence[int]:
    try:
        return token_ids(value)
    except ValueError as error:
        raise TraceError("TM911", where=where, what=str(error)) from None


def logprobs_from(value: Any, count: int, where: str) -> list[float | None]:
    """Log-probs of `count` sampled tokens from a list, base64, or the API's {"content": [{"logprob": …}]}.

    null stays None (missing). Raises TraceError TM911 on another form, TM101 naming both lengths.
    """
    return plain_list(_logprobs(value, count, where))


def _logprobs(value: Any, count: int, where: str) -> Sequence[float | None]:
    found: Any = value
    if isinstance(found, dict):
        found = cast("dict[str, Any]", found).get("content")
    if isinstance(found, list) and any(isinstance(item, dict) for item in cast("list[Any]", found)[:1]):
        entries = cast("list[Any]", found)
        found = [cast("dict[str, Any]", item).get("logprob") if isinstance(item, dict) else item for item in entries]
    try:
        items = numbers(found)
    except ValueError as error:
        kinds = (int, float, type(None))
        entries = cast("list[Any]", found) if isinstance(found, list) else []
        index = next((i for i, item in enumerate(entries) if type(item) not in kinds), None)
        if index is None:
            raise TraceError("TM911", where=where, what=f"log-probs: {error}") from None
        raise TraceError(
            "TM911", where=f"{where}[{index}]", what=f"expected a number or null, found {entries[index]!r}"
        ) from None
    if len(items) != count:
        raise TraceError(
            "TM101",
            where=where,
            what=f"{len(items)} log-probs for {count} sampled token ids",
            fix="every sampled token needs its log-prob or null, in the same order",
        )
    return items
