"""A conversation of no messages is refused where it is made, as in a log; one built by hand where it is rendered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracemask.core.errors import RenderError, TraceError
from tracemask.render.renderer import Renderer
from tracemask.trace import read_traces
from tracemask.trace.model import Trace

SMALL = Path(__file__).resolve().parents[2] / "fixtures" / "tokenizers" / "small"


def test_no_messages_are_the_same_fault_from_python_and_from_a_log(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no messages") as caught:
        Trace.from_messages([], id="t")
    log = tmp_path / "log.jsonl"
    log.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n{"messages": []}\n')
    reading = read_traces(str(log))
    assert [len(trace.messages) for trace in reading] == [1]
    assert [caught.value.code] == [error.code for error in reading.skipped] == ["TM911"]


def test_a_trace_without_messages_does_not_render_to_nothing_in_silence() -> None:
    with pytest.raises(RenderError, match="trace t") as caught:
        Renderer(SMALL).render_many(
            [Trace.from_messages([{"role": "user", "content": "hi"}]), Trace(id="t", messages=[])]
        )
    assert caught.value.code == "TM904"
