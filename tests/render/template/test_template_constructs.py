"""Every construct that a chat template may use prints what transformers' Jinja prints, or is refused by name."""

# ruff: noqa: E501 - a template stands on one line

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.template import Template
from tracemask.render.text import RenderedText

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief.\n\n  <b>Ünï</b> "},
    {
        "role": "user",
        "content": "  one two\tthree\nfour  ",
        "name": "ana",
        "flag": True,
        "n": 7,
        "x": 2.5,
        "none": None,
    },
    {
        "role": "assistant",
        "content": "a,b,,c",
        "reasoning_content": "because",
        "tool_calls": [{"function": {"name": "f", "arguments": {"k": "v\"'", "n": 3, "deep": {"z": [1, None, "é"]}}}}],
        "list": ["x", "y", "z"],
        "pairs": [{"k": "b", "v": 2}, {"k": "a", "v": 1}],
    },
    {"role": "user", "content": "%s {} %(a)s"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"k": {}}}}}]

SAME = [
    # output, literals, operators
    "{{ messages[1].content }}|{{ messages[1]['content'] }}|{{ messages.1.content }}|{{ messages[-1].role }}",
    "{{ 'a' + messages[1].content + 'b' }}|{{ messages[1].content ~ 1 ~ true ~ none ~ 2.5 }}",
    "{{ 'a' 'b' }}{{ 1 + 2 * 3 - 4 / 2 // 1 % 5 ** 2 }}{{ -messages[1].n }}{{ messages[1].n + 1 }}{{ +3 }}",
    "{{ messages[1].n * 2 }}|{{ messages[1].x / 2 }}|{{ messages[1].n // 2 }}|{{ messages[1].n % 4 }}|{{ 2 ** 10 }}",
    "{{ messages[1].flag }}|{{ messages[1].none }}|{{ messages[1].x }}|{{ messages[1].n }}|{{ none }}|{{ true }}",
    "{{ 'ab' * 3 }}|{{ messages[1].name * 2 }}|{{ 2 * messages[1].name }}|{{ [1] * 2 }}",
    "{{ messages[1].content == '  one two\\tthree\\nfour  ' }}{{ 'one' in messages[1].content }}{{ 1 < 2 < 3 }}",
    "{{ 'x' if messages[1].flag else 'y' }}|{{ messages[1].name if messages[1].flag }}|{{ 'n' if false }}|",
    "{{ messages[1].name and messages[2].content or 'z' }}|{{ not messages[1].name }}|{{ missing or 'default' }}",
    "{{ missing }}|{{ messages[1].missing }}|{{ messages[1]['missing'] }}|{{ messages[1].content.missing }}|",
    "{{ [1, 'a', messages[1].name] }}|{{ {'k': messages[1].name, 'l': [none]} }}|{{ (1, messages[1].name) }}|{{ (1,) }}",
    "{{ messages[2].list }}|{{ messages[2].tool_calls }}|{{ [messages[2].pairs] }}|{{ {} }}|{{ [] }}",
    "{{ messages[1].content[2:5] }}|{{ messages[1].content[::-1] }}|{{ messages[1].content[-4:] }}|{{ messages[1].name[0] }}",
    "{{ messages[2].list[1:] }}|{{ messages[::-1][0].role }}|{{ messages[1:]|length }}|{{ messages[2].list[-1] }}",
    # methods
    "{{ messages[1].content.strip() }}|{{ messages[1].content.lstrip() }}|{{ messages[1].content.rstrip() }}|",
    "{{ messages[2].content.split(',') }}|{{ messages[2].content.split(',')[-1] }}|{{ messages[1].content.split() }}",
    "{{ messages[2].content.rsplit(',', 1) }}|{{ messages[1].content.splitlines() }}|{{ messages[2].content.partition(',') }}",
    "{{ messages[2].content.replace(',', messages[1].name) }}|{{ 'a-b'.replace('-', messages[1].name) }}",
    "{{ ', '.join(messages[2].list) }}|{{ messages[1].name.join(['1', '2']) }}|{{ ','.join([]) }}",
    "{{ messages[1].name.upper() }}|{{ messages[0].content.title() }}|{{ messages[1].name.capitalize() }}|",
    "{{ messages[1].name.center(9) }}|{{ messages[1].name.ljust(5) }}|{{ messages[1].name.rjust(5, '.') }}|",
    "{{ messages[1].content.startswith('  one') }}|{{ messages[1].content.endswith(('x', '  ')) }}|",
    "{{ messages[1].content.find('two') }}|{{ messages[1].content.count('o') }}|{{ messages[1].name.isalpha() }}",
    "{{ messages[1].name.removeprefix('a') }}|{{ messages[1].name.removesuffix('a') }}|{{ messages[1].name.zfill(6) }}",
    "{{ '{} and {}'.format(messages[1].name, 3) }}|{{ '{x!r:>9}'.format(x=messages[1].name) }}|{{ '{0}{0}'.format('a') }}",
    "{{ '{a}'.format_map({'a': messages[1].name}) }}|{{ '{0.role}'.format(messages[1]) }}|{{ '{0[role]}'.format(messages[1]) }}",
    "{{ '%s-%d-%5.1f-%r-%%' % (messages[1].name, messages[1].n, messages[1].x, messages[1].name) }}|{{ '%s' % 'a' }}",
    "{{ messages[1].items()|list|length }}|{{ messages[1].get('name') }}|{{ messages[1].get('zzz', 'dflt') }}|",
    "{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in messages[2].tool_calls[0].function.arguments %}{{ k }},{% endfor %}{{ messages[2].list.index('y') }}",
    "{% for k, v in messages[2].tool_calls[0].function.arguments|items %}{{ k }}={{ v|tojson }};{% endfor %}",
    # filters
    "{{ messages[1].content|trim }}|{{ messages[1].content|trim(' o') }}|{{ 5|trim }}|{{ messages[1].name|upper|lower }}",
    "{{ messages[1].name|capitalize }}|{{ messages[0].content|title }}|{{ messages[1].name|center(10) }}|",
    "{{ messages[2].list|join }}|{{ messages[2].list|join(', ') }}|{{ messages[2].pairs|join('-', attribute='k') }}|",
    "{{ messages[2].list|first }}{{ messages[2].list|last }}{{ messages[1].name|first }}{{ messages[1].name|last }}",
    "{{ messages[2].list|length }}{{ messages[1].name|count }}{{ messages[2].list|reverse|list }}{{ messages[1].name|reverse }}",
    "{{ missing|default('d') }}|{{ ''|default('d', true) }}|{{ messages[1].name|default('d') }}|{{ missing|d(messages[1].name) }}",
    "{{ messages[2].pairs|map(attribute='k')|join(',') }}|{{ messages[2].list|map('upper')|list }}|",
    "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list|length }}|",
    "{{ messages|rejectattr('role', 'equalto', 'user')|map(attribute='role')|join }}|{{ [1, 0, 2]|select|list }}|",
    "{{ messages[2].list|reject('equalto', 'y')|list }}|{{ messages[2].pairs|sort(attribute='k')|map(attribute='v')|list }}",
    "{{ messages[2].pairs|groupby('k')|length }}|{{ ['b', 'a']|sort }}|{{ ['a', 'b', 'a']|unique|list }}|{{ [3, 1]|max }}",
    "{{ {'b': 1, 'a': 2}|dictsort }}|{{ messages[2].tool_calls[0].function.arguments|dictsort|first|first }}",
    "{{ messages[1].content|replace('o', '0') }}|{{ messages[1].content|replace('o', messages[1].name, 1) }}|",
    "{{ messages[1].content|indent }}|{{ messages[1].content|indent(2, true) }}|{{ messages[1].content|indent('> ', blank=true) }}",
    "{{ messages[1].content|string }}|{{ 5|string }}|{{ none|string }}|{{ messages[1].n|string }}|{{ [1]|string }}",
    "{{ messages[1].content|truncate(8) }}|{{ messages[1].content|truncate(9, true, '…', 0) }}|{{ 'ab'|truncate(5) }}",
    "{{ '%s/%s'|format(messages[1].name, 2) }}|{{ messages[1].content|wordcount }}|{{ messages[1].name|urlencode }}",
    "{{ [1, 2, 3, 4, 5]|batch(2)|list }}|{{ [1, 2, 3, 4, 5]|slice(2)|list }}|{{ [1, 2, 3]|batch(2, 0)|list }}",
    "{{ [1, 2, 3]|sum }}|{{ messages[1].n|abs }}|{{ -3|abs }}|{{ 2.567|round(1) }}|{{ messages[1].x|int }}|{{ '7'|int }}",
    "{{ messages[1].n|float }}|{{ 123456|filesizeformat }}|{{ messages[2].pairs|sum(attribute='v') }}|{{ 'x'|int(9) }}",
    "{{ messages[1].name|list }}|{{ messages[1]|attr('zzz') }}|{{ range(3)|list }}|{{ messages[1].name|pprint }}",
    "{{ '<a>'|e }}|{{ messages[0].content|escape }}|{{ messages[0].content|safe }}|{{ messages[0].content|forceescape }}",
    "{{ (messages[0].content|safe) + '<i>' }}|{{ '<i>' + (messages[0].content|safe) }}|{{ (messages[1].name|safe) ~ '<' }}",
    # tojson
    "{{ messages[1].content|tojson }}|{{ messages[2].tool_calls|tojson }}|{{ messages|tojson }}|{{ 'a\"é'|tojson }}",
    "{{ messages[2].tool_calls|tojson(indent=2) }}|{{ messages[2].pairs|tojson(separators=(',', ':')) }}",
    "{{ messages[2].tool_calls|tojson(ensure_ascii=True) }}|{{ messages[2].pairs|tojson(sort_keys=true) }}|{{ none|tojson }}",
    "{{ {'a': messages[1].name, 'b': [messages[1].n, true, none, 1.5], 'c': {}, 'd': [], 1: 2}|tojson }}",
    "{{ {'b': messages[1].name, 'a': messages[2].list}|tojson(indent=4, sort_keys=true) }}|{{ [messages[1]]|tojson }}",
    "{{ tools|tojson }}|{{ tools[0].function|tojson(indent=2) }}|{{ dict(name=messages[1].name)|tojson }}",
    # tests
    "{{ messages[1].name is string }}{{ messages[1] is mapping }}{{ messages is sequence }}{{ messages[1].n is number }}",
    "{{ messages[1].n is integer }}{{ messages[1].x is float }}{{ messages[1].flag is boolean }}{{ messages[1].flag is true }}",
    "{{ messages[1].none is none }}{{ missing is defined }}{{ messages[1].zzz is undefined }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}",
    "{{ messages[1].name is iterable }}{{ 'a' is in messages[1].name }}{{ messages[1].name is eq 'ana' }}{{ 'a' is lower }}",
    "{{ messages[1].name is sameas messages[1].name }}{{ range is callable }}{{ messages[1].n is gt 3 }}{{ 'x' is escaped }}",
    # statements
    "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ m.role }}{{ loop.length }};{% endfor %}",
    "{% for m in messages %}{{ loop.previtem is defined }}>{{ (loop.nextitem or m).role }}{{ loop.revindex0 }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index0 }}{{ m.content }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}{{ messages[0].role }}{% endfor %}{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.depth }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ m.role }}{{ c.function.name }}{% endfor %}{% endfor %}",
    "{% set x = messages[1].content %}{{ x }}{% set a, b = 'p', messages[1].name %}{{ a }}{{ b }}",
    "{% set x %}[{{ messages[1].name }}]{% endset %}{{ x }}{{ x|upper }}{% set y | trim %} {{ messages[1].content }} {% endset %}{{ y }}",
    "{% set ns = namespace(a='x', b=none) %}{% for m in messages %}{% set ns.a = ns.a + m.role %}{% endfor %}{{ ns.a }}{{ ns.c }}",
    "{% macro f(m, tag='p') %}<{{ tag }}>{{ m.content }}{{ caller() if caller }}</{{ tag }}>{% endmacro %}{{ f(messages[1]) }}{{ f(messages[2], tag='q') }}",
    "{% macro g(x) %}{{ x }}{{ caller('in') }}{% endmacro %}{% call(y) g(messages[1].name) %}({{ y }}{{ messages[1].name }}){% endcall %}",
    "{% macro h() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ h(1, messages[1].name, k=messages[1].n) }}",
    "{% macro r(n) %}{% if n %}{{ n }}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(4) }}",
    "{% filter upper %}{{ messages[1].name }} shouts{% endfilter %}{% with a = messages[1].name %}{{ a }}{% endwith %}",
    "{% if messages[1].name == 'ana' %}A{% elif true %}B{% else %}C{% endif %}{# comment #}{% raw %}{{ x }}{% endraw %}",
    "  {%- if true -%}  x  {%- endif %}\n   {% if true %}\n y\n   {% endif %}\n{{- 'z' -}}   w\n",
    "{% generation %}{{ messages[2].content }}{% endgeneration %}|{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{% block b %}{{ messages[1].name }}{% endblock %}|{{ self.b() }}",
    "{% set c = cycler('a', messages[1].name) %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner(',') %}{{ j() }}{{ j() }}",
    "{{ add_generation_prompt }}{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ custom }}{{ custom|upper }}",
    "{{ dict(a=1, b=messages[1].name) }}{{ dict([('k', messages[1].name)]).k }}{{ namespace(a=1).a }}",
    "{{ messages[2].tool_calls[0].function.arguments.deep.z[2] }}{{ messages[2].tool_calls|map(attribute='function.name')|first }}",
    "{{ strftime_now('%Y-%m-%d %B') }}|{{ messages[3].content }}",
    "{{ messages[1].content.expandtabs }}" if False else "{{ messages[1].name.expandtabs() }}",
]

REFUSED = {
    "{{ messages[1].content.encode() }}": ("TM921", "str.encode"),
    "{{ messages[2].list|random }}": ("TM921", "the filter random"),
    "{{ messages[1].content|wordwrap(5) }}": ("TM921", "the filter wordwrap"),
    "{{ messages[1].content|urlize }}": ("TM921", "the filter urlize"),
    "{{ messages[1].content|striptags }}": ("TM921", "the filter striptags"),
    "{{ {'a': 1}|xmlattr }}": ("TM921", "the filter xmlattr"),
    "{{ messages[1].content.expandtabs() }}": ("TM921", "expandtabs"),
    "{{ messages[3].content % 'x' }}": ("TM921", "% with a field as the format"),
    "{{ messages[3].content.format('x') }}": ("TM921", "str.format with a field as the format"),
    "{{ messages[3].content|format('x') }}": ("TM921", "with a field as the format"),
    "{{ '%*d' % (3, 4) }}": ("TM921", "a width taken from the arguments"),
    "{{ 'abc'.translate({97: messages[1].name}) }}": ("TM921", "str.translate with a field in its table"),
    "{{ messages[1].content.translate([messages[1].name]) }}": ("TM921", "str.translate with a field"),
    "{{ messages[1].content.translate(messages[1].name) }}": ("TM921", "str.translate with a field"),
    "{{ strftime_now(messages[1].name) }}": ("TM921", "strftime_now with a field as the format"),
    "{{ (messages[0].content|safe).upper() }}": ("TM921", "safe"),
    "{{ (messages[0].content|safe)[1:] }}": ("TM921", "safe"),
    "{{ (messages[0].content|safe) % 1 }}": ("TM921", "safe"),
    "{{ messages[1].items() }}": ("TM921", "printing a dict_items"),
    "{{ range }}": ("TM921", "printing a"),
    "{{ namespace(a=1) }}": ("TM921", "printing a"),
    "{% for m in messages %}{{ loop }}{% endfor %}": ("TM921", "printing a LoopContext"),
    "{{ messages|map('upper') }}": ("TM921", "printing a generator"),
    "{% autoescape true %}{{ messages[1].name }}{% endautoescape %}": ("TM921", "autoescape"),
    "{% include 'x' %}": ("TM921", "include"),
    "{% import 'x' as y %}": ("TM921", "import"),
    "{{ lipsum() }}": ("TM921", "lipsum"),
    "{{ raise_exception('no such role') }}": ("TM920", "no such role"),
    "{{ missing.x }}": ("TM920", "'missing' is undefined"),
    "{{ 'a' + messages[2].tool_calls[0].function }}": ("TM920", "message 2, tool_calls[0].function"),
    "{{ 'a' + 1 }}": ("TM920", "TypeError"),
    "{{ 'a' + missing }}": ("TM920", "undefined"),
    "{{ messages[1].content.nothing() }}": ("TM920", "'str object' has no attribute 'nothing'"),
    "{{ messages[1].nothing.more }}": ("TM920", "'dict object' has no attribute 'nothing'"),
    "{% if %}": ("TM920", "syntax error"),
    "{{ messages[1].content|nofilter }}": ("TM920", "nofilter"),
    "{{ missing|tojson }}": ("TM920", "not JSON serializable"),
    "{{ ','.join([1]) }}": ("TM920", "expected str instance"),
    "{{ '%s' % () }}": ("TM920", "not enough arguments"),
    "{{ '%s' % ('a', 'b') }}": ("TM920", "not all arguments"),
    "{% for m in messages %}{% set x = m.nope + 'a' %}{% endfor %}": ("TM920", "message 0"),
}


def ours(source: str) -> RenderedText:
    template = Template(source, tokens={"bos_token": "<BOS>"}, date=date.today(), sandbox="inline")
    return template.render(CHAT, tools=TOOLS, kwargs={"custom": "kwarg é"})


@pytest.mark.parametrize("source", SAME)
def test_a_construct_prints_what_transformers_prints(source: str, peer: Any) -> None:
    rendered = ours(source)
    theirs = peer.apply_chat_template(CHAT, tools=TOOLS, chat_template=source, tokenize=False, custom="kwarg é")
    assert rendered.text == theirs
    assert "".join(rendered.text[span.start : span.end] for span in rendered.spans) == rendered.text


@pytest.mark.parametrize("source", REFUSED)
def test_a_construct_that_cannot_be_rendered_is_refused_by_name(source: str) -> None:
    code, name = REFUSED[source]
    with pytest.raises(RenderError) as caught:
        ours(source)
    assert caught.value.code == code
    assert name in str(caught.value)


def where(source: str) -> list[tuple[str, int, int, Origin, tuple[str | int, ...], bool]]:
    """(characters, message, source, origin, path, coarse) of each span."""
    rendered = ours(source)
    return [(rendered.text[span.start : span.end], *span[2:]) for span in rendered.spans]


def test_position_and_origin_of_a_literal_differ_where_they_should() -> None:
    source = "{% for m in messages %}{% if m.role == 'user' %}<{{ messages[2].tool_calls[0].function.name }}>{% endif %}{% endfor %}"
    path = ("tool_calls", 0, "function", "name")
    assert where(source) == [
        ("<", 1, -1, Origin.RENDERER, (), False),
        ("f", 1, 2, Origin.TOOL_CALL, path, False),
        (">", 1, -1, Origin.RENDERER, (), False),
        ("<", 3, -1, Origin.RENDERER, (), False),
        ("f", 3, 2, Origin.TOOL_CALL, path, False),
        (">", 3, -1, Origin.RENDERER, (), False),
    ]


def test_position_holds_through_slices_copies_filters_macros_and_set_blocks() -> None:
    expected = [(f"<{m['role']}>", index) for index, m in enumerate(CHAT)]
    body = "<{{ m.role }}>"
    for source in (
        f"{{% for m in messages[0:] %}}{body}{{% endfor %}}",
        f"{{% for m in messages|list %}}{body}{{% endfor %}}",
        f"{{% for m in messages if m.role %}}{body}{{% endfor %}}",
        f"{{% set ns = namespace(l=[]) %}}{{% for m in messages %}}{{% set ns.l = ns.l + [m] %}}{{% endfor %}}"
        f"{{% for m in ns.l %}}{body}{{% endfor %}}",
        f"{{% macro f(m) %}}{body}{{% endmacro %}}{{% for m in messages %}}{{{{ f(m) }}}}{{% endfor %}}",
        f"{{% set all %}}{{% for m in messages %}}{body}{{% endfor %}}{{% endset %}}{{{{ all }}}}",
        f"{{% macro f() %}}{{% for m in messages %}}{body}{{% endfor %}}{{% endmacro %}}{{{{ f() }}}}",
        f"{{% filter trim %}}{{% for m in messages %}}{body}{{% endfor %}}{{% endfilter %}}",
        f"{{% for m in messages %}}{{% set x %}}{body}{{% endset %}}{{{{ x }}}}{{% endfor %}}",
        f"{{% for m in messages %}}{{% for k in range(2) %}}{{% endfor %}}{body}{{% endfor %}}",
        f"{{% for m in messages|map('default') %}}{body}{{% endfor %}}",
        f"{{% for m in messages %}}{{% for o in messages %}}{{% endfor %}}{body}{{% endfor %}}",
    ):
        rendered = ours(source)
        found: list[tuple[str, int]] = []
        for span in rendered.spans:
            text = rendered.text[span.start : span.end]
            if found and found[-1][1] == span.message:
                text = found.pop()[0] + text
            found.append((text, span.message))
        assert found == expected, source


def test_literals_outside_every_message_loop_have_no_message() -> None:
    source = "a{% for m in messages %}{% endfor %}b{% for t in tools %}c{{ t.function.name }}{% endfor %}{{ messages[0].role }}"
    assert [(message, origin) for _, message, _, origin, _, _ in where(source)] == [
        (-1, Origin.RENDERER),
        (-1, Origin.TOOLS),
        (-1, Origin.FIELD),
    ]


def test_tokens_are_literals_and_kwargs_are_fields() -> None:
    assert where("{{ bos_token }}{{ custom }}") == [
        ("<BOS>", -1, -1, Origin.RENDERER, (), False),
        ("kwarg é", -1, -1, Origin.FIELD, ("kwargs", "custom"), False),
    ]


def test_a_field_that_was_computed_on_is_coarse() -> None:
    assert where("{{ messages[1].n + 1 }}") == [("8", -1, 1, Origin.FIELD, ("n",), True)]
    assert where("{{ messages[2].list }}")[0][5] is True
    assert where("{{ messages[1].flag }}")[0][2:] == (1, Origin.FIELD, ("flag",), True)


def test_booleans_and_nulls_of_a_field_carry_it_through_filters_loops_and_conditions() -> None:
    path = ("tool_calls", 0, "function", "arguments", "deep", "z", 1)
    null = (2, Origin.TOOL_CALL, path, True)
    arguments = "messages[2].tool_calls[0].function.arguments"
    for source in (
        f"{{{{ {arguments}.deep.z[1] }}}}",
        f"{{{{ {arguments}.deep.z[1] | string }}}}",
        f"{{% for k, v in {arguments}.deep.items() %}}{{{{ v[1] ~ '' }}}}{{% endfor %}}",
        f"{{% set x = {arguments}.deep.z[1] %}}{{{{ '%s' % x }}}}",
    ):
        assert [each[2:] for each in where(source) if each[0] == "None"] == [null], source
    assert where("{{ messages[1].flag | string | lower }}") == [("true", -1, 1, Origin.FIELD, ("flag",), True)]
    assert where("{{ messages[1].flag | tojson }}")[0][:5] == ("true", -1, 1, Origin.FIELD, ("flag",))
    assert (
        where("{{ true }}{{ messages[1].flag is true }}{{ not messages[1].flag }}{{ none }}")[0][3] is Origin.RENDERER
    )


def test_a_whole_message_is_spelled_field_by_field() -> None:
    for source in ("{{ messages[2] | tojson }}", "{{ messages | tojson(indent=1) }}", "{{ messages[2] }}"):
        found = {
            (span[2], span[3], span[4][:1]) for span in where(source) if "because" in span[0] or "a,b,,c" in span[0]
        }
        assert found == {(2, Origin.CONTENT, ("content",)), (2, Origin.REASONING, ("reasoning_content",))}, source


def test_generation_ranges_are_where_the_text_stands() -> None:
    rendered = ours("ab{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %},{% endfor %}")
    assert [rendered.text[start:end] for start, end in rendered.generation] == [m["role"] for m in CHAT]
    nested = ours("{% set x %}({% generation %}{{ messages[1].name }}{% endgeneration %}){% endset %}--{{ x }}")
    assert [nested.text[start:end] for start, end in nested.generation] == ["ana"]


def test_pairs_of_groupby_keep_the_origins_of_what_they_hold() -> None:
    source = "{{ messages|map(attribute='role')|list|groupby(0)|list|string }}{{ (messages|groupby('role')|first)[0] }}"
    pairs = where(source + "{{ ['ab', messages[0].role]|groupby(0)|first }}")
    roles = {message["role"] for message in CHAT}
    for text, _, source_, origin, _, _ in pairs:
        assert origin is not Origin.RENDERER or not any(role in text for role in roles), text
        assert source_ >= 0 or origin is Origin.RENDERER
