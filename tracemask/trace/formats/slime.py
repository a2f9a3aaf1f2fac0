"""slime samples as JSON, JSONL or Parquet: `tokens` is prompt and response, masks and log-probs the response only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import CHAT_SHAPE
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.formats.openai import strip_nulls
from tracemask.trace.formats.rollout_columns import columns, flags, logprobs, prompt, reply
from tracemask.trace.model import Reward, Sampled, Source, Trace
from tracemask.trace.sampled import build_sampled, ids_from
from tracemask.trace.shape import known
from tracemask.trace.spans import spans_of

_REASONS = {"truncated": "length", "aborted": "abort", "completed": "stop"}
_COLUMNS = {"teacher_log_probs": "ref_logprob"}


def sniff(head: Head) -> str | None:
    """`tokens`, `response_length` and a response."""
    for row in head.dicts():
        if "response_length" in row and "response" in row and "tokens" in row:
            return "records have slime's `tokens`, `response` and `response_length`"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One sample as one trace."""
    row = Fields(strip_nulls(value), "")
    status = row.take_str("status")
    reason = _REASONS.get(status or "")
    tokens, length = ids_from(row.take("tokens") or [], "tokens"), row.take_int("response_length") or 0
    if not 0 <= length <= (len(tokens) or length):
        raise row.error("response_length", f"{length} of {len(tokens)} tokens", code="TM101")
    mask = flags(row.take("loss_mask"), length, "loss_mask")
    sampled = _sampled(row, tokens, mask, reason) if tokens and length else None
    asked = "raw_prompt" if row.has("raw_prompt") and isinstance(row.get("prompt"), str) else "prompt"
    messages = prompt(row.take(asked), asked)  # the conversation, where there is one beside its rendered text
    said = reply(row.take_str("response"), sampled, f"m{len(messages)}")
    said.finish_reason = None if sampled else reason
    name = row.take_id("index") or context.default_id()
    removed = row.take_bool("remove_sample") or False
    if row.get("rollout_id") is not None and str(row.get("rollout_id")) != name:
        context.notes["a sample of a rollout with others (`rollout_id`): a trace of its own here"] += 1
    return [
        Trace(
            id=name,
            group_id=row.take_id("group_index"),
            messages=[*messages, said],
            stop=status,
            truncated=True if status in ("truncated", "aborted") else None,
            trainable=not removed and (any(mask) or not tokens),
            source=Source(format="slime"),
            **_reward(row),
            extra=row.rest(),
        )
    ]


def _sampled(row: Fields, tokens: list[int], mask: list[bool], reason: str | None) -> Sampled:
    length = len(mask)
    versions = row.get("weight_versions")
    one = {str(version) for version in cast("list[Any]", versions)} if isinstance(versions, list) else set[str]()
    values: dict[str, Any] = {
        "token_ids": tokens[len(tokens) - length :],
        "prompt_ids": tokens[: len(tokens) - length],
        "logprobs": logprobs(row.take("rollout_log_probs"), mask, "rollout_log_probs"),
        "spans": spans_of(mask) if any(mask) else [],
        "finish_reason": reason,
        "policy_version": next(iter(one)) if len(one) == 1 else None,  # several: which turn had which is not said
        **columns(row, _COLUMNS, length),
    }
    if len(one) == 1:
        row.take("weight_versions")
    teachers = row.take_dict("mopd_teacher_log_probs") or {}
    for domain in teachers:
        inner = Fields(teachers, "mopd_teacher_log_probs")
        values["columns"] |= columns(inner, {domain: f"teacher.{domain}"}, length)["columns"]
    return build_sampled(values, "")


def _reward(row: Fields) -> dict[str, Any]:
    """A number, or an object of named numbers (then no total is assumed unless it is named); the rest stays."""
    reward = row.get("reward")
    if not isinstance(reward, dict):
        return {"reward": row.take_number("reward")}
    row.take("reward")
    given = cast("dict[str, Any]", reward)
    parts = {
        name: Reward(score=part, weight=0.0)
        for name, part in given.items()
        if isinstance(part, int | float) and not isinstance(part, bool)
    }
    total = next((parts.pop(name) for name in ("reward", "score") if name in parts), None)
    beside = {name: part for name, part in given.items() if name not in parts and name not in ("reward", "score")}
    if beside:
        row.give("reward", beside)
    return {"rewards": parts, "reward": None if total is None else total.score}


FORMAT = Format(
    name="slime",
    title="slime samples as JSON, JSONL or Parquet",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape=known(
        "group_index index tokens response response_length label loss_mask weight_versions rollout_log_probs "
        "remove_sample status metadata train_metadata generate_function_path session_id non_generation_time "
        "multimodal_inputs multimodal_train_inputs rollout_routed_experts teacher_log_probs mopd_teacher_log_probs "
        "mopd_teacher_topk_logits mopd_teacher_topk_indices rollout_id rollout_top_p_token_ids "
        "rollout_top_p_token_offsets reward",
        prompt=CHAT_SHAPE,
        raw_prompt=CHAT_SHAPE,
        spec_info=known("spec_accept_token_num spec_draft_token_num spec_verify_ct completion_token_num"),
        prefix_cache_info=known("cached_tokens total_prompt_tokens"),
    ),
)
