"""ATIF trajectories (Harbor) v1.0 to 1.8: steps with observations, ids, copies, sub-agents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.files import Layout
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.formats.atif_steps import Steps
from tracemask.trace.model import Reward, Source, Trace
from tracemask.trace.parse import loads
from tracemask.trace.shape import known

_PREFIX = "ATIF-v"


def sniff(head: Head) -> str | None:
    """`schema_version` that begins with ATIF-v, and steps."""
    for row in head.dicts():
        version = row.get("schema_version")
        if isinstance(version, str) and version.startswith(_PREFIX):
            return f"schema_version is {version}"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One trajectory document as one trace, and one more for each sub-agent that is embedded in it."""
    row = Fields(value, "")
    version = row.take_str("schema_version") or ""
    _check_version(version)
    name = row.get("trajectory_id") or row.get("session_id")
    trace_id = name if isinstance(name, str) else context.default_id()
    if context.file.layout is Layout.DOCUMENT and name is None:
        trace_id = context.file.rel
    result = _trial(context)
    return _trajectory(row, context, trace_id, version, result)


def _check_version(version: str) -> None:
    major, _, minor = version.removeprefix(_PREFIX).partition(".")
    if not version.startswith(_PREFIX) or not major.isdigit() or (minor and not minor.isdigit()):
        raise TraceError("TM914", where="schema_version", what=f"{version!r} is no ATIF version")
    if int(major) != 1:
        raise TraceError(
            "TM914", where="schema_version", what=f"ATIF {major}.x, this reads 1.x", fix="install a newer tracemask"
        )


def _trajectory(row: Fields, context: Context, trace_id: str, version: str, result: dict[str, Any]) -> list[Trace]:
    agent = Fields(row.take("agent") or {}, row.at("agent"))
    steps = row.take_list("steps")
    if not steps:
        raise row.error("steps", "missing or empty")
    tree = Steps(agent.take_str("model_name"), context)
    for index, raw in enumerate(steps):
        tree.step(Fields(raw, row.at(f"steps[{index}]")), row.get("session_id"))
    inner = row.take_list("subagent_trajectories") or []
    row.take("trajectory_id")
    row.take("session_id")
    trace = tree.tree.trace(
        id=trace_id,
        tools=agent.take_list("tool_definitions"),
        source=Source(format="atif", version=version.removeprefix(_PREFIX)),
        extra=row.rest() | {"agent": agent.get("name")},
        **_outcome(result),
    )
    traces = [trace]
    for index, raw in enumerate(inner):
        sub = Fields(raw, f"subagent_trajectories[{index}]")
        sub_id = sub.take_id("trajectory_id")
        if sub_id is None:
            raise sub.error("trajectory_id", "missing on an embedded sub-agent")
        sub_version = sub.take_str("schema_version") or version
        traces.extend(_trajectory(sub, context, f"{trace_id}/{sub_id}", sub_version, {}))
    return traces


def _trial(context: Context) -> dict[str, Any]:
    """The trial's result.json beside the agent folder (…/agent/trajectory.json), where there is one."""
    folder = Path(context.file.path).parent
    for place in (folder, folder.parent):
        path = place / "result.json"
        if path.is_file():
            try:
                found = loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise TraceError(
                    "TM910", where=f"{path.name}", what=f"the trial's result is unreadable: {error}"
                ) from None
            if isinstance(found, dict) and "trial_name" in found:
                return cast("dict[str, Any]", found)
    return {}


def _outcome(result: dict[str, Any]) -> dict[str, Any]:
    """reward(s), task and attempt of a trial; an absent verifier result leaves the reward absent."""
    if not result:
        return {}
    out: dict[str, Any] = {"task_id": result.get("task_name"), "group_id": result.get("task_name")}
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    out["rewards"] = {
        name: Reward(
            score=float(value), weight=1.0 if len(rewards) == 1 or name == "reward" else 0.0, source="verifier"
        )
        for name, value in rewards.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if len(rewards) == 1 or "reward" in rewards:
        value = rewards.get("reward", next(iter(rewards.values())))
        out["reward"] = float(value) if isinstance(value, int | float) else None
    exception = result.get("exception_info")
    if isinstance(exception, dict):
        out["errors"] = [f"{exception.get('exception_type')}: {exception.get('exception_message')}"]
    return {key: value for key, value in out.items() if value is not None}


_PART = known("type text", source=known("media_type path duration_sec"))
_REF = known("trajectory_id trajectory_path session_id extra")
_STEP = known(
    "step_id timestamp source model_name reasoning_effort reasoning_content llm_call_count is_copied_context extra",
    message=_PART,
    tool_calls=known("tool_call_id function_name arguments extra"),
    observation=known("", results=known("source_call_id extra", content=_PART, subagent_trajectory_ref=_REF)),
    metrics=known(
        "prompt_tokens completion_tokens cached_tokens cost_usd prompt_token_ids completion_token_ids logprobs extra"
    ),
)
_TRAJECTORY = known(
    "schema_version session_id trajectory_id notes continued_trajectory_ref extra",
    agent=known("name version model_name tool_definitions extra"),
    steps=_STEP,
    final_metrics=known(
        "total_prompt_tokens total_completion_tokens total_cached_tokens total_cost_usd total_steps extra"
    ),
)

FORMAT = Format(
    name="atif",
    title="ATIF trajectories v1.0 to 1.8 (Harbor), with the trial's reward beside them and sub-agents inside",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape={**_TRAJECTORY, "subagent_trajectories": _TRAJECTORY},
)
