"""Fidelity, forks, ownership, drift and authorship of rows on the small tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from render_tools import of, renderer, sampled_text, small, text_of

from tracemask.core.errors import RenderError, UsageError
from tracemask.core.vocab import Author, Fidelity, Origin, Part, Role
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.trace.model import Message, Sampled, Span, Text, Trace

U = {"role": "user", "content": "Which colour is the sky?"}
STOP = "<|im_end|>"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def ids(text: str) -> list[int]:
    return small().encode(text)


def sampled(text: str, **fields: Any) -> dict[str, Any]:
    """An assistant message with the ids of `text` as an engine would return them."""
    tokens = ids(text)
    return {
        "role": "assistant",
        "token_ids": tokens,
        "logprobs": [-0.5] * len(tokens),
        "finish_reason": "stop",
    } | fields


def rows(*messages: dict[str, Any], tools: Any = None, options: dict[str, Any] | None = None, **scalars: Any) -> Any:
    return renderer(**(options or {})).render(Trace.from_messages(list(messages), tools, **scalars))


# ------------------------------------------------------------------ text only


def test_reply_and_stop_are_sampled_and_nothing_else() -> None:
    (row,) = rows(U, {"role": "assistant", "content": "Blue."})
    assert sampled_text(row) == ["Blue." + STOP]
    assert text_of(row).endswith(STOP + "\n")
    assert of(row, part=Part.STOP) == STOP + STOP
    assert row.fidelity is Fidelity.MESSAGES
    assert np.isnan(row.logprob).all(), "nobody computed log-probs"


def test_tool_output_is_the_environments_and_never_sampled() -> None:
    (row,) = rows(
        U,
        {"role": "assistant", "content": "", "tool_calls": [call("search", query="sky")]},
        {"role": "tool", "tool_call_id": "c1", "content": "the sky is blue"},
        {"role": "assistant", "content": "Blue."},
    )
    output = row.part == Part.TOOL_OUTPUT
    assert text_of(row, output) == "the sky is blue"
    assert set(row.author[output]) == {Author.ENVIRONMENT} and not row.sampled[output].any()
    assert '{"name": "search", "arguments": {"query": "sky"}}' in sampled_text(row)[0]
    assert of(row, author=Author.TASKSET) == U["content"]


def test_tags_of_a_call_are_the_policys_decision_and_the_renderers_characters() -> None:
    (row,) = rows(U, {"role": "assistant", "content": "", "tool_calls": [call("search", query="sky")]})
    (tag,) = np.flatnonzero(row.token_ids == small().id_of("<tool_call>"))
    assert row.author[tag] == Author.POLICY and row.origin[tag] == Origin.RENDERER and row.part[tag] == Part.TOOL_CALL
    assert row.sampled[tag]


def test_a_reply_whose_reasoning_history_drops_forks_and_is_sampled_once() -> None:
    conversation = (
        U,
        {"role": "assistant", "content": "Blue.", "reasoning_content": "Look up."},
        {"role": "user", "content": "And grass?"},
        {"role": "assistant", "content": "Green.", "reasoning_content": "Look down."},
    )
    first, second = rows(*conversation)
    assert sampled_text(first) == ["<think>\nLook up.\n</think>\n\nBlue." + STOP]
    assert sampled_text(second) == ["<think>\nLook down.\n</think>\n\nGreen." + STOP]
    assert "Look up" not in text_of(second) and "Blue." in text_of(second)
    assert second.fork is not None and second.fork.row == 0
    shared = second.fork.position
    assert (first.token_ids[:shared] == second.token_ids[:shared]).all()
    assert first.token_ids[shared] != second.token_ids[shared]
    (kept,) = rows(*conversation, options={"history": "as_rendered"})
    assert sampled_text(kept) == ["Blue." + STOP, "<think>\nLook down.\n</think>\n\nGreen." + STOP]
    assert [(f.code, f.place.turn) for f in kept.findings] == [("TM103", 1)]
    assert len(rows(*conversation, options={"history": "per_turn"})) == 2


def test_an_empty_reasoning_block_alone_never_forks() -> None:
    found = rows(
        U,
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "And grass?"},
        {"role": "assistant", "content": "Green."},
    )
    assert len(found) == 1
    assert sampled_text(found[0]) == ["Blue." + STOP, "Green." + STOP]


def test_replies_of_another_model_and_copied_ones_are_never_sampled() -> None:
    (row,) = rows(
        U, {"role": "assistant", "content": "Blue.", "author": "model"}, U, {"role": "assistant", "content": "Yes."}
    )
    assert sampled_text(row) == ["Yes." + STOP]
    assert of(row, author=Author.MODEL) == "Blue." + STOP
    (row,) = rows(
        U, {"role": "assistant", "content": "Blue.", "copied": True}, U, {"role": "assistant", "content": "Yes."}
    )
    assert sampled_text(row) == ["Yes." + STOP]


def test_a_truncated_reply_has_no_stop_in_the_loss() -> None:
    (row,) = rows(U, {"role": "assistant", "content": "Blue and", "finish_reason": "length"})
    assert sampled_text(row) == ["Blue and"]
    assert row.truncated and row.stop == "length"
    closer = np.flatnonzero(row.token_ids == small().id_of(STOP))[-1]
    assert row.author[closer] == Author.RENDERER


def test_blocks_may_name_their_own_author() -> None:
    trace = Trace(
        id="t",
        messages=[
            Message(
                id="a",
                role="user",
                author="taskset",
                blocks=[Text(text="The task."), Text(text=" A nudge.", author="harness")],
            ),
            Message(id="b", role="assistant", author="policy", blocks=[Text(text="Yes.")]),
        ],
    )
    (row,) = renderer().render(trace)
    assert of(row, author=Author.TASKSET) == "The task."
    assert of(row, author=Author.HARNESS) == " A nudge."


def test_control_text_in_content_stays_text_and_is_reported() -> None:
    (row,) = rows(
        {"role": "user", "content": "print <|im_end|> and <think>"}, {"role": "assistant", "content": "<think>\nno"}
    )
    assert "print <|im_end|> and <think>" in text_of(row)
    assert (row.token_ids == small().id_of(STOP)).sum() == 2
    found = {(f.code, f.place.turn, f.data["id"]) for f in row.findings if f.code.startswith("TM20")}
    assert found == {("TM208", 0, small().id_of(STOP)), ("TM208", 0, small().id_of("<think>"))}
    opener = np.flatnonzero(row.token_ids == small().id_of("<think>"))
    assert row.sampled[opener[-1]], "a policy samples <think> as a token"
    (raw,) = rows(
        {"role": "user", "content": "print <|im_end|>"},
        {"role": "assistant", "content": "a"},
        options={"control_text": "ids"},
    )
    assert (raw.token_ids == small().id_of(STOP)).sum() == 3
    assert [f.code for f in raw.findings] == ["TM207"]


def test_special_text_in_a_reply_is_ordinary_text() -> None:
    (row,) = rows(U, {"role": "assistant", "content": "It is <|im_end|> there."})
    assert sampled_text(row) == ["It is <|im_end|> there." + STOP]
    assert (row.token_ids[row.sampled] == small().id_of(STOP)).sum() == 1
    assert [f.code for f in row.findings] == ["TM207"]


# ------------------------------------------------------------------ sampled ids


def test_sampled_ids_stand_verbatim_with_their_logprobs() -> None:
    odd = [*ids("B"), *ids("lu"), *ids("e."), *ids(STOP)]
    assert odd != ids("Blue." + STOP)
    message = {
        "role": "assistant",
        "content": "Blue.",
        "token_ids": odd,
        "logprobs": [-1.0, None, -3.0, *[-4.0] * (len(odd) - 3)],
    }
    (row,) = rows(U, message)
    assert row.token_ids[row.sampled].tolist() == odd
    expected = np.array([-1.0, np.nan, -3.0, *[-4.0] * (len(odd) - 3)], np.float32)
    np.testing.assert_array_equal(row.logprob[row.sampled], expected)
    assert np.isnan(row.logprob[~row.sampled]).all()
    assert row.fidelity is Fidelity.COMPLETION
    (drift,) = row.drift
    assert (drift.cause, drift.where, drift.message) == ("bpe_split", "sampled", 1)
    canonical = ids("Blue." + STOP)
    same = next(at for at, (one, other) in enumerate(zip(odd, canonical, strict=False)) if one != other)
    assert drift.token == len(row) - len(odd) + same


def test_nothing_follows_the_last_sampled_stop() -> None:
    (row,) = rows(U, sampled("Blue." + STOP, content="Blue."))
    assert row.sampled[-1] and int(row.token_ids[-1]) == small().id_of(STOP)


def test_the_context_of_a_sampled_reply_is_its_generation_prompt() -> None:
    """The template writes an empty reasoning block in front of a last reply; no engine was prompted with it."""
    (row,) = rows(U, sampled("Blue." + STOP, content="Blue."))
    assert row.token_ids[~row.sampled].tolist() == renderer().prompt_ids([U])
    (thinking,) = rows(U, sampled("<think>\n\n</think>\n\nBlue." + STOP, content="Blue."))
    assert sampled_text(thinking) == ["<think>\n\n</think>\n\nBlue." + STOP]


def test_a_tool_loop_of_sampled_replies_is_one_row() -> None:
    first = (
        '<think>\nAsk.\n</think>\n\n<tool_call>\n{"name": "search", "arguments": {"query": "sky"}}\n</tool_call>' + STOP
    )
    messages = [
        U,
        sampled(first, content="", reasoning_content="Ask.", tool_calls=[call("search", query="sky")]),
        {"role": "tool", "tool_call_id": "c1", "content": "blue"},
        sampled("<think>\nSo.\n</think>\n\nBlue." + STOP, content="Blue.", reasoning_content="So."),
    ]
    (row,) = rows(*messages)
    assert sampled_text(row) == [first, "<think>\nSo.\n</think>\n\nBlue." + STOP]
    assert not row.drift and row.fidelity is Fidelity.COMPLETION
    prompt = renderer().prompt_ids(
        [{k: v for k, v in m.items() if k not in ("token_ids", "logprobs")} for m in messages[:3]]
    )
    assert row.token_ids[: len(prompt)].tolist() == prompt


def test_history_that_drops_sampled_reasoning_forks_a_new_row() -> None:
    first, second = rows(
        U,
        sampled("<think>\nUp.\n</think>\n\nBlue." + STOP, content="Blue.", reasoning_content="Up."),
        {"role": "user", "content": "And grass?"},
        sampled("<think>\nDown.\n</think>\n\nGreen." + STOP, content="Green.", reasoning_content="Down."),
    )
    assert sampled_text(first) == ["<think>\nUp.\n</think>\n\nBlue." + STOP]
    assert sampled_text(second) == ["<think>\nDown.\n</think>\n\nGreen." + STOP]
    assert "Up." not in text_of(second)
    assert not first.drift and not second.drift


def test_exact_prompts_rule_over_the_template() -> None:
    prompt = [*ids("<|im_start|>user\nWhich colour is the sky?<|im_end|>\n<|im_start|>assistant\n")]
    reply = sampled("Blue." + STOP, content="Blue.", prompt_ids=prompt)
    (row,) = rows(U, reply)
    assert row.fidelity is Fidelity.EXACT and not row.drift
    assert row.token_ids.tolist() == prompt + reply["token_ids"]
    assert of(row, author=Author.TASKSET) == U["content"]
    other = [*ids("<|im_start|>user\nWhich colour is the wide sky?<|im_end|>\n<|im_start|>assistant\n")]
    (row,) = rows(U, {**reply, "prompt_ids": other})
    assert row.token_ids.tolist() == other + reply["token_ids"], "the engine's ids stay"
    (drift,) = row.drift
    assert (drift.where, drift.message) == ("context", 1)
    assert " wide" in text_of(row)[:60] and small().id_bytes(int(row.token_ids[drift.token])) == b" wide"
    assert of(row, author=Author.TASKSET) == "Which colour is the wide sky?"
    engine = row.origin == Origin.ENGINE
    assert engine.any() and "wide" in text_of(row, engine)


def test_compaction_makes_a_second_row_and_trains_the_summary_once() -> None:
    first = ids("<|im_start|>user\nA long task<|im_end|>\n<|im_start|>assistant\n")
    summary = ids("In short." + STOP)
    second = ids("<|im_start|>user\nIn short.<|im_end|>\n<|im_start|>assistant\n")
    trace = Trace(
        id="t",
        messages=[
            Message(id="a", role="user", author="taskset", blocks=[Text(text="A long task")]),
            Message(id="b", role="assistant", author="policy", blocks=[Text(text="In short.")],
                    sampled=Sampled(token_ids=summary, prompt_ids=first)),
            Message(id="c", parent=None, role="user", author="policy", blocks=[Text(text="In short.")]),
            Message(id="d", role="assistant", author="policy", blocks=[Text(text="Done.")],
                    sampled=Sampled(token_ids=ids("Done." + STOP), prompt_ids=second)),
        ],
    )  # fmt: skip
    one, two = renderer().render(trace)
    assert one.token_ids.tolist() == first + summary
    assert two.token_ids.tolist() == second + ids("Done." + STOP)
    assert sampled_text(one) == ["In short." + STOP] and sampled_text(two) == ["Done." + STOP]
    copy = two.message == 2
    assert set(two.author[copy & (two.part == Part.CONTENT)]) == {Author.POLICY} and not two.sampled[copy].any()


def test_branches_share_what_they_have_and_own_what_they_add() -> None:
    trace = Trace.from_messages(
        [
            {**U, "id": "q"},
            {"role": "assistant", "content": "Blue.", "id": "a1", "parent": "q"},
            {"role": "assistant", "content": "Grey.", "id": "a2", "parent": "q"},
        ]
    )
    one, two = renderer().render(trace)
    assert sampled_text(one) == ["Blue." + STOP] and sampled_text(two) == ["Grey." + STOP]
    assert two.fork is not None and two.fork.row == 0 and two.fork.position > 5
    assert set(two.message.tolist()) == {0, 2} and set(one.message.tolist()) == {0, 1}


def test_every_sampled_token_has_one_owner_in_a_tree() -> None:
    messages = [
        {**U, "id": "q"},
        {**sampled("One." + STOP, content="One."), "id": "a", "parent": "q"},
        {"role": "user", "content": "more", "id": "u1", "parent": "a"},
        {**sampled("Two." + STOP, content="Two."), "id": "b", "parent": "u1"},
        {"role": "user", "content": "other", "id": "u2", "parent": "a"},
        {**sampled("Three." + STOP, content="Three."), "id": "c", "parent": "u2"},
    ]
    trace = Trace.from_messages(messages)
    found = renderer().render(trace)
    total = sum(len(m.sampled.token_ids) for m in trace.messages if m.sampled)
    assert sum(int(row.sampled.sum()) for row in found) == total
    texts = [text for row in found for text in sampled_text(row)]
    assert sorted(texts) == ["One." + STOP, "Three." + STOP, "Two." + STOP]
    assert "One." in text_of(found[1]), "the copy is context"


def test_ids_that_an_environment_wrote_inside_a_reply_are_not_sampled() -> None:
    before, inside, after = ids("I search."), ids(" result: blue"), ids(" So blue." + STOP)
    trace = Trace(
        id="t",
        messages=[
            Message(id="a", role="user", author="taskset", blocks=[Text(text="Sky?")]),
            Message(id="b", role="assistant", author="policy", blocks=[Text(text="I search. result: blue So blue.")],
                    sampled=Sampled(token_ids=before + inside + after,
                                    spans=[Span(start=len(before), end=len(before + inside), author="environment")])),
        ],
    )  # fmt: skip
    (row,) = renderer().render(trace)
    assert sampled_text(row) == ["I search.", " So blue." + STOP]
    assert of(row, author=Author.ENVIRONMENT) == " result: blue"


def test_a_reply_that_ends_with_its_stop_at_the_length_limit_is_complete() -> None:
    (row,) = rows(U, sampled("Blue." + STOP, content="Blue.", finish_reason="length"))
    assert (row.truncated, row.complete, row.stop) == (False, True, "length")
    (row,) = rows(U, sampled("Blue." + STOP, content="Blue.", finish_reason="stop"), truncated=True)
    assert (row.truncated, row.complete) == (True, False)  # a harness says more than the tokens do
    first = sampled("Blue." + STOP, content="Blue.", finish_reason="length")
    (row,) = rows(U, first, U, sampled("Blue and", content="Blue and", finish_reason="length"))
    assert (row.truncated, row.complete) == (True, False)


def test_tokens_after_a_stop_make_the_turn_untrained() -> None:
    (row,) = rows(U, sampled("Blue." + STOP + "and more" + STOP, content="Blue."))
    assert not row.sampled.any()
    assert "TM317" in {finding.code for finding in row.findings}


def test_a_truncated_sampled_reply_gets_its_closer_as_context() -> None:
    (row,) = rows(
        U,
        sampled("Blue and", content="Blue and", finish_reason="length"),
        {"role": "user", "content": "Go on."},
        sampled("green." + STOP, content="green."),
    )
    assert sampled_text(row) == ["Blue and", "green." + STOP]
    end = int(np.flatnonzero(row.sampled)[1]) + 1
    assert STOP in text_of(row)[text_of(row).index("Blue and") :][:20] and end
    assert not row.truncated


def test_engine_columns_follow_their_tokens() -> None:
    reply = sampled("Blue." + STOP, content="Blue.", temperature=0.7)
    reply["columns"] = {"teacher_logprob": [-0.25] * len(reply["token_ids"])}
    (row,) = rows(U, reply)
    assert (row.columns["temperature"][row.sampled] == np.float32(0.7)).all()
    assert np.isnan(row.columns["temperature"][~row.sampled]).all()
    assert (row.columns["teacher_logprob"][row.sampled] == np.float32(-0.25)).all()


def test_messages_after_the_last_reply_are_context() -> None:
    (row,) = rows(
        U,
        sampled(
            '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>' + STOP,
            content="",
            tool_calls=[call("search")],
        ),
        {"role": "tool", "tool_call_id": "c1", "content": "nothing found"},
    )
    assert of(row, part=Part.TOOL_OUTPUT) == "nothing found"
    assert row.role[-1] == Role.TOOL and not row.sampled[-1]


def test_ids_beyond_the_vocabulary_are_kept_and_named() -> None:
    reply = {"role": "assistant", "content": "Blue", "token_ids": [*ids("Blue"), small().size + 7]}
    (row,) = rows(U, reply)
    assert int(row.token_ids[-1]) == small().size + 7
    (finding,) = [finding for finding in row.findings if finding.code == "TM201"]
    assert finding.place.token == len(row) - 1


def test_a_sampled_reply_that_the_template_does_not_print_is_kept() -> None:
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}"
    front = Renderer(small(), Template(source, tokens=small().token_strings, sandbox="inline"))
    reply = sampled("Blue." + STOP, content="Blue.")
    (row,) = front.render(Trace.from_messages([U, reply]))
    assert row.token_ids[row.sampled].tolist() == reply["token_ids"]
    assert [finding.code for finding in row.findings] == ["TM103"]
    assert (row.message[row.sampled] == 1).all() and (row.part[row.sampled][-1]) == Part.STOP


def test_a_context_that_the_engine_trimmed_is_drift_with_its_cause() -> None:
    prompt = ids("<|im_start|>user\nWhich colour?<|im_end|>\n<|im_start|>assistant\n")
    (row,) = rows(
        {"role": "user", "content": "Which colour? "}, sampled("Blue." + STOP, content="Blue.", prompt_ids=prompt)
    )
    assert [(drift.where, drift.cause) for drift in row.drift] == [("context", "whitespace_trim")]
    assert row.token_ids[: len(prompt)].tolist() == prompt


def test_unknown_options_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="as_rendered"):
        renderer(history="always")
    with pytest.raises(UsageError, match="added token"):
        renderer(stop=["not a token"])


# ------------------------------------------------------------------ prompts


def test_prompts_extend_by_bytes_without_rendering_again() -> None:
    front = renderer()
    first = front.prompt_ids([U])
    reply = ids("Blue." + STOP)
    new = [{"role": "user", "content": "And grass?"}]
    extended = front.next_prompt_ids(first + reply, new)
    assert extended == front.prompt_ids([U, {"role": "assistant", "content": "Blue."}, *new])
    assert extended[: len(first) + len(reply)] == first + reply


def test_a_prompt_that_would_lose_reasoning_is_not_extended() -> None:
    front = renderer()
    previous = front.prompt_ids([U]) + ids("<think>\nUp.\n</think>\n\nBlue." + STOP)
    with pytest.raises(RenderError, match="TM924.*reasoning"):
        front.next_prompt_ids(previous, [{"role": "user", "content": "And grass?"}])
    tool = [{"role": "tool", "content": "blue", "tool_call_id": "c1"}]
    assert front.next_prompt_ids(previous, tool)[: len(previous)] == previous
    with pytest.raises(RenderError, match="TM924"):
        front.next_prompt_ids(previous, [{"role": "assistant", "content": "no"}])
