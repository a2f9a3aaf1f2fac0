"""What must hold in every trace, as pure functions that return findings. Knows no tokenizer, file or weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from tracemask.core.errors import TraceError
from tracemask.core.finding import Finding, Place
from tracemask.core.limits import LOGPROB_CEILING
from tracemask.trace.model import ToolCall, ToolResult, Trace

REWARD_TOLERANCE = 1e-6


def findings(trace: Trace) -> list[Finding]:
    """Every breach in the trace, in order of the rules below."""
    return [finding for rule in RULES for finding in rule(trace)]


def refuse_broken(trace: Trace) -> None:
    """Raises TraceError with the finding's code where the trace cannot be rendered at all: bad tree, unequal arrays."""
    for rule in BREAKING:
        for finding in rule(trace):
            field = finding.data.get("field", "")
            raise TraceError(finding.code, where=str(field), what=finding.message)


def _at(trace: Trace, index: int) -> Place:
    return Place(id=trace.id, turn=index)


def tree(trace: Trace) -> Iterator[Finding]:
    """TM110: message ids are unique, parents exist, nothing is its own ancestor."""
    if len({message.id for message in trace.messages}) == len(trace.messages) and not any(
        "parent" in message.model_fields_set for message in trace.messages
    ):
        return  # a plain list
    seen: dict[str, int] = {}
    for index, message in enumerate(trace.messages):
        if message.id in seen:
            yield Finding(
                "TM110",
                f"message id {message.id!r} of message {seen[message.id]} is used twice",
                _at(trace, index),
                cause="duplicate_id",
                data={"field": f"messages[{index}].id"},
            )
        seen.setdefault(message.id, index)
    parents = trace.parents()
    for index, message in enumerate(trace.messages):
        parent = parents[message.id]
        if parent is not None and parent not in seen:
            yield Finding(
                "TM110",
                f"parent {parent!r} is no message of this trace",
                _at(trace, index),
                cause="missing_parent",
                data={"field": f"messages[{index}].parent"},
            )
    yield from _cycles(trace, parents, seen)


def _cycles(trace: Trace, parents: dict[str, str | None], index_of: dict[str, int]) -> Iterator[Finding]:
    rooted: set[str | None] = {None}
    for message in trace.messages:
        path: list[str] = []
        at: str | None = message.id
        walked: set[str] = set()
        while at not in rooted and at in parents:
            if at in walked:
                index = index_of[at]
                yield Finding(
                    "TM110",
                    f"message {at!r} is its own ancestor",
                    _at(trace, index),
                    cause="cycle",
                    data={"field": f"messages[{index}].parent"},
                )
                break
            walked.add(at)
            path.append(at)
            at = parents[at]
        rooted.update(path)


def lengths(trace: Trace) -> Iterator[Finding]:
    """TM101: every array of a call has the length of its token_ids; spans lie inside and do not overlap."""
    for index, message in enumerate(trace.messages):
        sampled = message.sampled
        if sampled is None:
            continue
        size = len(sampled.token_ids)
        arrays = {"logprobs": sampled.logprobs, **{f"columns.{name}": col for name, col in sampled.columns.items()}}
        for name, values in arrays.items():
            if values is not None and len(values) != size:
                yield Finding(
                    "TM101",
                    f"{len(values)} {name} for {size} sampled token ids",
                    _at(trace, index),
                    data={"field": f"messages[{index}].sampled.{name}"},
                )
        versions = sampled.policy_version if isinstance(sampled.policy_version, list) else []
        for name, spans in (("spans", sampled.spans), ("policy_version", versions)):
            end = 0
            for span in spans:
                if not end <= span.start <= span.end <= size:
                    yield Finding(
                        "TM101",
                        f"{name} [{span.start}, {span.end}) does not fit into {size} ids in order",
                        _at(trace, index),
                        data={"field": f"messages[{index}].sampled.{name}"},
                    )
                end = span.end


def logprobs(trace: Trace) -> Iterator[Finding]:
    """TM404: sampled log-probs are finite and not above 1e-4; a missing one is null, not a sentinel."""
    for index, message in enumerate(trace.messages):
        values = (message.sampled.logprobs if message.sampled else None) or []
        if _all_valid(values):
            continue
        bad = [t for t, value in enumerate(values) if value is not None and not _valid(value)]
        if bad:
            place = Place(id=trace.id, turn=index, token=bad[0])
            yield Finding(
                "TM404",
                f"{len(bad)} of {len(values)} log-probs are invalid, the first is {values[bad[0]]!r}",
                place,
                data={"field": f"messages[{index}].sampled.logprobs[{bad[0]}]"},
            )


def _all_valid(values: Sequence[float | None]) -> bool:
    """True where nothing is wrong, seen without a loop; False: look at each."""
    given = [value for value in values if value is not None] if None in values else cast("Sequence[float]", values)
    return not given or (max(given) <= LOGPROB_CEILING and math.isfinite(sum(given)))


def _valid(value: float) -> bool:
    return math.isfinite(value) and value <= LOGPROB_CEILING


def authors(trace: Trace) -> Iterator[Finding]:
    """TM110: only an assistant message of the policy or of another model is sampled; a reply names one author."""
    for index, message in enumerate(trace.messages):
        if message.sampled is not None and message.author not in ("policy", "model"):
            yield Finding(
                "TM110",
                f"a message by {message.author} has sampled ids",
                _at(trace, index),
                cause="sampled_by_other",
                data={"field": f"messages[{index}].author"},
            )
        if message.author == "policy" and message.role != "assistant":
            yield Finding(
                "TM110",
                f"the policy wrote a {message.role} message",
                _at(trace, index),
                cause="policy_outside_assistant",
                data={"field": f"messages[{index}].author"},
            )
        if message.sampled is None and message.author == "policy":
            others = {block.author for block in message.blocks if block.author not in (None, "policy")}
            if others:
                yield Finding(
                    "TM110",
                    f"one reply, authors policy and {', '.join(sorted(map(str, others)))}",
                    _at(trace, index),
                    cause="two_authors",
                    data={"field": f"messages[{index}].blocks"},
                )


def arguments(trace: Trace) -> Iterator[Finding]:
    """TM104: tool-call arguments are an object's JSON, not a JSON string that holds it once more."""
    for index, message in enumerate(trace.messages):
        for block in message.blocks:
            if isinstance(block, ToolCall) and block.raw_arguments is not None and block.arguments is None:
                text = block.raw_arguments.strip()
                if text.startswith('"') and text.endswith('"') and "{" in text:
                    yield Finding(
                        "TM104",
                        f"arguments of {block.name!r} are JSON inside a JSON string",
                        _at(trace, index),
                        data={"field": f"messages[{index}].tool_calls"},
                    )


def tool_results(trace: Trace) -> Iterator[Finding]:
    """TM105: every tool result answers an earlier call on its path, and every call is answered unless the path ends."""
    parents = trace.parents()
    index_of = {message.id: index for index, message in enumerate(trace.messages)}
    open_calls: dict[str | None, list[str | None]] = {None: []}
    for index, message in enumerate(trace.messages):
        waiting = list(open_calls.get(parents[message.id], []))
        results = [block for block in message.blocks if isinstance(block, ToolResult)]
        for result in results:
            if result.call_id in waiting:
                waiting.remove(result.call_id)
            elif result.call_id is None and waiting:
                waiting.pop(0)
            elif None in waiting:
                waiting.remove(None)
            elif not message.copied:
                yield Finding(
                    "TM105",
                    f"tool result {result.call_id or '(no id)'} answers no earlier call",
                    _at(trace, index),
                    data={"field": f"messages[{index}].tool_call_id"},
                )
        if message.role == "assistant":
            if waiting and not message.copied and parents[message.id] in index_of:
                yield Finding(
                    "TM105",
                    f"{len(waiting)} tool call(s) unanswered before this reply",
                    _at(trace, index),
                    cause="unanswered",
                    data={"calls": [c or "" for c in waiting]},
                )
            waiting = [block.id for block in message.blocks if isinstance(block, ToolCall)]
        open_calls[message.id] = waiting


def truncation(trace: Trace) -> Iterator[Finding]:
    """TM107: a last reply that stopped for length or abort makes the run truncated."""
    last = next((i for i in range(len(trace.messages) - 1, -1, -1) if trace.messages[i].role == "assistant"), None)
    if last is not None and trace.messages[last].cut_short and trace.truncated is False:
        yield Finding(
            "TM107",
            "the last reply was cut short, yet the trace says truncated = false",
            _at(trace, last),
            data={"field": "truncated"},
        )


def rewards(trace: Trace) -> Iterator[Finding]:
    """TM110: Σ score · weight equals the reward when both are given."""
    if trace.reward is None or not trace.rewards:
        return
    total = math.fsum(reward.score * reward.weight for reward in trace.rewards.values())
    if not math.isclose(total, trace.reward, rel_tol=REWARD_TOLERANCE, abs_tol=REWARD_TOLERANCE):
        yield Finding(
            "TM110",
            f"reward {trace.reward:g} is not the weighted sum {total:g} of its parts",
            Place(id=trace.id),
            cause="reward_sum",
            data={"field": "reward"},
        )


def edges(trace: Trace) -> Iterator[Finding]:
    """TM110: both ends of an edge are messages of the trace."""
    ids = {message.id for message in trace.messages}
    for index, edge in enumerate(trace.edges):
        for name, end in (("at", edge.at), ("to", edge.to)):
            if end is not None and end not in ids:
                yield Finding(
                    "TM110",
                    f"edge {edge.kind} points to {end!r}, which is no message of this trace",
                    Place(id=trace.id),
                    cause="bad_edge",
                    data={"field": f"edges[{index}].{name}"},
                )


RULES: tuple[Callable[[Trace], Iterator[Finding]], ...] = (
    tree,
    lengths,
    authors,
    edges,
    logprobs,
    arguments,
    tool_results,
    truncation,
    rewards,
)
BREAKING = (tree, lengths)
