"""What verifiers' records are known to hold: v1 episodes and traces, legacy results. Knows no meaning of it."""

from __future__ import annotations

from tracemask.trace.chat import CHAT_SHAPE
from tracemask.trace.shape import Shape, known

_USAGE = known("prompt_tokens completion_tokens cached_input_tokens reasoning_tokens cost")
_ERRORS = known("type message status_code traceback")
_TASK = known("type key hash data")
_COUNTS = "num_input_tokens num_output_tokens num_total_tokens"
_TRACE = known(
    "version id is_completed ok stop_condition is_timeout root_reply mm_token_type_id_map metrics info state "
    f"advantage {_COUNTS}",
    verifiers=known("version commit"),
    task=_TASK,
    agent=known("name trainable config runtime"),
    tools=known("type name namespace description parameters strict function"),
    nodes=known(
        "parent sampled timestamp finish_reason token_ids renderer_token_ids mask is_content logprobs routed_experts "
        "multi_modal_data sampling_mask loss_weights tools reference_logprobs trainer_logprobs entropies advantages",
        message={**CHAT_SHAPE, "provider_state": None},
        semantic_parents=known("node type"),
        usage=_USAGE,
    ),
    calls=known(
        "node model endpoint finish_reason acp",
        sampling=known("temperature top_p top_k reasoning_effort max_tokens min_p seed stop extra_body"),
        usage=_USAGE,
        time=known("start end"),
        error=_ERRORS,
        policy=known("code paths"),
    ),
    rewards={"*": known("score weight source")},
    extra_usage=_USAGE,
    errors=_ERRORS,
    request_rewrites=known("handler"),
    response_rewrites=known("handler"),
    timing={"*": {"*": known("start end duration")}},
)
_EPISODE = known(
    f"id ok is_timeout run {_COUNTS}",
    env=known("id args version config"),
    task=_TASK,
    group=known("id size index"),
    errors=_ERRORS,
    traces=_TRACE,
)
_STEP = known(
    "response reward advantage is_truncated trajectory_id temperature extras",
    prompt=CHAT_SHAPE,
    completion=CHAT_SHAPE,
    tokens=known(
        "prompt_ids prompt_mask completion_ids completion_mask completion_logprobs overlong_prompt is_truncated "
        "routed_experts multi_modal_data prompt_attribution"
    ),
)
_LEGACY = known(
    "example_id id task task_id group_id group prompt_id answer info reward score metrics timing generation_ms "
    "total_ms scoring_ms is_completed is_truncated stop_condition stop error errors attempt advantage trainable "
    "truncated trajectory_id tools oai_tools tool_defs version_info eval_cost state token_usage "
    f"{_COUNTS}",
    prompt=CHAT_SHAPE,
    completion=CHAT_SHAPE,
    rewards={"*": known("score weight source")},
    trajectory=_STEP,
)

SHAPE: Shape = {**_LEGACY, **_TRACE, **_EPISODE}
"""A record is one of the three; none uses a name for another thing."""
