"""A word in the conversation may change the generation prompt: what was rendered before then changes nothing."""

from __future__ import annotations

from itertools import permutations

import pytest
from render_corpus import tokenizer_for
from render_tools import sampled_text, small

from tracemask.render.conversation import Conversation, Counter
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.render.switches import Switches, asked_for
from tracemask.render.template import Template
from tracemask.trace.model import Trace

BODY = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}BEFORE{% endif %}{{ m.content }}"
CLOSE = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
LAST = "{% if messages[-1].content.endswith('/no') %}OPENER{% endif %}{% endif %}"
ENDS = (
    BODY.replace("BEFORE", "{% if messages[loop.index0 - 1].content.endswith('/no') %}OPENER{% endif %}") + CLOSE + LAST
)
TOGGLE = (
    "{% set ns = namespace(on=true) %}{% for m in messages %}{% if '/on' in m.content %}{% set ns.on = true %}"
    "{% elif '/off' in m.content %}{% set ns.on = false %}{% endif %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not ns.on %}OPENER{% endif %}{{ m.content }}"
    f"{CLOSE}{{% if not ns.on %}}OPENER{{% endif %}}{{% endif %}}"
)


def chat(*users: str) -> Trace:
    pairs = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"yes {len(text)}"}] for text in users
    ]
    return Trace.from_messages([message for pair in pairs for message in pair])


def said(rows: list[Sample]) -> list[tuple[bool, list[str], list[int]]]:
    return [(row.approximate, sampled_text(row), row.token_ids.tolist()) for row in rows]


@pytest.mark.parametrize("opener", ["[fast]", "<think>\n\n</think>\n\n"])
@pytest.mark.parametrize(
    ("source", "traces"),
    [
        (ENDS, [chat("one", "two"), chat("one /no", "two /no"), chat("one", "two /no", "three")]),
        (TOGGLE, [chat("one", "two"), chat("/off one", "two", "/on x"), chat("/off one", "/on two"), chat("/on", "x")]),
    ],
    ids=["ends", "toggle"],
)  # fmt: skip
def test_rows_do_not_depend_on_which_trace_was_rendered_first(source: str, traces: list[Trace], opener: str) -> None:
    template = Template(source.replace("OPENER", opener), sandbox="inline")
    alone = [said(Renderer(small(), template).render(trace)) for trace in traces]
    for trace, rows in zip(traces, alone, strict=True):
        ((approximate, replies, _),) = rows
        assert not approximate
        users = [message.text() for message in trace.messages if message.role == "user"]
        assert replies == [f"yes {len(text)}<|im_end|>" for text in users], "the opener is the prompt's"
    for order in permutations(range(len(traces))):
        together = Renderer(small(), template).render_many([traces[at] for at in order])
        assert [said(rows) for rows in together] == [alone[at] for at in order]


def test_there_are_switches_only_where_one_changes_the_prompt() -> None:
    source = (
        ENDS.replace("OPENER", "[fast]")
        + "{% if '</think>' in messages[0].content %}{% set z = 'x' == 'y z' %}{% endif %}"
    )
    assert asked_for(source) == ["/no", "</think>", "y z"]
    conversation = Conversation(Template(source, sandbox="inline"), None, [], None, {}, Counter())  # type: ignore[arg-type]
    assert Switches().of(conversation) == ("/no", "</think>", "y z"), "any of them may take back what another does"
    plain = Template(source.replace("[fast]", ""), sandbox="inline")
    assert Switches().of(Conversation(plain, None, [], None, {}, Counter())) == ()  # type: ignore[arg-type]
    assert Switches().of(Conversation(object(), None, [], None, {}, Counter())) == ()  # type: ignore[arg-type]


def test_literals_are_read_as_jinja_reads_them() -> None:
    source = (
        r"""{% if '\n\n' in a or "it's" not in a or a.startswith("/é") or a != 'x\'y' or a.split("</t>")|first %}"""
    )
    assert asked_for(source) == ["it's", "/é", "x'y", "</t>"]


def marks(rows: list[Sample]) -> list[tuple[bool, bytes, bytes, bytes]]:
    return [(row.approximate, row.token_ids.tobytes(), row.sampled.tobytes(), row.author.tobytes()) for row in rows]


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen3_5_think", "qwen3_5_nothink", "gemma4_v5", "glm4moe"])
def test_real_templates_give_each_trace_the_same_rows_in_any_company(name: str, real_templates: dict[str, str]) -> None:
    """What users, tools and replies say may change what a template writes around replies: Qwen3.5's tool_response."""
    source = real_templates[name]
    tokenizer = tokenizer_for(name, source)
    template = Template(source, name=name, tokens=tokenizer.token_strings, sandbox="inline")
    words = ["ok", "  ", "<tool_response>\n1\n</tool_response>", "/nothink", "<think>\nr\n</think>\n\nans"]
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    traces = [
        Trace.from_messages(
            [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": words[n // 5 % 5], "tool_calls": [call]} | thought,
                {"role": "tool", "content": "r", "tool_call_id": "call00001", "name": "f"},
                {"role": "assistant", "content": words[n // 2 % 5]},
                {"role": "user", "content": words[n * 3 % 5]},
                {"role": "assistant", "content": "end"},
            ]
        )
        for n in range(25)
        for thought in ({}, {"reasoning_content": ""})
    ]
    alone = [marks(Renderer(tokenizer, template).render(trace)) for trace in traces]
    for order in (range(len(traces)), range(len(traces))[::-1]):
        together = Renderer(tokenizer, template).render_many([traces[at] for at in order])
        assert [marks(rows) for rows in together] == [alone[at] for at in order]
