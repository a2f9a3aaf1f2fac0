"""TM103 names text that a template drops, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from render_tools import small

from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.trace.model import Trace

HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
TAIL = "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SPELLINGS = {
    "json": "{{ c.function.name }} {{ c.function.arguments | tojson }}",
    "string": "{{ c.function.name }} {% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}",
    "words": "{{ c.function.name }}{% if c.function.arguments is mapping %}"
    "{% for k, v in c.function.arguments.items() %}"
    "{{ k }}{% if v is boolean %}{{ 'true' if v else 'false' }}{% elif v is none %}null{% else %}{{ v }}{% endif %}"
    "{% endfor %}{% else %}{{ c.function.arguments }}{% endif %}",
}
WHOLE = ["x", "1", "", "{}", " ", '{"k":1}', {}, {"k": True}, {"k": None}, {"k": 1}, {"k": ""}, {"": "v"}, {"k": ["m"]}]
DROPS = {
    "the arguments": "{{ c.function.name }}",
    "the name": "{{ c.function.arguments | tojson }}",
    "later calls": "{% if loop.first %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endif %}",
    "values": "{{ c.function.name }}{% for k in c.function.arguments %}{{ k }}{% endfor %}",
}


def codes(spelling: str, *arguments: Any, name: str = "f") -> list[str]:
    source = HEAD + spelling + TAIL
    front = Renderer(small(), Template(source, tokens=small().token_strings, sandbox="inline"))
    calls = [
        {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": value}}
        for index, value in enumerate(arguments)
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    (row,) = front.render(Trace.from_messages([{"role": "user", "content": "u"}, reply]))
    return [finding.code for finding in row.findings]


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("arguments", WHOLE)
def test_a_call_that_is_spelled_in_full_is_not_called_lost(spelling: str, arguments: Any) -> None:
    quotes = spelling == SPELLINGS["json"] and isinstance(arguments, str)  # JSON would quote them: no policy does
    assert codes(spelling, arguments) == ["TM115"] * quotes
    assert codes(spelling, arguments, arguments, {"other": "call"}) == ["TM115"] * quotes


@pytest.mark.parametrize("spelling", DROPS.values(), ids=DROPS)
def test_a_call_or_part_of_one_that_is_dropped_is_named(spelling: str) -> None:
    assert codes(spelling, {"key": "a value of some length"}, {"other": "value"}, name="search") == ["TM103"]


@pytest.mark.parametrize("arguments", ['{"q":"the sum"}', '{"q": "x", "k": [1, {"deep": "y"}]}', '{"a b": null}', "{}"])
def test_a_string_that_was_parsed_for_the_template_is_not_called_lost(arguments: str) -> None:
    iterates = "{{ c.function.name }}{% for k, v in c.function.arguments|items %}<{{ k }}>{{ v }}{% endfor %}"
    assert codes(iterates, arguments) == ["TM115"]


def test_a_value_dropped_from_a_string_that_was_parsed_is_named() -> None:
    keys = "{{ c.function.name }}{% for k, v in c.function.arguments|items %}<{{ k }}>{% endfor %}"
    assert set(codes(keys, '{"q": "the sum of the first ten"}')) == {"TM103", "TM115"}
