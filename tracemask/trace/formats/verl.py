"""verl rollout rows: ids padded on both sides, or text only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tracemask.core.vocab import Fidelity
from tracemask.trace.chat import CHAT_SHAPE
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.formats.openai import strip_nulls
from tracemask.trace.formats.rollout_columns import columns, flags, logprobs, prompt, reply, total
from tracemask.trace.model import Sampled, Source, Trace
from tracemask.trace.sampled import build_sampled, ids_from
from tracemask.trace.shape import known
from tracemask.trace.spans import spans_of

_KEY = re.compile(r"([0-9a-f]+(?:-[0-9a-f]+)+)_([0-9]{1,9})_[0-9]+")
# The trainer's own passes over the response: never the engine's log-probs, whatever else is missing.
_COLUMNS = {
    "old_log_probs": "old_logprob",
    "ref_log_prob": "ref_logprob",
    "advantages": "advantage",
    "entropys": "entropy",
    "returns": "returns",
    "values": "values",
}


def sniff(head: Head) -> str | None:
    """`input`, `output`, `score` and `step` (text dumps), or `prompts` and `responses` with a mask (id dumps)."""
    for row in head.dicts():
        if isinstance(row.get("input"), str) and isinstance(row.get("output"), str) and "score" in row:
            return "records have verl's `input`, `output` and `score` (text only)"
        if "prompts" in row and "responses" in row and ("response_mask" in row or "attention_mask" in row):
            return "records have verl's `prompts` and `responses` ids"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One row as one trace: text dumps hold rendered text only, id dumps are padded on both sides."""
    row = Fields(strip_nulls(value), "")
    if row.has("input"):
        return [_text(row, context)]
    sampled = _sampled(row)
    scores = next((key for key in ("token_level_scores", "token_level_rewards", "rm_scores") if row.get(key)), None)
    reward = row.take_number("score") if scores is None else total(row.take(scores), scores)
    messages = prompt(row.take("raw_prompt"), "raw_prompt")
    return [
        Trace(
            id=row.take_id("request_id") or context.default_id(),
            group_id=row.take_id("uid"),
            reward=reward,
            messages=[*messages, reply(None, sampled, f"m{len(messages)}")],
            source=Source(format="verl"),
            extra=row.rest(),
        )
    ]


def _sampled(row: Fields) -> Sampled:
    given, response = ids_from(row.take("prompts"), "prompts"), ids_from(row.take("responses"), "responses")
    attention = row.take_list("attention_mask")
    if attention is not None and len(attention) != len(given) + len(response):
        raise row.error(
            "attention_mask", f"{len(attention)} entries for {len(given)} + {len(response)} ids", code="TM101"
        )
    real = flags(attention, len(given) + len(response), "attention_mask")
    count = sum(real[len(given) :])
    if any(real[len(given) + count :]):
        raise row.error("attention_mask", "padding inside the response", code="TM101")
    mask = flags(row.take("response_mask"), len(response), "response_mask")[:count]
    sampler = row.take("rollout_log_probs")
    if isinstance(sampler, list) and len(sampler) == len(response):
        sampler = sampler[:count]
    return build_sampled(
        {
            "token_ids": response[:count],
            "prompt_ids": [token for token, flag in zip(given, real, strict=False) if flag],
            "logprobs": logprobs(sampler, mask, "rollout_log_probs"),
            "spans": spans_of(mask),
            **columns(row, _COLUMNS, len(response), keep=count),
        },
        "",
    )


def _key(uid: str | None) -> tuple[str | None, int | None]:
    """(group, attempt) of a `uid`: verl's later trainers dump GROUP_SESSION_OUTPUT, the group a UUID.

    A caller's own uid, say DATASET_12_3, is no such key: its rows would all be one group.
    """
    key = _KEY.fullmatch(uid or "")
    return (key[1], int(key[2])) if key else (uid, None)


def _text(row: Fields, context: Context) -> Trace:
    context.notes["text only: `input` is rendered text, the ids are lost"] += 1
    messages = prompt(row.take_str("input"), "input")
    said = reply(row.take_str("output"), None, f"m{len(messages)}")
    uid = row.take_id("uid")
    group, attempt = _key(uid)
    return Trace(
        id=row.take_id("request_id") or (uid if uid is not None and attempt is not None else context.default_id()),
        group_id=group,
        attempt=attempt,
        messages=[*messages, said],
        reward=row.take_number("score"),
        source=Source(format="verl", version="text"),
        extra=row.rest(),
    )


FORMAT = Format(
    name="verl",
    title="verl rollout dumps: ids, or text only",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape=known(
        "input output gts score step request_id uid prompts responses attention_mask response_mask rollout_log_probs "
        "token_level_scores token_level_rewards rm_scores data_source reward_model ability extra_info index "
        "input_ids position_ids loss_mask routed_experts teacher_ids teacher_logprobs rollout_is_weights "
        # what verl's own reward managers say beside a score; other functions' words are counted
        "reward acc pred overlong overlong_reward timeout error num_turns __num_turns__ tool_extra_fields "
        f"multi_modal_data multi_modal_inputs metrics extra_fields {' '.join(_COLUMNS)}",
        raw_prompt=CHAT_SHAPE,
    ),
)
