"""Template, worker and wire: the same render wherever it runs, whatever the conversation holds."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracemask.core.errors import RenderError, UsageError
from tracemask.core.vocab import Origin
from tracemask.render.engine import Job
from tracemask.render.template import PINNED_DATE, Template
from tracemask.render.text import RenderedText, Span
from tracemask.render.wire import HEADER, pack_rendered, unpack_answer

SOURCE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.extra | tojson if m.extra is defined }}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
    "{{ note }}"
)
TOKENS = {"bos_token": "<s>"}


@pytest.fixture(scope="module")
def both() -> tuple[Template, Template]:
    return tuple(Template(SOURCE, tokens=TOKENS, sandbox=where) for where in ("inline", "worker"))  # type: ignore


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), json_values), min_size=1, max_size=4), st.booleans())
def test_worker_and_inline_agree_on_any_json(
    both: tuple[Template, Template], contents: list[tuple[str, Any]], prompted: bool
) -> None:
    messages = [{"role": "user", "content": text, "extra": extra} for text, extra in contents]
    inline, worker = both
    options: dict[str, Any] = {"add_generation_prompt": prompted, "kwargs": {"note": contents[0][0]}}
    here, there = inline.render(messages, **options), worker.render(messages, **options)
    assert here == there
    assert "".join(here.text[span.start : span.end] for span in here.spans) == here.text


@pytest.mark.parametrize(
    "extra",
    [
        "\ud800 lone surrogate",
        10**40,
        -(2**63),
        float("inf"),
        [float("-inf")],
        {"a": {1: 2}},
        (1, 2),
        "\x00",
        1e300,
        "",
    ],
    ids=repr,
)
def test_values_that_json_libraries_bend_arrive_unbent(both: tuple[Template, Template], extra: Any) -> None:
    messages = [{"role": "user", "content": "é🦊", "extra": extra}]
    here, there = (each.render(messages) for each in both)
    assert here == there
    assert here.text.startswith("<s><user>é🦊")


def test_subclasses_of_json_types_are_taken_as_their_values(both: tuple[Template, Template]) -> None:
    class Name(str):
        pass

    for template in both:
        assert template.render([{"role": Name("user"), "content": Name("hi")}]).text == "<s><user>hi"


def test_an_object_in_a_message_is_refused_with_its_place(both: tuple[Template, Template]) -> None:
    with pytest.raises(RenderError) as caught:
        both[0].render([{"role": "user", "content": "x", "extra": {"k": object()}}])
    assert "messages[0].extra.k" in str(caught.value)
    with pytest.raises(RenderError, match="not a JSON value"):
        both[1].render([{"role": "user", "content": "x", "extra": object()}])


def test_a_job_that_cannot_be_sent_leaves_the_others_of_its_batch_alone(both: tuple[Template, Template]) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    chats = [[{"role": "user", "content": "x", "extra": extra}] for extra in (1, object(), 2, deep, 3)]
    outcomes = both[1].render_many([Job(chat) for chat in chats])
    texts = [each.text if isinstance(each, RenderedText) else each.code for each in outcomes]
    assert texts == ["<s><user>x1", "TM911", "<s><user>x2", "TM922", "<s><user>x3"]


def test_many_renders_in_one_trip_are_those_of_one_trip_each(both: tuple[Template, Template]) -> None:
    jobs = [Job([{"role": "user", "content": str(number)}], None, number % 2 == 0) for number in range(200)]
    together = both[1].render_many(jobs)
    for job, outcome in zip(jobs, together, strict=True):
        assert outcome == both[0].render(job.messages, add_generation_prompt=job.add_generation_prompt)


def test_threads_share_a_worker_without_mixing_answers(both: tuple[Template, Template]) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(30):
            text = f"{number}.{turn}"
            if both[1].render([{"role": "user", "content": text}]).text != f"<s><user>{text}":
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_a_worker_of_its_own(both: tuple[Template, Template]) -> None:
    both[1].render([{"role": "user", "content": "before"}])
    child = os.fork()
    if child == 0:
        try:
            fine = both[1].render([{"role": "user", "content": "child"}]).text == "<s><user>child"
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert both[1].render([{"role": "user", "content": "after"}]).text == "<s><user>after"


def test_a_template_travels_by_pickle(both: tuple[Template, Template]) -> None:
    for template in both:
        copied = pickle.loads(pickle.dumps(template))  # noqa: S301 - our own bytes
        assert copied.fingerprint == template.fingerprint
        assert copied.render([{"role": "user", "content": "x"}]).text == "<s><user>x"


def test_the_fingerprint_covers_source_tokens_and_date() -> None:
    one = Template("a", sandbox="inline").fingerprint
    others = [
        Template("b", sandbox="inline"),
        Template("a", tokens=TOKENS, sandbox="inline"),
        Template("a", date=date(2025, 1, 1), sandbox="inline"),
    ]
    assert len({one, *(other.fingerprint for other in others)}) == 4
    assert Template("a", name="other name", sandbox="inline").fingerprint == one


def test_the_date_is_the_pinned_one_on_any_day() -> None:
    source = "{{ strftime_now('%d %B %Y, %H:%M') }}"
    assert Template(source).render([]).text == PINNED_DATE.strftime("%d %B %Y, 00:00")
    assert Template(source, date=date(2024, 7, 26)).render([]).text == "26 July 2024, 00:00"


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tracemask.render.template import Template\n"
        f"t = Template({SOURCE!r}, sandbox='inline')\n"
        "print(t.render([{'role': 'user', 'content': 'x', 'extra': {'b': 1, 'a': [{'d': 1, 'c': 2}]}}]))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1 and "user" in printed.pop()


def test_rendering_changes_no_message() -> None:
    messages = [{"role": "user", "content": None, "extra": {"a": [1]}, "reasoning": "r"}]
    Template("{% for m in messages %}{{ m.content }}{{ m.extra }}{% endfor %}", sandbox="inline").render(messages)
    assert messages == [{"role": "user", "content": None, "extra": {"a": [1]}, "reasoning": "r"}]


@pytest.mark.parametrize(
    "kind", ["image", "image_url", "input_audio", "video", "IMAGE", "pdf", "thinking", "input_text"]
)
def test_parts_that_are_no_text_are_refused_with_their_message(both: tuple[Template, Template], kind: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": kind}, {"type": "text"}]}]
    for template in both:
        with pytest.raises(RenderError) as caught:
            template.render(messages)
        assert caught.value.code == "TM921"
        assert "message 1" in str(caught.value) and kind in str(caught.value)


def test_reasoning_reaches_a_template_under_each_of_its_names() -> None:
    source = "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}{% endfor %}"
    template = Template(source, sandbox="inline")
    for name in ("reasoning_content", "thinking", "reasoning"):
        rendered = template.render([{"role": "assistant", "content": "", name: "why"}])
        assert rendered.text == "why|why"
        assert {span.origin for span in rendered.spans} == {Origin.REASONING, Origin.RENDERER}


def test_absent_content_is_dropped_then_null_where_asked_for_then_empty() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]
    tolerant = Template("{% for m in messages %}[{{ m.content }}]{% endfor %}", sandbox="inline").render(messages)
    assert (tolerant.text, tolerant.empty_content, tolerant.null_content) == ("[a][]", (), ())
    strict = Template("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}", sandbox="inline")
    assert strict.render(messages).empty_content == (1,)
    assert strict.render(messages).text == "[a][]"
    asking = Template(
        "{% for m in messages %}{{ '-' if m.content is none else '[' + m.content + ']' }}{% endfor %}",
        sandbox="inline",
    ).render(messages)
    assert (asking.text, asking.empty_content, asking.null_content) == ("[a]-", (), (1,))


def test_an_unknown_sandbox_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="TM900"):
        Template("a", sandbox="cage")  # type: ignore[arg-type]


def test_nonsense_from_a_worker_is_never_executed_and_never_believed() -> None:
    rendered = RenderedText("ab", [Span(0, 2, 0, 0, Origin.CONTENT, ("content",))])
    answer = pack_rendered(rendered)
    kind, *sizes = HEADER.unpack(answer[: HEADER.size])
    body = answer[HEADER.size :]
    assert unpack_answer(kind, tuple(sizes), body) == rendered  # type: ignore[arg-type]
    for broken in (body[:-1], b"\xff" + body[1:], body.replace(b"content", b'con"ent')):
        with pytest.raises((ValueError, TypeError, IndexError)):
            unpack_answer(kind, tuple(sizes), broken)  # type: ignore[arg-type]


def test_importing_the_template_module_loads_nothing_heavy() -> None:
    code = (
        "import sys, tracemask.render.template\n"
        "print([name for name in ('numpy', 'torch', 'transformers', 'tokenizers', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
