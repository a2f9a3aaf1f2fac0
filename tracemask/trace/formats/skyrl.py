"""SkyRL generator batches, one record for many rollouts, and dumped text rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import CHAT_SHAPE
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.formats.openai import strip_nulls
from tracemask.trace.formats.rollout_columns import flags, logprobs, prompt, reply, total
from tracemask.trace.model import Source, Trace
from tracemask.trace.sampled import build_sampled, ids_from
from tracemask.trace.shape import known
from tracemask.trace.spans import spans_of

_READ = (
    "prompt_token_ids",
    "loss_masks",
    "rewards",
    "stop_reasons",
    "rollout_logprobs",
    "trajectory_ids",
    "prompts",
    "responses",
)
_KEPT = (
    "unshaped_rewards",
    "trajectory_generation_times",
    "rollout_expert_indices",
    "routed_experts",
    "is_last_step",
    "env_classes",
    "env_extras",
    "env_metrics",
    "pixel_values",
    "image_grid_thw",
)


def sniff(head: Head) -> str | None:
    """A generator's batch (`prompt_token_ids`, `response_ids`, `loss_masks`), or dumped `input_prompt` rows."""
    for row in head.dicts():
        if "response_ids" in row and "loss_masks" in row and "prompt_token_ids" in row:
            return "records are SkyRL generator batches (`response_ids`, `loss_masks`)"
        if "input_prompt" in row and "output_response" in row:
            return "records have SkyRL's `input_prompt` and `output_response` (text only)"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """A batch record as one trace a rollout; a text row as one trace."""
    row = Fields(strip_nulls(value), "")
    return [_text(row, context)] if row.has("input_prompt") else _batch(row, context)


def _text(row: Fields, context: Context) -> Trace:
    context.notes["text only: the ids are lost"] += 1
    messages = prompt(row.take("input_prompt"), "input_prompt")
    said = reply(row.take_str("output_response"), None, f"m{len(messages)}")
    said.finish_reason = row.take_str("stop_reason")
    return Trace(
        id=context.default_id(),
        messages=[*messages, said],
        reward=total(row.take("score"), "score"),
        truncated=True if said.cut_short else None,
        stop=said.finish_reason,
        source=Source(format="skyrl", version="text"),
        extra=row.rest(),
    )


def _batch(row: Fields, context: Context) -> Iterable[Trace]:
    responses = row.take_list("response_ids") or []
    columns = {name: row.take_list(name) for name in (*_READ, *_KEPT)}
    for name, column in columns.items():
        if column is not None and len(column) != len(responses):
            raise row.error(name, f"{len(column)} entries for {len(responses)} responses", code="TM101")
    rest = row.rest()

    def rollout(index: int) -> Trace:
        at = {name: column[index] for name, column in columns.items() if column is not None}
        trace = _rollout(responses[index], at, f"{context.default_id()}.{index}", index)
        trace.extra = rest | {name: at[name] for name in _KEPT if at.get(name) is not None}
        return trace

    return context.apart(range(len(responses)), rollout)


def _rollout(raw: Any, at: dict[str, Any], name: str, index: int) -> Trace:
    """One rollout of a batch: its ids, and its entry of every column."""
    ids = ids_from(raw, f"response_ids[{index}]")
    mask = flags(at.get("loss_masks"), len(ids), f"loss_masks[{index}]")
    fields = Fields(at, "")
    reason, text = _word(fields, "stop_reasons", index), _word(fields, "responses", index)
    sampled = build_sampled(
        {
            "token_ids": ids,
            "prompt_ids": ids_from(at.get("prompt_token_ids"), f"prompt_token_ids[{index}]"),
            "logprobs": logprobs(at.get("rollout_logprobs"), mask, f"rollout_logprobs[{index}]"),
            "spans": spans_of(mask) if any(mask) else [],
            "finish_reason": reason,
        },
        f"[{index}]",
    )
    messages = prompt(at.get("prompts"), f"prompts[{index}]")
    said = reply(text, sampled, f"m{len(messages)}")
    task, attempt = _trajectory_id(at.get("trajectory_ids"), index)
    return Trace(
        id=name,
        task_id=task,
        group_id=task,
        attempt=attempt,
        messages=[*messages, said],
        reward=total(at.get("rewards"), f"rewards[{index}]"),
        truncated=True if said.cut_short else None,
        trainable=any(mask),
        stop=sampled.finish_reason,
        source=Source(format="skyrl"),
    )


def _word(at: Fields, name: str, index: int) -> str | None:
    value = at.get(name)
    if value is not None and not isinstance(value, str):
        raise at.error(f"{name}[{index}]", "expected a string or null")
    return value


def _trajectory_id(raw: Any, index: int) -> tuple[str | None, int | None]:
    """(instance, repetition): an object, or the string that SkyRL makes of both."""
    if raw is None:
        return None, None
    if isinstance(raw, str | int) and not isinstance(raw, bool):
        task, _, repetition = str(raw).rpartition("_")
        return (task, int(repetition)) if task and repetition.isdecimal() else (str(raw), None)
    fields = Fields(raw, f"trajectory_ids[{index}]")
    return fields.take_id("instance_id"), fields.take_int("repetition_id")


FORMAT = Format(
    name="skyrl",
    title="SkyRL generator batches, or dumped text rows",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape=known(
        "response_ids rollout_metrics trajectory_time_splits input_prompt output_response score stop_reason env_class "
        f"data_source {' '.join((*_READ, *_KEPT))}",
        prompts=CHAT_SHAPE,
        input_prompt=CHAT_SHAPE,
        trajectory_ids=known("instance_id repetition_id"),
    ),
)
