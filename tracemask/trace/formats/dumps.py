"""Trainers' own rollout dumps as JSON, JSONL or Parquet: slime samples, verl rows, SkyRL batches.

Pickles are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import messages_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.formats.openai import strip_nulls
from tracemask.trace.model import Message, Reward, Sampled, Source, Text, Trace
from tracemask.trace.sampled import build_sampled, ids_from, logprobs_from
from tracemask.trace.spans import spans_of

# ------------------------------------------------------------------------------------------------ shared


def _prompt(raw: Any, where: str) -> list[Message]:
    """A prompt of messages, or one string: the text that the trainer rendered, kept as one user message."""
    if raw is None:
        return []
    if isinstance(raw, str):
        raw = [{"role": "user", "content": raw}]
    messages = messages_from_chat(raw, where=where, clean=False)
    for message in messages:
        message.copied = message.role == "assistant"
    return messages


def _reply(text: str | None, sampled: Sampled | None, name: str) -> Message:
    return Message(
        id=name, role="assistant", author="policy", blocks=[] if text is None else [Text(text=text)], sampled=sampled
    )


def _flags(raw: Any, count: int, where: str) -> list[bool]:
    """A response-only mask as booleans. Raises TraceError TM101 naming both lengths."""
    if raw is None:
        return [True] * count
    if not isinstance(raw, list):
        raise TraceError("TM911", where=where, what="expected a list")
    if len(cast("list[Any]", raw)) != count:
        raise TraceError(
            "TM101",
            where=where,
            what=f"{len(cast('list[Any]', raw))} entries for {count} response tokens",
            fix="masks and log-probs cover the response, one entry a token",
        )
    return [bool(flag) for flag in cast("list[Any]", raw)]


def _logprobs(raw: Any, mask: list[bool], where: str) -> list[float | None] | None:
    """Response-only log-probs; those of tokens that the policy did not write are nobody's: None."""
    if not raw:
        return None
    values = logprobs_from(raw, len(mask), where)
    return [value if flag else None for value, flag in zip(values, mask, strict=True)]


# ------------------------------------------------------------------------------------------------ slime


def sniff_slime(head: Head) -> str | None:
    """`tokens`, `response_length` and a response."""
    for row in head.dicts():
        if "response_length" in row and "response" in row and "tokens" in row:
            return "records have slime's `tokens`, `response` and `response_length`"
    return None


def read_slime(value: Any, context: Context) -> Iterable[Trace]:
    """One sample as one trace; tokens = prompt then response, masks and log-probs over the response only."""
    row = Fields(strip_nulls(value), "")
    tokens = ids_from(row.take("tokens") or [], "tokens")
    length = row.take_int("response_length") or 0
    if length > len(tokens) and tokens:
        raise row.error("response_length", f"{length} is more than the {len(tokens)} tokens", code="TM101")
    mask = _flags(row.take("loss_mask"), length, "loss_mask")
    status = row.take_str("status")
    reason = {"truncated": "length", "aborted": "abort", "completed": "stop"}.get(status or "")
    versions = row.take_list("weight_versions")
    sampled = None
    if tokens and length:
        values: dict[str, Any] = {
            "token_ids": tokens[-length:],
            "prompt_ids": tokens[:-length],
            "logprobs": _logprobs(row.take("rollout_log_probs"), mask, "rollout_log_probs"),
            "spans": spans_of(mask) if any(mask) else [],
            "finish_reason": reason,
            "policy_version": str(versions[0]) if versions and len(set(map(str, versions))) == 1 else None,
        }
        sampled = build_sampled(values, "")
    messages = _prompt(row.take("prompt"), "prompt")
    reply = _reply(row.take_str("response"), sampled, f"m{len(messages)}")
    reply.finish_reason = None if sampled else reason
    group, index = row.take_id("group_index"), row.take_int("index")
    removed = row.take_bool("remove_sample") or False
    scalars: dict[str, Any] = {"id": context.default_id() if index is None else str(index), "group_id": group}
    return [
        Trace(
            messages=[*messages, reply],
            attempt=None,
            stop=status,
            truncated=True if status in ("truncated", "aborted") else None,
            trainable=not removed and (any(mask) or not tokens),
            source=Source(format="slime"),
            **scalars,
            **_reward(row),
            extra=row.rest(),
        )
    ]


def _reward(row: Fields) -> dict[str, Any]:
    """A number, or an object of named numbers (then no total is assumed unless it is named)."""
    reward = row.take("reward")
    if isinstance(reward, dict):
        parts = {
            name: Reward(score=float(part), weight=0.0)
            for name, part in cast("dict[str, Any]", reward).items()
            if isinstance(part, int | float) and not isinstance(part, bool)
        }
        total = next((parts.pop(name) for name in ("reward", "score") if name in parts), None)
        return {"rewards": parts, "reward": None if total is None else total.score}
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise row.error("reward", "expected a number or an object of numbers")
    return {"reward": reward}


# ------------------------------------------------------------------------------------------------ verl


def sniff_verl(head: Head) -> str | None:
    """`input`, `output`, `score` and `step` (text dumps), or `prompts` and `responses` with a mask (id dumps)."""
    for row in head.dicts():
        if isinstance(row.get("input"), str) and isinstance(row.get("output"), str) and "score" in row:
            return "records have verl's `input`, `output` and `score` (text only)"
        if "prompts" in row and "responses" in row and ("response_mask" in row or "attention_mask" in row):
            return "records have verl's `prompts` and `responses` ids"
    return None


def read_verl(value: Any, context: Context) -> Iterable[Trace]:
    """One row as one trace: text dumps hold rendered text only, id dumps are padded on both sides."""
    row = Fields(strip_nulls(value), "")
    if row.has("input"):
        return [_verl_text(row, context)]
    prompt, response = ids_from(row.take("prompts"), "prompts"), ids_from(row.take("responses"), "responses")
    attention = row.take_list("attention_mask") or [1] * (len(prompt) + len(response))
    if len(attention) != len(prompt) + len(response):
        raise row.error(
            "attention_mask", f"{len(attention)} entries for {len(prompt)} + {len(response)} ids", code="TM101"
        )
    real = [bool(flag) for flag in attention[len(prompt) :]]
    count = sum(real)
    if any(real[count:]):
        raise row.error("attention_mask", "padding inside the response", code="TM101")
    mask = _flags(row.take("response_mask"), len(response), "response_mask")[:count]
    logprobs = None
    for key in ("rollout_log_probs", "old_log_probs"):
        raw = row.take(key)
        if raw is not None and logprobs is None:
            logprobs = _logprobs(raw[:count] if isinstance(raw, list) else raw, mask, key)
    sampled = build_sampled(
        {
            "token_ids": response[:count],
            "prompt_ids": [token for token, flag in zip(prompt, attention, strict=False) if flag],
            "logprobs": logprobs,
            "spans": spans_of(mask),
        },
        "",
    )
    scores = row.take("token_level_scores") or row.take("token_level_rewards")
    reward = row.take_number("score") if scores is None else _total(scores, "token_level_scores")
    messages = _prompt(row.take("raw_prompt"), "raw_prompt")
    group = row.take_id("uid")
    return [
        Trace(
            id=row.take_id("request_id") or context.default_id(),
            group_id=group,
            reward=reward,
            messages=[*messages, _reply(None, sampled, f"m{len(messages)}")],
            source=Source(format="verl"),
            extra=row.rest(),
        )
    ]


def _verl_text(row: Fields, context: Context) -> Trace:
    context.notes["text only: `input` is rendered text, the ids are lost"] += 1
    messages = _prompt(row.take_str("input"), "input")
    reply = _reply(row.take_str("output"), None, f"m{len(messages)}")
    return Trace(
        id=row.take_id("request_id") or context.default_id(),
        group_id=row.take_id("uid"),
        messages=[*messages, reply],
        reward=row.take_number("score"),
        source=Source(format="verl", version="text"),
        extra=row.rest(),
    )


# ------------------------------------------------------------------------------------------------ SkyRL


def sniff_skyrl(head: Head) -> str | None:
    """A generator's batch (`prompt_token_ids`, `response_ids`, `loss_masks`), or dumped `input_prompt` rows."""
    for row in head.dicts():
        if "response_ids" in row and "loss_masks" in row and "prompt_token_ids" in row:
            return "records are SkyRL generator batches (`response_ids`, `loss_masks`)"
        if "input_prompt" in row and "output_response" in row:
            return "records have SkyRL's `input_prompt` and `output_response` (text only)"
    return None


def read_skyrl(value: Any, context: Context) -> Iterable[Trace]:
    """A batch record as one trace a rollout; a text row as one trace."""
    row = Fields(strip_nulls(value), "")
    if row.has("input_prompt"):
        context.notes["text only: the ids are lost"] += 1
        messages = _prompt(row.take("input_prompt"), "input_prompt")
        reply = _reply(row.take_str("output_response"), None, f"m{len(messages)}")
        reply.finish_reason = row.take_str("stop_reason")
        score = row.take("score")
        return [
            Trace(
                id=context.default_id(),
                messages=[*messages, reply],
                reward=_total(score, "score"),
                truncated=True if reply.cut_short else None,
                stop=reply.finish_reason,
                source=Source(format="skyrl", version="text"),
                extra=row.rest(),
            )
        ]
    return _skyrl_batch(row, context)


_COLUMNS = (
    "prompt_token_ids",
    "loss_masks",
    "rewards",
    "stop_reasons",
    "rollout_logprobs",
    "trajectory_ids",
    "prompts",
    "responses",
)


def _skyrl_batch(row: Fields, context: Context) -> list[Trace]:
    responses = row.take_list("response_ids") or []
    columns = {name: row.take_list(name) for name in _COLUMNS}
    for name, column in columns.items():
        if column is not None and len(column) != len(responses):
            raise row.error(name, f"{len(column)} entries for {len(responses)} responses", code="TM101")
    rest = row.rest()
    traces: list[Trace] = []
    for index, raw in enumerate(responses):
        at = {name: column[index] for name, column in columns.items() if column is not None}
        trace = _skyrl_rollout(raw, at, f"{context.default_id()}.{index}", index)
        trace.extra = rest
        traces.append(trace)
    return traces


def _skyrl_rollout(raw: Any, at: dict[str, Any], name: str, index: int) -> Trace:
    """One rollout of a batch: its ids, and its entry of every column."""
    ids = ids_from(raw, f"response_ids[{index}]")
    mask = _flags(at.get("loss_masks"), len(ids), f"loss_masks[{index}]")
    reason, text = at.get("stop_reasons"), at.get("responses")
    sampled = build_sampled(
        {
            "token_ids": ids,
            "prompt_ids": ids_from(at.get("prompt_token_ids"), f"prompt_token_ids[{index}]"),
            "logprobs": _logprobs(at.get("rollout_logprobs"), mask, f"rollout_logprobs[{index}]"),
            "spans": spans_of(mask) if any(mask) else [],
            "finish_reason": reason if isinstance(reason, str) else None,
        },
        f"[{index}]",
    )
    messages = _prompt(at.get("prompts"), f"prompts[{index}]")
    reply = _reply(text if isinstance(text, str) else None, sampled, f"m{len(messages)}")
    task, attempt = _trajectory_id(at.get("trajectory_ids"))
    return Trace(
        id=name,
        task_id=task,
        group_id=task,
        attempt=attempt,
        messages=[*messages, reply],
        reward=_total(at.get("rewards"), f"rewards[{index}]"),
        truncated=True if reply.cut_short else None,
        trainable=any(mask),
        stop=sampled.finish_reason,
        source=Source(format="skyrl"),
    )


def _trajectory_id(raw: Any) -> tuple[str | None, int | None]:
    if isinstance(raw, dict):
        fields = Fields(raw, "trajectory_ids")
        return fields.take_id("instance_id"), fields.take_int("repetition_id")
    return (str(raw), None) if isinstance(raw, str | int) else (None, None)


def _total(raw: Any, where: str) -> float | None:
    """A reward, or the sum of per-token ones."""
    if raw is None:
        return None
    values = cast("list[Any]", raw) if isinstance(raw, list) else [raw]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise TraceError("TM911", where=where, what="expected a number or a list of numbers")
    return float(sum(values))


def _format(name: str, title: str, sniff: Any, read: Any, known: str) -> Format:
    return Format(
        name=name,
        title=title,
        unit=UnitKind.RECORD,
        fidelity=Fidelity.EXACT,
        sniff=sniff,
        read=read,
        known=frozenset(known.split()),
    )


SLIME = _format(
    "slime",
    "slime samples as JSON, JSONL or Parquet",
    sniff_slime,
    read_slime,
    "label metadata train_metadata generate_function_path session_id non_generation_time spec_info "
    "prefix_cache_info multimodal_inputs rollout_routed_experts",
)
VERL = _format(
    "verl",
    "verl rollout dumps: ids, or text only",
    sniff_verl,
    read_verl,
    "gts step data_source reward_model ability extra_info index input_ids position_ids",
)
SKYRL = _format(
    "skyrl",
    "SkyRL generator batches, or dumped text rows",
    sniff_skyrl,
    read_skyrl,
    "rollout_metrics env_class env_extras data_source is_last_step",
)
