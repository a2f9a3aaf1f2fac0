"""Replies whose arguments spell no object, on templates that take nothing else: known ids stand for them, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from render_corpus import tokenizer_for
from render_tools import SMALL

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Author, Fidelity, Origin, Part, Role
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.render.template import Template
from tracemask.trace.model import Trace

ITERATES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments|items %}[{{ k }}={{ v }}]{% endfor %}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BROKEN = '{"id": 1, "to": "wes'
SAID = f"So.<tool_call>gate {BROKEN}</tool_call>"


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": "gate", "arguments": arguments}}


def chat(arguments: Any = BROKEN) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Open it."},
        {"role": "assistant", "content": "So.", "tool_calls": [call(arguments)]},
        {"role": "tool", "content": "no such JSON", "tool_call_id": "call00001", "name": "gate"},
        {"role": "assistant", "content": "Sorry."},
    ]


def renderer(**options: Any) -> Renderer:
    return Renderer(SMALL, Template(ITERATES, sandbox="inline"), **options)


def ids(front: Renderer, text: str) -> list[int]:
    return front.tokenizer.encode(text)


def known(front: Renderer, said: str, stop: str, last: str = "Sorry.") -> list[dict[str, Any]]:
    """The chat with the ids of both replies."""
    messages = chat()
    messages[1]["token_ids"], messages[3]["token_ids"] = ids(front, said + stop), ids(front, last + stop)
    for message in messages[1::2]:
        message["logprobs"] = [-0.5] * len(message["token_ids"])
    return messages


def between(front: Renderer, stop: str, **options: Any) -> list[int] | None:
    """What the template writes between the two replies, whatever the first one said; None where that cannot be told."""
    empty = chat({})
    before = front.render_text(empty[:1], add_generation_prompt=True, **options).text
    after = front.render_text(empty[:3], add_generation_prompt=True, **options).text
    at = after.find(stop, after.find("gate", len(before)))
    return ids(front, after[at + len(stop) :]) if after.startswith(before) and at >= 0 else None


def whole(front: Renderer, messages: list[dict[str, Any]], middle: list[int]) -> list[int]:
    return [*front.prompt_ids(messages[:1]), *messages[1]["token_ids"], *middle, *messages[3]["token_ids"]]


def codes(sample: Sample) -> list[str]:
    return [finding.code for finding in sample.findings]


@pytest.mark.parametrize("history", ["auto", "as_rendered", "per_turn"])
@pytest.mark.parametrize("prompted", [False, True])
def test_one_row_of_the_ids_that_were_sampled(prompted: bool, history: str) -> None:
    front = renderer(history=history)
    messages = known(front, SAID, "<|im_end|>")
    middle = between(front, "<|im_end|>")
    assert middle is not None
    expected = whole(front, messages, middle)
    if prompted:
        messages[1]["prompt_ids"] = front.prompt_ids(messages[:1])
        messages[3]["prompt_ids"] = expected[: -len(messages[3]["token_ids"])]
    (row,) = front.render(Trace.from_messages(messages))
    assert row.token_ids.tolist() == expected
    assert row.token_ids[row.sampled].tolist() == messages[1]["token_ids"] + messages[3]["token_ids"]
    assert (row.logprob[row.sampled] == -0.5).all() and np.isnan(row.logprob[~row.sampled]).all()
    assert row.fidelity is (Fidelity.EXACT if prompted else Fidelity.COMPLETION)
    assert (row.drift, row.approximate) == ([], False)
    assert codes(row) == ["TM116"] and row.findings[0].place.turn == 1
    assert ("contexts of later replies" in row.findings[0].message) is not prompted
    reply = slice(
        len(front.prompt_ids(messages[:1])), len(front.prompt_ids(messages[:1])) + len(messages[1]["token_ids"])
    )
    assert set(row.author[reply]) == {Author.POLICY} and set(row.message[reply]) == {1}
    assert set(row.role[reply]) == {Role.ASSISTANT} and set(row.origin[reply]) == {Origin.ENGINE}
    assert {Part(part) for part in row.part[reply]} == {Part.CONTENT, Part.TOOL_CALL, Part.STOP}
    tool = front.tokenizer.decode_bytes(row.token_ids[row.author == Author.ENVIRONMENT].tolist()).decode()
    assert tool == "no such JSON" and not row.sampled[row.author == Author.ENVIRONMENT].any()


def test_a_reply_cut_short_is_closed_by_the_template_and_its_closer_is_not_trained() -> None:
    front = renderer()
    messages = known(front, SAID, "<|im_end|>")
    cut = messages[1]["token_ids"][:-3]
    messages[1] |= {"token_ids": cut, "logprobs": [-0.5] * len(cut), "finish_reason": "length"}
    (row,) = front.render(Trace.from_messages(messages))
    at = len(front.prompt_ids(messages[:1]))
    assert row.token_ids[at : at + len(cut)].tolist() == cut and row.sampled[at : at + len(cut)].all()
    closer = at + len(cut)
    assert row.token_ids[closer] == ids(front, "<|im_end|>")[0]
    assert (Author(int(row.author[closer])), bool(row.sampled[closer])) == (Author.RENDERER, False)


def test_a_reply_that_ends_the_rollout_is_all_there_is() -> None:
    front = renderer()
    messages = known(front, SAID, "<|im_end|>")[:2]
    (row,) = front.render(Trace.from_messages(messages))
    assert row.token_ids.tolist() == front.prompt_ids(messages[:1]) + messages[1]["token_ids"]
    assert codes(row) == ["TM116"]


def test_stretches_inside_the_reply_keep_the_authors_that_the_log_names() -> None:
    front = renderer()
    messages = known(front, SAID, "<|im_end|>")
    trace = Trace.from_messages(messages)
    sampled = trace.messages[1].sampled
    assert sampled is not None
    spans = [{"start": 1, "end": 3, "author": "environment"}]
    trace.messages[1] = trace.messages[1].model_copy(
        update={"sampled": type(sampled)(**{**dict(sampled), "spans": spans})}
    )
    (row,) = front.render(trace)
    at = len(front.prompt_ids(messages[:1]))
    assert row.author[at : at + 4].tolist() == [Author.POLICY, Author.ENVIRONMENT, Author.ENVIRONMENT, Author.POLICY]
    assert row.sampled[at : at + 4].tolist() == [True, False, False, True]
    assert row.part[at + 1] == Part.TOOL_OUTPUT and row.role[at + 1] == Role.TOOL


def test_what_another_model_called_needs_no_text_where_engines_gave_every_later_context() -> None:
    front = renderer()
    messages = known(front, SAID, "<|im_end|>")
    middle = between(front, "<|im_end|>")
    assert middle is not None
    expected = whole(front, messages, middle)
    messages[3]["prompt_ids"] = expected[: -len(messages[3]["token_ids"])]
    messages[1] = {"author": "model", **{key: messages[1][key] for key in ("role", "content", "tool_calls")}}
    (row,) = front.render(Trace.from_messages(messages))
    assert row.token_ids.tolist() == expected and codes(row) == ["TM116"]
    assert row.token_ids[row.sampled].tolist() == messages[3]["token_ids"]
    assert Author.POLICY not in row.author[~row.sampled] and Author.MODEL in row.author
    assert [drift.where for drift in row.drift] == ["context"], "the render holds {} where the engine saw the call"
    del messages[3]["prompt_ids"]
    with pytest.raises(RenderError, match="TM920"):
        front.render(Trace.from_messages(messages))


def test_what_follows_is_written_behind_the_reply_as_it_was_prompted() -> None:
    """Nemotron's prompt opens a block that its history closes at once: no render begins as the reply's prompt."""
    prompt = ITERATES.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
    history = prompt.replace(
        "{{ m.content or '' }}", "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
    )
    front = Renderer(SMALL, Template(history, sandbox="inline"))
    messages = known(front, SAID, "<|im_end|>")
    messages += [
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "No.", "token_ids": ids(front, "No.<|im_end|>")},
    ]
    rows = front.render(Trace.from_messages(messages))
    begins = front.prompt_ids(messages[:1]) + messages[1]["token_ids"]
    row = rows[0]
    assert row.token_ids[: len(begins)].tolist() == begins
    text = front.tokenizer.decode_bytes(row.token_ids.tolist()).decode()
    assert text.endswith(
        f"<think>\n{SAID}<|im_end|>\n<|im_start|>tool\nno such JSON<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nSorry.<|im_end|>"
    )
    assert row.token_ids[row.sampled].tolist() == messages[1]["token_ids"] + messages[3]["token_ids"]


@pytest.mark.parametrize("history", ["auto", "as_rendered", "per_turn"])
def test_the_text_alone_stays_refused_and_the_error_says_what_would_help(history: str) -> None:
    with pytest.raises(
        RenderError, match=r"message 1.*arguments of message 1 spell no JSON object.*token_ids"
    ) as raised:
        renderer(history=history).render(Trace.from_messages(chat()))
    assert raised.value.code == "TM920"


def test_what_a_template_refuses_for_another_reason_stays_refused_in_its_own_words() -> None:
    template = ITERATES.replace(
        "{% for m", "{% if messages[0].content == 'Open it.' %}{{ raise_exception('shut') }}{% endif %}{% for m", 1
    )
    front = Renderer(SMALL, Template(template, sandbox="inline"))
    with pytest.raises(RenderError, match="the template refuses: shut"):
        front.render(Trace.from_messages(known(renderer(), SAID, "<|im_end|>")))


def test_other_calls_of_the_reply_keep_their_arguments_in_the_render() -> None:
    front = renderer()
    messages = known(front, SAID, "<|im_end|>")
    messages[1]["tool_calls"] = [call('{"id": 7}'), call(BROKEN), call({"id": 8})]
    (plan,) = front.plan(Trace.from_messages(messages))
    text = next(iter(plan.bases.values())).layout.text
    assert "<tool_call>gate[id=7]</tool_call><tool_call>gate</tool_call><tool_call>gate[id=8]</tool_call>" in text
    assert plan.conversation.standing == {1}


def test_the_worker_and_many_traces_at_once_give_the_same() -> None:
    messages = known(renderer(), SAID, "<|im_end|>")
    front = Renderer(SMALL, Template(ITERATES, sandbox="worker"))
    alone = renderer().render(Trace.from_messages(messages))
    fine = Trace.from_messages(chat({"id": 1}), id="fine")
    together = front.render_many([Trace.from_messages(messages), fine, Trace.from_messages(messages)])
    for rows in (together[0], together[2]):
        assert [row.token_ids.tobytes() for row in rows] == [row.token_ids.tobytes() for row in alone]
        assert [row.origin.tobytes() for row in rows] == [row.origin.tobytes() for row in alone]
    assert codes(together[1][0]) == []


@pytest.mark.real
def test_every_template_renders_a_rollout_with_malformed_arguments_by_its_ids(real_templates: dict[str, str]) -> None:
    """Completion ids alone: what stands around the replies is what the template writes around any call."""
    stood = read = refused = 0
    for name, source in real_templates.items():
        tokenizer = tokenizer_for(name, source)
        front = Renderer(tokenizer, Template(source, name=name, tokens=tokenizer.token_strings, sandbox="inline"))
        try:
            front.render(Trace.from_messages(chat({"id": 1})))
        except RenderError:
            refused += 1
            continue
        stop = max(front.stop_ids)
        stop_text = tokenizer.added[stop].content
        messages = known(front, SAID, stop_text)
        rows = front.render(Trace.from_messages(messages))
        trained = [token for row in rows for token in row.token_ids[row.sampled].tolist()]
        assert trained == messages[1]["token_ids"] + messages[3]["token_ids"], name
        if not any("TM116" in codes(row) for row in rows):
            read += 1
            continue
        stood += 1
        first = rows[0]
        at = int(np.flatnonzero(first.sampled)[0])
        assert first.token_ids[:at].tolist() == front.prompt_ids(messages[:1]), name
        assert set(first.author[:at]) <= {Author.RENDERER, Author.TASKSET, Author.HARNESS}, name
        assert all(row.author[row.sampled].tolist() == [Author.POLICY] * int(row.sampled.sum()) for row in rows), name
    assert stood >= 15 and read >= 15, (stood, read, refused)
