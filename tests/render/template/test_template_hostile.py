"""Strangers' templates: every attack ends in a coded refusal or in harmless text, quickly, and the process survives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from hostile_attacks import ATTACKS
from hostile_templates import BOMBS, ESCAPES

from tracemask.core.errors import RenderError
from tracemask.render import worker
from tracemask.render.isolation import Worker, shared_worker
from tracemask.render.tags import MAX_CHARS
from tracemask.render.template import Template

CHAT = [
    {"role": "user", "content": "hello world"},
    {"role": "user", "content": "{0.__init__.__globals__}"},
]
INSIDES = re.compile(
    r"<class|<jinja|<tracemask|object at|<bound|<generator|<module|<function|<built-in|__globals__'|mappingproxy"
    r"|0x[0-9a-f]{6,}|root:x:0"
)
SLOW_MACHINE = 8  # a loaded machine may give a worker an eighth of its CPU


def outcome(source: str) -> RenderError | str:
    try:
        return Template(source, name="stranger").render(CHAT).text
    except RenderError as error:
        return error


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_a_code_within_the_limits(name: str) -> None:
    start = time.monotonic()
    result = outcome(BOMBS[name])
    took = time.monotonic() - start
    if name in ("power", "round_precision"):  # small after all: (10**10)**8, and a float rounded
        assert result in ("True", "1.5")
    else:
        assert isinstance(result, RenderError), result[:200]
        assert result.code in ("TM920", "TM921", "TM922")
        assert "stranger" in result.where
        assert result.what and len(result.what) < 500
    assert took < 2.0 * SLOW_MACHINE
    assert outcome("fine {{ messages[0].content }}") == "fine hello world"


@pytest.mark.parametrize("name", ESCAPES)
def test_a_walk_out_of_the_sandbox_reaches_nothing(name: str) -> None:
    result = outcome(ESCAPES[name])
    if isinstance(result, RenderError):
        assert result.code in ("TM920", "TM921")
    else:
        assert not INSIDES.search(result), result[:200]
    assert outcome("{{ messages[1].content }}") == CHAT[1]["content"]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_in_a_coded_refusal_or_in_harmless_text(name: str) -> None:
    start = time.monotonic()
    result = outcome(ATTACKS[name])
    took = time.monotonic() - start
    if isinstance(result, RenderError):
        assert result.code in ("TM920", "TM921", "TM922")
        assert "stranger" in result.where
        assert 0 < len(result.what) < 500, "a template's own words are cut"
    else:
        assert len(result) <= 1 << 24
        assert not INSIDES.search(result[:10_000]), result[:200]
    assert took < 2.0 * SLOW_MACHINE
    assert outcome("fine {{ messages[0].content }}") == "fine hello world"


def test_there_are_more_than_forty_attacks() -> None:
    assert len(BOMBS) + len(ESCAPES) + len(ATTACKS) > 200


def test_the_limits_are_those_that_the_documentation_names() -> None:
    assert worker.MEMORY == 512 << 20
    assert worker.CPU_SECONDS < 2


def test_messages_are_not_changed_by_a_template_that_tries() -> None:
    chat = [{"role": "user", "content": "a", "extra": [1]}]
    outcome("{% set q = messages[0].extra.append(2) %}")
    assert chat == [{"role": "user", "content": "a", "extra": [1]}]


def test_a_killed_worker_is_replaced_and_the_other_jobs_of_the_batch_are_done() -> None:
    from tracemask.render.engine import Job

    source = (
        "{% if messages[0].content == 'bomb' %}{% set x = 'a' * 9999999 %}"
        "{% for i in range(99999) %}{% set y = 'b' in x %}{% endfor %}{% endif %}{{ messages[0].content }}"
    )
    template = Template(source, name="sometimes")
    jobs = [Job([{"role": "user", "content": text}]) for text in ("one", "bomb", "two", "three")]
    first, bomb, second, third = template.render_many(jobs)
    assert isinstance(bomb, RenderError) and bomb.code == "TM922" and "CPU" in bomb.what
    assert [each.text for each in (first, second, third) if not isinstance(each, RenderError)] == [
        "one",
        "two",
        "three",
    ]


def test_a_worker_that_was_killed_from_outside_costs_one_coded_error() -> None:
    template = Template("{{ messages[0].content }}!", name="plain")
    process = shared_worker()._process
    assert process is not None
    process.kill()
    process.wait()
    assert template.render(CHAT).text == "hello world!"


def test_a_worker_cannot_write_files() -> None:
    code = (
        "from tracemask.render.worker import bound_process\n"
        "bound_process()\n"
        "try:\n"
        "    open('/dev/shm/tracemask-must-not-exist', 'wb', buffering=0).write(b'x')\n"
        "    raise SystemExit('wrote')\n"
        "except OSError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    if os.path.exists("/dev/shm/tracemask-must-not-exist"):
        os.remove("/dev/shm/tracemask-must-not-exist")
    assert "wrote" not in done.stderr
    assert done.stdout == "refused\n" or done.returncode < 0  # an error, or the kernel's signal


def test_a_worker_holds_less_memory_than_its_limit() -> None:
    own = Worker()
    try:
        own.check("k", ("{{ 'a' * 9999999 }}", "big", {}, "2026-01-01"))
        outcomes = own.render("k", ("{{ 'a' * 9999999 }}", "big", {}, "2026-01-01"), [([], None, False, None)])
        assert not isinstance(outcomes[0], RenderError) and len(outcomes[0].text) == 9999999
        assert own._process is not None
        with open(f"/proc/{own._process.pid}/status") as status:
            peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmPeak"))
        assert peak <= worker.MEMORY
    finally:
        own.close()


@pytest.mark.parametrize("sandbox", ["inline", "worker"])
def test_a_conversation_beyond_the_limit_is_not_blamed_on_the_template(sandbox: Any) -> None:
    source = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"
    long = [{"role": "tool", "content": "x" * (MAX_CHARS + 1)}]
    with pytest.raises(RenderError, match=rf"TM922.*says {MAX_CHARS + 5} characters itself: shorten it"):
        Template(source, sandbox=sandbox).render(long)
    with pytest.raises(RenderError, match="TM922.*do not trust it"):
        Template("{{ 'x' * 99999999 }}", sandbox=sandbox).render(long[:0])
