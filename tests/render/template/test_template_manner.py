"""What a template fails on is passed to it as engines pass it, and that is recorded; what it takes stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from template_chats import TOKENS

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Author, Origin
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.trace.model import Text, Trace

SMALL = Path(__file__).resolve().parents[3] / "fixtures" / "tokenizers" / "small"
ITERATES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% for k, v in c.function.arguments|items %}[{{ k }}={{ v }}]{% endfor %}{% endfor %}{% endfor %}"
)
CONCATENATES = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% endfor %}"
)
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text.strip() }}{% endfor %}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.role + ':' + m.content }};{% endfor %}"


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "gate", "arguments": arguments}}
    return [{"role": "user", "content": "Open."}, {"role": "assistant", "content": "", "tool_calls": [call]}]


@pytest.mark.parametrize("sandbox", ["inline", "worker"])
def test_strings_are_parsed_for_a_template_that_iterates_over_arguments(sandbox: Any) -> None:
    template = Template(ITERATES, sandbox=sandbox)
    given, parsed = template.render(called({"id": 1, "to": "é"})), template.render(called('{"id": 1, "to": "é"}'))
    assert parsed.text == given.text == "<user>Open.<assistant>gate[id=1][to=é]"
    assert parsed.spans == given.spans
    assert (given.other_arguments, parsed.other_arguments, parsed.passed_otherwise) == ((), (1,), (1,))


@pytest.mark.parametrize("sandbox", ["inline", "worker"])
def test_objects_are_spelled_for_a_template_that_concatenates_arguments(sandbox: Any) -> None:
    template = Template(CONCATENATES, sandbox=sandbox)
    spelled = template.render(called({"id": 1, "to": "é"}))
    assert spelled.text == 'gate({"id": 1, "to": "é"})' == template.render(called('{"id": 1, "to": "é"}')).text
    assert spelled.other_arguments == (1,)
    assert {span.origin for span in spelled.spans if "é" in spelled.text[span.start : span.end]} == {Origin.TOOL_CALL}


def test_a_string_becomes_one_part_for_a_template_that_reads_parts() -> None:
    rendered = Template(PARTS, sandbox="inline").render([{"role": "user", "content": "Hi"}])
    assert (rendered.text, rendered.other_content) == ("<user>Hi", (0,))
    assert [(span.source, span.field) for span in rendered.spans if span.origin is Origin.CONTENT] == [
        (0, ("content",))
    ]


@pytest.mark.parametrize("shown", ["m.content", "m.content|tojson", "m.content[0]", "m.content|string|trim"])
def test_a_template_that_refuses_strings_in_its_own_words_is_not_given_lists_to_print(shown: str) -> None:
    """Its refusal stands, where the list of parts would be printed as it is."""
    source = (
        "{% for m in messages %}{% if m.content == 'Hi' %}{{ raise_exception('not Hi') }}{% endif %}"
        "{{ " + shown + " }}{% endfor %}"
    )
    with pytest.raises(RenderError, match="the template refuses: not Hi"):
        Template(source, sandbox="inline").render([{"role": "user", "content": "Hi"}])


def test_one_text_part_becomes_a_string_for_a_template_that_reads_strings() -> None:
    template = Template(PLAIN, sandbox="inline")
    rendered = template.render([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    assert (rendered.text, rendered.other_content) == ("user:Hi;", (0,))
    two = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]
    with pytest.raises(RenderError, match="TM920"):
        template.render([{"role": "user", "content": two}])


def test_what_a_template_takes_is_passed_as_it_is() -> None:
    compact = '{"to":"x","id":1}'
    rendered = Template(CONCATENATES, sandbox="inline").render(called(compact))
    assert (rendered.text, rendered.passed_otherwise) == (f"gate({compact})", ())


DUMPS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '(' }}{{ c.function.arguments|tojson }}{{ ')' }}{% endfor %}{% endfor %}"
)
DUMPS_CALLS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ (m.tool_calls or [])|tojson }}{% endfor %}"


@pytest.mark.parametrize("sandbox", ["inline", "worker"])
def test_strings_are_parsed_for_a_template_that_would_quote_their_json(sandbox: Any) -> None:
    for source in (DUMPS, DUMPS_CALLS):
        template = Template(source, sandbox=sandbox)
        for value in ({"id": 1, "to": "é"}, {}, {"code": 'print("{}")\n'}):
            given = template.render(called(value))
            parsed = template.render(called(f" {json.dumps(value)}"), served=True)
            assert parsed.text == given.text and parsed.spans == given.spans
            assert (given.other_arguments, parsed.other_arguments) == ((), (1,))


def test_as_transformers_renders_it_a_string_is_quoted() -> None:
    rendered = Template(DUMPS, sandbox="inline").render(called('{"id":1}'))
    assert (rendered.text, rendered.passed_otherwise) == ('<user>Open.<assistant>gate("{\\"id\\":1}")', ())
    front = Renderer(SMALL, Template(DUMPS, sandbox="inline"))
    assert front.render_text(called('{"id":1}')).text == rendered.text
    (sample,) = front.render(Trace.from_messages(called('{"id":1}')))
    assert [finding.code for finding in sample.findings if finding.code == "TM115"] == ["TM115"]


def test_one_string_among_objects_and_broken_strings_is_parsed_alone() -> None:
    chat = [*called({"id": 1}), *called('{"id": 2}'), *called('{"id":'), *called('"{}"')]
    rendered = Template(DUMPS, sandbox="inline").render(chat, served=True)
    assert [part.partition("(")[2] for part in rendered.text.split("<assistant>")[1:]] == [
        '{"id": 1})<user>Open.', '{"id": 2})<user>Open.', '{"id":)<user>Open.', '"{}")',
    ]  # fmt: skip
    assert rendered.other_arguments == (3, 5, 7)


BROKEN = ('{"id":', '{"a": "é\n', "[1, 2]", '"{}"', "null", "{'a': 1}", "\\d+ \\1")


@pytest.mark.parametrize("sandbox", ["inline", "worker"])
@pytest.mark.parametrize("broken", BROKEN)
def test_arguments_that_spell_no_object_are_not_quoted_either(broken: str, sandbox: Any) -> None:
    """The policy wrote malformed JSON, not the JSON string of it; in a trace both would read the same."""
    for source, said in ((DUMPS, f"gate({broken})"), (DUMPS_CALLS, f'"arguments": {broken}}}}}]')):
        source += "{% generation %}!{% endgeneration %}"
        quoted = Template(source, sandbox=sandbox).render(called(broken))
        rendered = Template(source, sandbox=sandbox).render(called(broken), served=True)
        assert json.dumps(broken, ensure_ascii=False) in quoted.text, "transformers quotes it"
        assert rendered.text.endswith(said + "!") and rendered.other_arguments == (1,)
        assert "".join(rendered.text[span.start : span.end] for span in rendered.spans) == rendered.text
        assert [span.start for span in rendered.spans] == [0, *(span.end for span in rendered.spans[:-1])]
        ((start, end),) = rendered.generation
        assert rendered.text[start:end] == "!"
        inside = rendered.text.index(broken)
        (span,) = (span for span in rendered.spans if span.start <= inside < span.end)
        assert (span.source, span.origin) == (1, Origin.TOOL_CALL)


def test_a_string_inside_other_arguments_that_reads_like_the_broken_ones_stays_a_string() -> None:
    calls = [call for value in ('{"id":', {"x": '{"id":'}) for call in called(value)[1]["tool_calls"]]
    chat = [{"role": "user", "content": "Open."}, {"role": "assistant", "content": "", "tool_calls": calls}]
    dumped, whole = (Template(source, sandbox="inline").render(chat, served=True) for source in (DUMPS, DUMPS_CALLS))
    assert dumped.text.endswith('gate({"id":)gate({"x": "{\\"id\\":"})')
    assert '"arguments": {"id":}' in whole.text and '"arguments": {"x": "{\\"id\\":"}' in whole.text


def test_no_arguments_at_all_are_an_empty_object_where_a_template_would_quote_or_iterate() -> None:
    """As inference servers pass them; what is printed verbatim stays, whatever the other arguments hold."""
    for source in (DUMPS, DUMPS_CALLS, ITERATES):
        given, parsed = (Template(source, sandbox="inline").render(called(value), served=True) for value in ({}, ""))
        assert (parsed.text, parsed.other_arguments) == (given.text, (1,))
    calls = [call for value in ("", '{"x":""}') for call in called(value)[1]["tool_calls"]]
    chat = [{"role": "user", "content": "Open."}, {"role": "assistant", "content": "", "tool_calls": calls}]
    rendered = Template(CONCATENATES, sandbox="inline").render(chat, served=True)
    assert (rendered.text, rendered.passed_otherwise) == ('gate()gate({"x":""})', ())


def test_words_of_a_tool_that_quote_json_do_not_parse_what_is_printed_verbatim() -> None:
    said = json.dumps({"arguments": '{"to":"x"}'})
    chat = [*called('{"to":"x"}'), {"role": "tool", "content": said}]
    source = CONCATENATES.replace("{% for c", "{{ m.content }}{% for c")
    rendered = Template(source, sandbox="inline").render(chat, served=True)
    assert (rendered.text, rendered.passed_otherwise) == (f'Open.gate({{"to":"x"}}){said}', ())


def test_a_string_that_is_no_object_stays_refused_by_name() -> None:
    for text in ('{"id": 1', "[1]", '"x"'):
        with pytest.raises(RenderError, match="message 1.*TM920"):
            Template(ITERATES, sandbox="inline").render(called(text))


def test_the_error_is_what_the_template_says_itself() -> None:
    source = "{% for m in messages %}{{ m.content[0].text }}{{ raise_exception('no ' + m.role) }}{% endfor %}"
    with pytest.raises(RenderError, match="the template refuses: no user"):
        Template(source, sandbox="inline").render([{"role": "user", "content": "Hi"}])


def test_authors_of_blocks_hold_where_a_string_was_passed_as_a_part() -> None:
    trace = Trace.from_messages([{"role": "user", "content": "x"}, {"role": "assistant", "content": "yes"}])
    blocks = [Text(text="the task "), Text(text="the check", author="verifier")]
    trace.messages[0] = trace.messages[0].model_copy(update={"blocks": blocks})
    trace_author = Author[trace.messages[0].author.upper()]
    (sample,) = Renderer(SMALL, Template(PARTS, sandbox="inline")).render(trace)
    said = {Author(author) for author, message in zip(sample.author, sample.message) if message == 0}
    assert {trace_author, Author.VERIFIER} <= said


@pytest.mark.real
def test_every_template_takes_both_forms_of_arguments(real_templates: dict[str, str]) -> None:
    """Objects and strings give the same text wherever a template takes only one of them."""
    arguments = {"a": 1, "b": ["é", None]}
    took = 0
    for name, source in real_templates.items():
        template = Template(source, name=name, tokens=TOKENS, sandbox="inline")
        outcomes = template_outcomes(template, called(arguments), called(json.dumps(arguments, ensure_ascii=False)))
        assert len({isinstance(each, RenderError) for each in outcomes}) == 1, name
        if not isinstance(outcomes[0], RenderError) and any(each.other_arguments for each in outcomes):
            assert outcomes[0].text == outcomes[1].text, name
            took += 1
    assert took >= 15


def template_outcomes(template: Template, *chats: list[dict[str, Any]]) -> list[Any]:
    out: list[Any] = []
    for chat in chats:
        try:
            out.append(template.render(chat))
        except RenderError as error:
            out.append(error)
    return out
