"""What an OpenAI-compatible response says of its call: text, ids, log-probs, why it stopped. Knows no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.fields import Fields
from tracemask.trace.sampled import logprobs_from, spelled_ids


def reply_of(response: Mapping[str, Any], where: str = "response", *, choice: int | None = None) -> dict[str, Any]:
    """One choice as a chat message with what `call_of` finds. Raises TraceError TM911, TM101.

    choice: which one; None asks for a response of one choice.
    """
    body = Fields(response, where)
    choices = body.take_list("choices")
    if not choices:
        raise body.error("choices", "missing or empty")
    if choice is not None and not 0 <= choice < len(choices):
        raise body.error("choices", f"no choice {choice} among {len(choices)}")
    if choice is None and len(choices) > 1:
        raise body.error(
            "choices", f"{len(choices)} choices", fix="record each in a rollout of its own: choice=0, 1, …"
        )
    chosen = Fields(choices[choice or 0], body.at(f"choices[{choice or 0}]"))
    if chosen.has("delta"):
        raise chosen.error("delta", "a chunk of a stream", fix="record the whole response, its chunks put together")
    if chosen.has("text") and not chosen.has("message"):
        message: dict[str, Any] = {"content": chosen.take_str("text")}
    else:
        message = {k: v for k, v in Fields(chosen.take("message"), chosen.at("message")).raw.items() if v is not None}
    return {"role": "assistant", **message, **call_of(response, where, choice=choice or 0)}


def call_of(response: Any, where: str, *, choice: int = 0) -> dict[str, Any]:
    """The engine's fields of one choice, as a chat message carries them; without ids only why it stopped.

    vLLM: token_ids, prompt_token_ids and logprobs.content (through LiteLLM: in provider_specific_fields), or tokens
    spelled "token_id:7"; SGLang: meta_info.output_token_logprobs = [[logprob, id, text], …]. Raises TM911, TM101.
    """
    body = Fields(response, where)
    choices = body.take_list("choices") or []
    if len(choices) <= choice:
        return {}
    chosen = Fields(choices[choice], body.at(f"choices[{choice}]"))
    more = chosen.get("provider_specific_fields")
    beside = cast("dict[str, Any]", more) if isinstance(more, dict) else {}
    reply: dict[str, Any] = {"finish_reason": chosen.take_str("finish_reason")}
    ids, logprobs = _ids_and_logprobs(chosen, beside)
    if ids is not None:
        prompt = body.get("prompt_token_ids") or chosen.get("prompt_token_ids") or beside.get("prompt_token_ids")
        reply |= {"token_ids": ids, "logprobs": logprobs, "prompt_ids": prompt or None}
        reply |= {"model": body.take_str("model"), "usage": body.take_dict("usage")}
        meta = chosen.get("meta_info")
        reply["policy_version"] = cast("dict[str, Any]", meta).get("weight_version") if isinstance(meta, dict) else None
    return {key: value for key, value in reply.items() if value is not None}


def _ids_and_logprobs(choice: Fields, beside: dict[str, Any]) -> tuple[Any, list[float | None] | None]:
    meta = choice.get("meta_info")
    pairs = cast("dict[str, Any]", meta).get("output_token_logprobs") if isinstance(meta, dict) else None
    if pairs:
        return _pairs(pairs, choice.at("meta_info.output_token_logprobs"))
    content = _entries(choice)
    ids = choice.get("token_ids") if choice.get("token_ids") is not None else beside.get("token_ids")
    ids = spelled_ids(content) if ids is None else ids
    if ids is None:
        return None, None
    if content is None:
        return ids, None
    count = len(cast("list[Any]", ids)) if isinstance(ids, list) else -1
    return ids, logprobs_from(content, count, choice.at("logprobs"))


def _entries(choice: Fields) -> list[Any] | None:
    """The entries of logprobs.content (of a refusal: logprobs.refusal), or a completion's token_logprobs."""
    raw = choice.get("logprobs")
    if not isinstance(raw, dict):
        return None
    inner = Fields(raw, choice.at("logprobs"))
    found = [inner.take_list(key) for key in ("content", "refusal", "token_logprobs")]
    return next((entries for entries in found if entries is not None), None)


def _pairs(pairs: Any, where: str) -> tuple[list[Any], list[float | None]]:
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) >= 2 for p in cast("Any", pairs)):
        raise TraceError("TM911", where=where, what="expected pairs of log-prob and id")
    entries = cast("list[list[Any]]", pairs)
    return [entry[1] for entry in entries], logprobs_from([entry[0] for entry in entries], len(entries), where)
