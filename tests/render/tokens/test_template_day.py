"""The day that templates print: pinned unless named, by an ISO date; part of the fingerprint."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import pytest
from render_tools import SMALL, small, text_of

from tracemask.check.config import Settings
from tracemask.check.sources import check_paths
from tracemask.core.errors import UsageError
from tracemask.render.renderer import Renderer
from tracemask.render.template import PINNED_DATE, Template
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.reader import open_dataset
from tracemask.trace.model import Trace
from tracemask_cli.main import main

DATED = (
    "<|im_start|>system\nToday is {{ strftime_now('%Y-%m-%d') }}.<|im_end|>\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


def printed(renderer: Renderer) -> str:
    (sample,) = renderer.render(Trace.from_messages(MESSAGES))
    return text_of(sample).partition("Today is ")[2][:10]


def test_a_named_day_is_printed_and_the_pinned_one_stays_the_default() -> None:
    assert printed(Renderer(small(), DATED)) == PINNED_DATE.isoformat() == "2026-01-01"
    assert printed(Renderer(small(), DATED, date="2026-08-01")) == "2026-08-01"
    assert printed(Renderer(small(), DATED, date=date(2025, 2, 3))) == "2025-02-03"


def test_a_named_day_wins_over_that_of_a_template_and_without_one_the_template_keeps_its_own() -> None:
    own = Template(DATED, tokens=small().token_strings, date=date(2024, 7, 26), sandbox="inline")
    assert printed(Renderer(small(), own)) == "2024-07-26"
    assert printed(Renderer(small(), own, date="2026-08-01")) == "2026-08-01"
    assert own.date == date(2024, 7, 26)


def test_the_day_is_part_of_the_fingerprint() -> None:
    plain, named = Renderer(small(), DATED), Renderer(small(), DATED, date="2026-08-01")
    assert plain.fingerprint != named.fingerprint
    assert plain.fingerprint == Renderer(small(), DATED, date="2026-01-01").fingerprint


@pytest.mark.parametrize("day", ["yesterday", "2026-13-01", "01.08.2026", ""])
def test_what_is_no_iso_date_is_a_bad_option(day: str) -> None:
    with pytest.raises(UsageError) as caught:
        Renderer(small(), DATED, date=day)
    assert caught.value.code == "TM900" and "2026-08-01" in caught.value.fix


def test_convert_renders_on_the_named_day_and_check_can_be_told_it(tmp_path: Path) -> None:
    log, template = tmp_path / "log.jsonl", tmp_path / "dated.jinja"
    log.write_text(json.dumps({"messages": MESSAGES}))
    template.write_text(DATED)
    render = RenderConfig(str(SMALL), template=DATED, date="2026-08-01")
    convert(str(log), str(tmp_path / "out"), render=render)
    (row,) = open_dataset(str(tmp_path / "out"))
    assert "Today is 2026-08-01." in small().decode_bytes(row["token_ids"].tolist()).decode()
    settings = Settings(tokenizer=str(SMALL), template=str(template), date="2026-08-01")
    for path in (log, tmp_path / "out"):
        assert check_paths([str(path)], settings=settings).exit_code == 0
    with pytest.raises(UsageError):
        check_paths([str(log)], settings=Settings(tokenizer=str(SMALL), template=str(template), date="soon"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["tracemask", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_line_takes_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, template = tmp_path / "log.jsonl", tmp_path / "dated.jinja"
    log.write_text(json.dumps({"messages": MESSAGES}))
    template.write_text(DATED)
    common = ["--tokenizer", SMALL, "--template", template, "--date", "2026-08-01"]
    assert run(monkeypatch, "convert", log, "-o", tmp_path / "out", *common) == 0
    (row,) = open_dataset(str(tmp_path / "out"))
    assert "Today is 2026-08-01." in small().decode_bytes(row["token_ids"].tolist()).decode()
    assert run(monkeypatch, "check", tmp_path / "out", *common) == 0
