"""Generation prompts: what they hold is context whoever repeats it; what one turn taught holds for its kind only."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from render_tools import same, sampled_text, small

from tracemask.core.vocab import Author, Part
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.trace.model import Trace

STOP = "<|im_end|>"
PREFILLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' not in m.content %}<think></think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
EMPTY_BLOCK = PREFILLS.replace("<think>\n{% endif %}", "<think></think>{% endif %}")
THOUGHT = "<think>\nHm.\n</think>\n\nYes."


def front(source: str) -> Renderer:
    return Renderer(small(), Template(source, tokens=small().token_strings, sandbox="inline"))


def ask(*replies: str, **fields: Any) -> Trace:
    messages: list[dict[str, Any]] = []
    for reply in replies:
        messages += [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": reply, **fields}]
    return Trace.from_messages(messages)


def test_an_opener_that_the_prompt_prefills_is_context_also_where_the_log_repeats_it() -> None:
    renderer = front(PREFILLS)
    (row,) = renderer.render(ask(THOUGHT))
    assert sampled_text(row) == ["Hm.\n</think>\n\nYes." + STOP]
    assert not row.approximate and not row.findings
    prompt = renderer.prompt_ids([{"role": "user", "content": "Well?"}])
    assert row.token_ids[: len(prompt)].tolist() == prompt, "the control token, not its letters"
    assert (row.author[: len(prompt)] != Author.POLICY).all()
    assert row.part[len(prompt)] == Part.REASONING


def test_a_prefill_that_another_model_wrote_stays_its_text() -> None:
    (row,) = front(PREFILLS).render(ask(THOUGHT, author="model"))
    opener = small().id_of("<think>")
    assert opener not in row.token_ids.tolist() and not row.sampled.any()
    assert "TM208" in [finding.code for finding in row.findings]


@pytest.mark.parametrize("spoken", [THOUGHT + STOP, "Hm.\n</think>\n\nYes." + STOP])
def test_sampled_ids_go_in_once_with_or_without_the_opener(spoken: str) -> None:
    ids = small().encode(spoken)
    (row,) = front(PREFILLS).render(ask(THOUGHT, token_ids=ids, logprobs=[-0.5] * len(ids)))
    assert row.token_ids[row.sampled].tolist() == ids
    assert np.count_nonzero(row.token_ids == small().id_of("<think>")) == 1
    assert row.approximate == spoken.startswith("<think>"), "the engine's prompt was not the template's"
    assert not row.drift


TURNS = ["Yes.", "", " ", "\n\n", THOUGHT, "</think>", "<think>", "a <b> [x]"]


@pytest.mark.parametrize("source", [PREFILLS, EMPTY_BLOCK, str(small().chat_template)])
def test_a_trace_gives_the_same_sample_whatever_was_rendered_before(source: str) -> None:
    traces = [ask(*pair) for pair in permutations(TURNS, 2)]
    shared, back = front(source), front(source)
    forth = shared.render_many(traces)
    reverse = [back.render(trace) for trace in reversed(traces)][::-1]
    for trace, one, other in zip(traces, forth, reverse, strict=True):
        alone = front(source).render(trace)
        for rows in (one, other):
            assert same(rows, alone)
            assert [row.approximate for row in rows] == [row.approximate for row in alone]


@pytest.mark.parametrize("arguments", [{"x": True}, {"x": 1}, {"x": [True]}, {"x": "s"}, {}, "{}", ""])
def test_a_calls_ending_is_learned_by_the_manner_in_which_its_last_value_is_spelled(arguments: Any) -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function.name }}{% set a = c.function.arguments %}"
        "{% if a is string %}{{ a }}{% else %}{% for k, v in a.items() %}{{ k }}="
        "{% if v is boolean %}{{ 'yes' if v else 'no' }}{% elif v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}"
        "{% endfor %}{% endif %}</tool_call>{% endfor %}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )

    def loop(values: Any) -> Trace:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": values}}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        return Trace.from_messages(
            [{"role": "user", "content": "u"}, reply, {"role": "tool", "tool_call_id": "c", "content": "t"}]
        )

    alone = front(source).render(loop(arguments))
    for other in ({"x": False}, {"x": 2}, {"x": [2, "t"]}, {"x": "t"}, {}, "{}"):
        shared = front(source)
        shared.render(loop(other))
        assert same(shared.render(loop(arguments)), alone)
    assert sampled_text(alone[0])[0].startswith("<tool_call>f")
    assert sampled_text(alone[0])[0].endswith("</tool_call>")


def test_sampled_ids_that_open_the_block_again_say_that_their_prompt_was_another_one() -> None:
    source = PREFILLS.replace("{{ m.content }}", "{{ m.content.replace('<think>', '<think >') }}")
    ids = small().encode("<think>\nHm.\n</think>\n\nYes." + STOP)
    (row,) = front(source).render(ask(THOUGHT, token_ids=ids))
    assert row.approximate and [finding.code for finding in row.findings if finding.code != "TM208"] == ["TM111"]
    assert "opens" in row.findings[0].message and row.token_ids[row.sampled].tolist() == ids
    prompt = front(source).prompt_ids([{"role": "user", "content": "Well?"}])
    (row,) = front(source).render(ask(THOUGHT, token_ids=ids, prompt_ids=prompt))
    assert not row.approximate, "with its prompt there is nothing to guess"
