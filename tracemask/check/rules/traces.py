"""Rules about messages: what a trace says before any token exists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tracemask.check.block import common_prefix
from tracemask.check.context import Run
from tracemask.check.finding import ERROR, WARNING, Finding, Place
from tracemask.check.rule import Need, Scope, rule
from tracemask.trace.invariants import findings
from tracemask.trace.model import ToolCall, Trace

MESSAGES = (Need.MESSAGES,)


def place_in(trace: Trace, turn: int | None = None) -> Place:
    """A message of a trace: the log's file and line, the trace's id."""
    source = trace.source
    if source is None or not source.path:
        return Place(turn=turn, id=trace.id)
    return Place(path=source.path, line=source.line, turn=turn, id=trace.id)


def breaches(trace: Trace, run: Run) -> list[Finding]:
    """The trace room's invariants, computed once a trace, with the log's file and line as place."""
    held: dict[str, Any] = run.state("breaches", dict)
    if held.get("trace") is not trace:
        found = [
            replace(each, place=replace(place_in(trace, each.place.turn), token=each.place.token))
            for each in findings(trace)
        ]
        held.update(trace=trace, found=found)
    return held["found"]


def is_tree(trace: Trace, run: Run) -> bool:
    """Whether the messages form a tree, so that its branches can be walked."""
    return not any(each.cause in ("duplicate_id", "missing_parent", "cycle") for each in breaches(trace, run))


def of_code(trace: Trace, run: Run, code: str) -> Iterator[Finding]:
    """The invariants that bear one code."""
    return (finding for finding in breaches(trace, run) if finding.code == code)


def prompt_breaks(trace: Trace) -> Iterator[Finding]:
    """TM102 on messages: a call's `prompt_ids` that do not go on from the prompt and the reply of the call before."""
    turns = {message.id: i for i, message in enumerate(trace.messages)}
    told: set[str] = set()
    for branch in trace.branches():
        before: np.ndarray | None = None
        replies = 0
        for message in branch:
            sampled = message.sampled
            if sampled is None or sampled.prompt_ids is None:
                before = None if message.role == "assistant" else before
                continue
            prompt = np.asarray(sampled.prompt_ids, dtype=np.int64)
            if before is not None and message.id not in told:
                told.add(message.id)
                yield from _break(trace, turns[message.id], before, replies, prompt)
            replies = len(prompt)
            before = np.concatenate([prompt, np.asarray(sampled.token_ids, dtype=np.int64)])


def _break(trace: Trace, turn: int, before: np.ndarray, replies: int, prompt: np.ndarray) -> Iterator[Finding]:
    """before: prompt and reply of the call before, the reply from `replies` on."""
    same = common_prefix(before, prompt)
    if same == len(before):
        return
    inside = same >= replies
    what = "the reply before it stands there with other ids" if inside else "the context before it was rewritten"
    text = f"its prompt follows the call before only up to token {same} of {len(before)}: {what}"
    cause = "reply re-tokenized" if inside else "history rewritten"
    yield Finding("TM102", text, place_in(trace, turn), cause=cause, data={"token": same})


@rule("TM104", "arguments-double-encoded", ERROR, needs=MESSAGES, scope=Scope.TRACE)
def arguments_double_encoded(trace: Trace, run: Run) -> Iterator[Finding]:
    r"""A tool call's arguments are a JSON string that holds JSON.

    **What it does.** Looks for arguments that parse to a string which looks like an object.

    **Why it is bad.** A template that writes arguments with `tojson` then prints `"{\"pier\": 4}"` instead of
    `{"pier": 4}`: the policy is trained to call tools with a string.

    **Example.** `"arguments": "\"{\\\"pier\\\": 4}\""` after a log was serialised twice.

    **How to fix.** Decode once in the logger; keep the sampled spelling in `raw_arguments`.

    **Limits.** A tool that really takes one JSON string as its whole argument cannot be told apart.
    """
    return of_code(trace, run, "TM104")


@rule("TM105", "orphan-tool-result", ERROR, needs=MESSAGES, scope=Scope.TRACE)
def orphan_tool_result(trace: Trace, run: Run) -> Iterator[Finding]:
    """A tool result answers no earlier call, or a call is left unanswered before the next reply.

    **What it does.** Matches results with calls by id, else in order, along each branch.

    **Why it is bad.** A result without its call, or a reply that follows an unanswered call, is a context that no
    agent loop produces: messages were lost, reordered or cut.

    **Example.** The log keeps the last 20 messages; the first of them is a tool result.

    **How to fix.** Log whole runs, or cut at a user message.

    **Limits.** A call at the end of a run may stay unanswered. Copied history is not judged.
    """
    return of_code(trace, run, "TM105")


@rule("TM110", "trace-invariants", ERROR, needs=MESSAGES, scope=Scope.TRACE)
def trace_invariants(trace: Trace, run: Run) -> Iterator[Finding]:
    """A trace contradicts itself: bad parents, repeated ids, two authors in one reply, rewards that do not add up.

    **What it does.** Checks that message ids are unique, parents exist and form no cycle, only the policy or another
    model has sampled ids, a reply names one author, edges point to messages, and Σ score · weight is the reward.

    **Why it is bad.** A tree that is not one gives wrong contexts; a reply of two authors trains what the policy did
    not write; rewards that do not add up mean that one of them is wrong.

    **Example.** A reply by a teacher model, continued by the policy, logged as one message.

    **How to fix.** Correct the logger or the importer; split the reply, or mark the other author's ids as a span.

    **Limits.** Breaches that make rendering impossible stop the trace when it is read, with the same code.
    """
    return of_code(trace, run, "TM110")


@rule("TM113", "consecutive-same-role", WARNING, needs=(Need.MESSAGES, Need.TEMPLATE), scope=Scope.TRACE)
def consecutive_same_role(trace: Trace, run: Run) -> Iterator[Finding]:
    """Two messages in a row have the same role, and the template was not made for that.

    **What it does.** Looks along each branch for a user, system or assistant message right behind one of its kind.

    **Why it is bad.** Some templates refuse (Gemma 3), others merge the two or print two openers that the model never
    saw in training.

    **Example.** A harness that adds "continue" as a second user message.

    **How to fix.** Join the two messages, or put an assistant turn between them.

    **Limits.** Tool results in a row are how parallel calls are answered, and are not judged.
    """
    seen: set[tuple[str, str]] = set()
    turns = {message.id: i for i, message in enumerate(trace.messages)}
    for branch in trace.branches():
        for before, message in zip(branch, branch[1:]):
            pair = (before.id, message.id)
            if message.role == before.role and message.role != "tool" and pair not in seen:
                seen.add(pair)
                text = f"two {message.role} messages in a row"
                yield Finding("TM113", text, place_in(trace, turns[message.id]), cause=message.role)


@rule("TM114", "empty-or-ambiguous-arguments", WARNING, needs=MESSAGES, scope=Scope.TRACE)
def ambiguous_arguments(trace: Trace, run: Run) -> Iterator[Finding]:
    r"""A tool call has no arguments at all, broken ones, or two versions that differ.

    **What it does.** Reports calls whose arguments are missing or an empty string, do not parse, repeat a key, or
    whose object differs from the sampled string beside it.

    **Why it is bad.** Templates print `""`, `{}`, `null` or nothing for the same call, and which of them the policy
    sampled cannot be known afterwards.

    **Example.** `"arguments": ""` for a tool without parameters; `{"x": 1, "x": 2}`.

    **How to fix.** Log the sampled string; write `{}` for a call without arguments.

    **Limits.** Calls of a reply with sampled ids are printed from the ids; there this is only a hint about the log.
    """
    for turn, message in enumerate(trace.messages):
        for block in message.blocks:
            if isinstance(block, ToolCall):
                fault = _fault(block)
                if fault:
                    yield Finding(
                        "TM114", f"arguments of {block.name!r}: {fault[1]}", place_in(trace, turn), cause=fault[0]
                    )


def _fault(call: ToolCall) -> tuple[str, str] | None:
    raw = call.raw_arguments
    if raw is None:
        return ("empty", "there are none, write {} if the call has none") if call.arguments is None else None
    if not raw.strip():
        return "empty", "an empty string, write {} if the call has none"
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    try:
        value = json.loads(raw, object_pairs_hook=pairs)
    except ValueError:
        return "broken", "not JSON"
    if repeated:
        return "repeated key", f"the key {sorted(repeated)[0]!r} stands twice"
    if call.arguments is not None and isinstance(value, dict) and value != call.arguments:
        return "two versions", "the object differs from the sampled string"
    return None
