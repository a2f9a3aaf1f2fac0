"""Random templates: the text is Jinja's own, and each character belongs to the message whose alphabet it is of."""

from __future__ import annotations

import random
import re
import unicodedata
from typing import Any

import pytest

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.template import Template
from tracemask.render.text import RenderedText

# One script a message, so that a character names its message whatever its case; some grow or depend on what is beside.
SCRIPTS = ("GREEK", "CYRILLIC", "HEBREW")
LETTERS = ("αβΣςΐΰΩ", "дЖеЩ", "אבגד")
SHARED = " \n\t,{}%'\"<&\\"
FIELDS = ("m.content", "a", "b", "c", "m.role", "d", "d.k", "l", "l[0]", "n", "t", "range(3)")
FILTERS = re.findall(
    r"\S+",
    "upper lower title capitalize trim string e safe forceescape urlencode reverse first last length int float pprint "
    "tojson tojson(indent=1) tojson(ensure_ascii=true) center(9) indent(2) indent(1,true,true) truncate(5) "
    "truncate(4,true) list unique|join sort|join reverse|join list|reverse|join list|string groupby(0)|list|string "
    "batch(2)|list slice(2)|list replace('','x') replace('',a) replace(a,b) replace(b,'')",
)
TWO = (
    "{0} ~ {1}", "({0} + {1})", "[{0},{1}]|join({1})", "({0}).join([{1},{0}])", "({0}).replace({1},{0})",
    "({0}).replace('',{1})", "({0}).split({1})|join('x')", "({0}).rsplit(none,1)|join({1})", "({0}).strip({1})",
    "({0})[1:]", "({0})[::-2]", "({0}).partition({1})|join('y')", "({0}).splitlines()|join({1})",
    "({0}).removeprefix({1})", "({0}).removesuffix({1})", "({0}).title() ~ ({1}).swapcase()", "({0}).center(9,'x')",
    "({0}).zfill(5)", "('x%s|%9s|%r' % ({0},{1},{0}))", "'{{0}}y{{1}}{{0}}'.format({0},{1})", "'{{:>9}}'.format({0})",
    "({0}) * 2", "({0} if {1} else {1})", "({0} and {1})", "{{'k':{0},'j':{1}}}|tojson", "[{0},{1}]|sort|join",
    "[{0},{1}]|map('upper')|join", "[{0},{1}]|unique|list|string", "({0},{1})|string", "{{'k':{0}}}|string",
    "({0}).translate({{97:{1}}})", "({0}).translate({{945:'Ω'}}) ~ {1}", "d|dictsort|map('join',{0})|join({1})",
)  # fmt: skip
STATEMENTS = (
    "{{{{ {0} }}}}", "{{{{ {0} }}}}x-{{{{- {1} -}}}} y", "{{% for m in messages %}}{{{{ {0} ~ {1} }}}}{{% endfor %}}",
    "{{% for q in {0} %}}{{{{ q }}}}{{% else %}}{{{{ {1} }}}}{{% endfor %}}",
    "{{% set z %}}{{{{ {0} }}}}x{{{{ {1} }}}}{{% endset %}}{{{{ z|trim|upper }}}}",
    "{{% macro f(x, y={0}) %}}{{{{ x ~ y }}}}{{% endmacro %}}{{{{ f({1})|replace('x',a) }}}}",
    "{{% filter upper %}}{{{{ {0} }}}}{{{{ {1} }}}}{{% endfilter %}}",
    "{{% set ns = namespace(x={0}) %}}{{% for m in messages %}}{{% set ns.x = ns.x ~ m.content %}}{{% endfor %}}"
    "{{{{ ns.x ~ {1} }}}}",
)  # fmt: skip
HEAD = (
    "{% set m, a, b, c = messages[1], messages[0].content, messages[1].content, messages[2].content %}"
    "{% set d, l, n, t = messages[2].d, messages[1].l, messages[0].n, messages[1].t %}"
)


def expression(dice: random.Random, depth: int) -> str:
    if depth == 0:
        return dice.choice([*FIELDS, repr("".join(dice.choices("xyz ,%", k=dice.randrange(4))))])
    if dice.random() < 0.35:
        return f"(({expression(dice, depth - 1)})|string)|{dice.choice(FILTERS)}"
    return dice.choice(TWO).format(expression(dice, depth - 1), expression(dice, depth - 1))


def conversation(dice: random.Random) -> list[dict[str, Any]]:
    def text(n: int) -> str:
        return "".join(dice.choices(LETTERS[n] * 2 + SHARED, k=dice.choice([0, 1, 2, 6, 12])))

    return [
        {"role": "α", "content": text(0), "n": dice.choice([3, -1, 2.5, True])},
        {"role": "д", "content": text(1), "l": [text(1), "Ж", 1], "t": dice.random() < 0.5},
        {"role": "א", "content": text(2), "d": {"א": text(2), "k": text(2)}},
    ]


def jinja(source: str, messages: list[dict[str, Any]]) -> str | Exception:
    from transformers.utils import chat_template_utils

    try:
        compiled = chat_template_utils._compile_jinja_template(source)
        return compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=False)
    except Exception as error:  # whatever a random template meets
        return error


def ours(source: str, messages: list[dict[str, Any]]) -> RenderedText | RenderError:
    try:
        return Template(source, sandbox="inline").render(messages)
    except RenderError as error:
        return error


@pytest.mark.parametrize("seed", range(4))
def test_a_random_template_prints_jinjas_text_and_every_character_keeps_its_message(seed: int) -> None:
    dice, agreed = random.Random(seed), 0
    for _ in range(200):
        depth = dice.choice([1, 2, 2, 3])
        source = HEAD + dice.choice(STATEMENTS).format(expression(dice, depth), expression(dice, depth))
        messages = conversation(dice)
        want, got = jinja(source, messages), ours(source, messages)
        if isinstance(got, RenderError):
            assert isinstance(want, Exception) or got.code == "TM921", (source, messages, want, got)
            continue
        if got.passed_otherwise:  # in another form than transformers has it
            continue
        assert got.text == want, (source, messages)
        agreed += 1
        at = 0
        for span in got.spans:
            assert span.start == at < span.end, (source, messages)
            at = span.end
            for character in got.text[span.start : span.end]:
                script = unicodedata.name(character, "").partition(" ")[0]
                owner = SCRIPTS.index(script) if script in SCRIPTS else None
                origin = span.source if span.origin is not Origin.RENDERER else None
                place = (source, messages, got.text, span)
                assert owner in (origin, None), place
                assert origin is None or span.coarse or character not in "xyzXYZ", place
        assert at == len(got.text)
    assert agreed > 50
