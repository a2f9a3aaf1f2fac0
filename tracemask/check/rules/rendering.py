"""Rules that only rendering can see: reported by the renderer, stored with the row, passed on here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, INFO, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View

RENDERED = (Need.RENDERED,)


@rule("TM103", "template-drops-text", ERROR, needs=RENDERED)
def template_drops_text(view: View) -> Iterator[Finding]:
    """Part of a message is missing from its render.

    **What it does.** Rendering knows where each character came from; a field of a message of which characters never
    reach the text is reported, with the field.

    **Why it is bad.** The policy is trained on a conversation that did not take place: a tool call vanishes, or the
    reasoning of a reply is gone while its reward stays.

    **Example.** A tool call on a template without tools; Qwen3's reasoning in a conversation without a user message.

    **How to fix.** Use a template that prints the field, `history="auto"` so that a reply gets a row of its own, or log
    the sampled ids, which are never dropped.

    **Limits.** Says nothing about rows of other tools: their messages are unknown.
    """
    return recorded(view, "TM103", cause="the template drops {field}")


@rule("TM111", "generation-prompt-not-prefix", INFO, needs=RENDERED)
def generation_prompt_not_prefix(view: View) -> Iterator[Finding]:
    """What the template writes before a reply in history is not what it writes when it asks for one.

    **What it does.** Compares the render that ends in the generation prompt with the render that holds the reply.

    **Why it matters.** Where a sampled region begins is then approximate for replies that are known as text only; the
    row says so. Sampled ids are not affected.

    **Example.** DeepSeek R1's prompt ends in `<think>` and its history has none.

    **How to fix.** Log sampled ids, or use a training variant of the template.

    **Limits.** One note per turn; TM302 and its kin judge the outcome.
    """
    return recorded(view, "TM111")


@rule("TM112", "tools-ignored-by-template", ERROR, needs=RENDERED)
def tools_ignored(view: View) -> Iterator[Finding]:
    """Tools are declared and the template prints none of them.

    **What it does.** Looks for any character of the declared tools in the render.

    **Why it is bad.** The policy is trained to call tools that its context never mentions.

    **Example.** A Llama 3.1 template without the tools branch.

    **How to fix.** Use a template with tools, or put the schemas into the system prompt as your engine did.

    **Limits.** Needs the log or shards that `tracemask convert` wrote.
    """
    return recorded(view, "TM112", cause="the template")


@rule("TM115", "passed-otherwise", INFO, needs=RENDERED)
def passed_otherwise(view: View) -> Iterator[Finding]:
    """Content or tool-call arguments reached the template in another form than the log has.

    **What it does.** Names the first message of a branch whose arguments were parsed from their string, or spelled as
    JSON, or whose text was passed as a content part, because the template fails on what the log has, or would quote
    arguments that are JSON already. Malformed arguments, quoted by the template, stand without the quotes.

    **Why it matters.** Inference servers do the same, so the context is most likely what the policy saw; but how an
    object is spelled as JSON is the renderer's choice.

    **Example.** An OpenAI log, whose arguments are strings, on Qwen3.5's template, which iterates over an object, or on
    Qwen2.5's, which would print `"{\\"pier\\": 4}"`.

    **How to fix.** Nothing is wrong. Log sampled ids and prompt ids to be sure of every token.

    **Limits.** Absent content that was passed as the empty string is not noted.
    """
    return recorded(view, "TM115", cause="the template")


@rule("TM116", "unprintable-call", WARNING, needs=RENDERED)
def unprintable_call(view: View) -> Iterator[Finding]:
    """The template cannot print a tool call: the arguments spell no JSON object. Known ids stand for the reply.

    **What it does.** Names replies that are in the row by the ids that were sampled because the template takes nothing
    but an object, and messages that only the ids of later contexts hold.

    **Why it matters.** The reply itself is exact, and malformed JSON is often what a reward of 0 is about. Where the
    log has no `prompt_ids` of a later reply, its context holds the malformed reply as it was sampled: what the engine
    was given there, nobody knows.

    **Example.** `{"id": 1, "to": "wes` on Qwen3.5's or GLM 4.5's template, which iterate over arguments.

    **How to fix.** Log `prompt_ids` as well. A reply of which only such text is known is refused (TM920).

    **Limits.** Says nothing where the template prints the string, as Qwen3's does.
    """
    return recorded(view, "TM116", cause="the template")


@rule("TM108", "position-dependent-render", WARNING, needs=RENDERED)
def position_dependent(view: View) -> Iterator[Finding]:
    """The template prints a text-only reply differently once later messages follow.

    **What it does.** Reports rows that forked because a reply's characters do not survive in the branch's full render.

    **Why it is bad.** Every such reply needs a row of its own with its context repeated; and which of the two renders
    the policy saw is a guess when no ids were logged.

    **Example.** Qwen3 drops the reasoning of replies before the last user message.

    **How to fix.** Log sampled ids. To train on the full render as it stands: `history="as_rendered"`.

    **Limits.** Rows with sampled ids fork for what really happened and are not judged; see TM109 for the cost.
    """
    block = view.block
    for i, (fork, fidelity, position) in enumerate(
        zip(block.scalar("fork_row"), block.scalar("fidelity"), block.scalar("fork_position"), strict=True)
    ):
        if fork is not None and fidelity == "messages":
            yield block.finding(
                "TM108", i, "a reply is rendered differently once later messages follow: it has this row of its own",
                token=int(position or 0),
            )  # fmt: skip


def recorded(view: View, code: str, *, cause: str | None = None) -> Iterator[Finding]:
    """What the renderer, or the reading of the trace, noted with the rows under `code`.

    cause: what such notes have in common; {field} is the message's field that a note names.
    """
    for i, row_notes in enumerate(notes(view)):
        for note in row_notes:
            if note.get("code") != code:
                continue
            place, data = note.get("place") or {}, note.get("data") or {}
            shared = note.get("cause") or (cause.format(field=data.get("field", "text")) if cause else None)
            finding = view.block.finding(
                code, i, str(note.get("message", "")), token=_number(place.get("token")),
                end=_number(place.get("end")), cause=shared,
            )  # fmt: skip
            turn = _number(place.get("turn"))
            if turn is None or finding.place.turn == turn:
                yield finding
            else:
                yield _at_turn(view, i, finding, turn)


def notes(view: View) -> list[list[dict[str, Any]]]:
    """The notes of every row, parsed once a block."""
    if "notes" not in view.block.facts:
        view.block.facts["notes"] = [
            [json.loads(note) if isinstance(note, str) else note for note in texts or ()]
            for texts in view.block.scalar("findings")
        ]
    return view.block.facts["notes"]


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _at_turn(view: View, i: int, finding: Finding, turn: int) -> Finding:
    """A note about a message: placed at the message's first token, where the row has it."""
    token = finding.place.token
    message = view.block.rows[i].get("message")
    if token is None and message is not None:
        places = np.flatnonzero(message == turn)
        token = int(places[0]) if len(places) else None
    return replace(finding, place=replace(finding.place, turn=turn, token=token))


class Dates:
    """The dates that rows show where the template prints today's."""

    def __init__(self) -> None:
        self.seen: dict[bytes, Finding] = {}


def _dates_finish(run: Run) -> Iterator[Finding]:
    seen = run.state("TM212", Dates).seen
    if len(seen) > 1:
        first, *others = seen.items()
        shown = ", ".join(sorted(raw.decode("utf-8", "replace") for raw in seen))
        text = f"the template prints the current date and rows show {len(seen)} of them: {shown}"
        yield Finding("TM212", text, others[0][1].place)


@rule(
    "TM212", "time-dependent-template", WARNING, needs=(Need.IDS, Need.TOKENIZER, Need.TEMPLATE), finish=_dates_finish
)
def time_dependent(view: View) -> Iterator[Finding]:
    """The template prints today's date, and rows of one dataset show different days.

    **What it does.** Renders a probe on two dates to learn where the date stands, and reads it off every row.

    **Why it is bad.** The same log gives other ids tomorrow: caches, fingerprints and evaluation drift, and the policy
    sees dates in training that it does not see in use.

    **Example.** Llama 3.1's `Today Date:` line, rendered over two days.

    **How to fix.** Pin the date (`tracemask convert` does), or pass `date_string` to the template.

    **Limits.** Only the date that the template itself prints; dates in contents are the conversation's own.
    """
    marks = _date_marks(view.run)
    if marks is None:
        return iter(())
    before, length = marks
    raw, offsets = view.raw
    seen = view.run.state("TM212", Dates).seen
    at = raw.find(before)
    while at >= 0:
        shown = raw[at + len(before) : at + len(before) + length]
        if shown not in seen and len(seen) < 32:
            flat = int(np.searchsorted(offsets, at, side="right")) - 1
            row = int(view.block.row_of[flat])
            seen[shown] = view.block.finding("TM212", row, "", token=flat - int(view.block.offsets[row]))
        at = raw.find(before, at + len(before))
    return iter(())


def _date_marks(run: Run) -> tuple[bytes, int] | None:
    """The text before the template's date and the date's length; None where it prints none. Learned once."""
    held: dict[str, tuple[bytes, int] | None] = run.state("date marks", dict)
    if "marks" not in held:
        held["marks"] = _learn_dates(run)
    return held["marks"]


def _learn_dates(run: Run) -> tuple[bytes, int] | None:
    from tracemask.core.errors import TracemaskError
    from tracemask.render.template import Template

    template = run.template
    if template is None or "strftime_now" not in template.source:
        return None
    texts = []
    for day in (date(2021, 3, 14), date(2026, 10, 27)):
        try:
            probe = Template(template.source, name=template.name, tokens=template.tokens, date=day)
            texts.append(probe.render([{"role": "user", "content": "Zyqub"}]).text)
        except TracemaskError:
            return None
    head = _same(*texts)
    tail = _same(*[text[head:][::-1] for text in texts])
    length = len(texts[0]) - head - tail
    before = texts[0][max(head - 24, 0) : head]
    start = before.rfind("\n") + 1
    if length <= 0 or not before[start:].strip():
        return None
    return before[start:].encode(), length


def _same(left: str, right: str) -> int:
    """Length of the longest common prefix."""
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n
