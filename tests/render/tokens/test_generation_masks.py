"""Our sampled regions against the {% generation %} blocks of trl's training templates: every difference is explained.

`python tests/render/tokens/test_generation_masks.py --write` writes the golden file anew; an unexplained difference is
written with an empty reason, which the test refuses.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from render_corpus import KINDS, tokenizer_for

from tracemask.core.errors import RenderError
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.trace.model import Trace

GOLDEN = Path(__file__).resolve().parents[3] / "fixtures" / "golden" / "generation_masks.json"
pytestmark = pytest.mark.real

HEADER = r"<\|start\|>assistant|<｜Assistant｜>|<｜tool▁outputs▁end｜>"
REASONS: tuple[tuple[str, str, str], ...] = (
    # who has more, what (whole match), why
    ("theirs", r"\n", "theirs trains the newline after the stop or the header, which the template writes"),
    ("theirs", HEADER, "theirs trains the header, which is the generation prompt"),
    ("theirs", r"<think>\n?", "theirs trains the opener that the generation prompt prefills"),
    ("theirs", r"<｜Assistant｜><think>\n", "theirs trains the header and the opener, which are the generation prompt"),
    (
        "theirs",
        r"\n?<think>(?:\n\n)?</think>(?:\n|\n\n)?",
        "theirs trains the empty block that the template inserts or prefills",
    ),
    ("theirs", r"<\|end\|>(?:<\|start\|>assistant)?", "theirs trains <|end|>, written in history for <|return|>"),
    ("theirs", r"<\|END_OF_TURN_TOKEN\|>", "theirs trains a second stop"),
    ("theirs", r"\n<\|endoftext\|>", "theirs trains what the template appends after the stop"),
    ("ours", r"<\|tool_response>", "theirs leaves out the opener of the tool's answer, the stop of a Gemma 4 call"),
    ("ours", r"<\|tool_response>response:probe", "content printed behind the tool's answer: TM317, not trainable"),
    ("theirs", "AAA1", "content printed behind the tool's answer: no engine saw the reply so, ours trains none of it"),
)  # fmt: skip


def differences(name: str, source: str) -> Counter[tuple[str, str, str]]:
    """(kind of conversation, who trains it, text) → how often, over all kinds that the template accepts."""
    tokenizer = tokenizer_for(name, source)
    template = Template(source, name=name, tokens=tokenizer.token_strings, sandbox="inline")
    renderer = Renderer(tokenizer, template, history="as_rendered")
    found: Counter[tuple[str, str, str]] = Counter()
    for kind, (messages, tools, kwargs) in KINDS.items():
        try:
            plan = renderer.plan(Trace.from_messages(messages, tools, template_kwargs=kwargs))[0]
        except RenderError:
            continue
        base = plan.bases[len(messages)]
        ours = {at for region in base.regions.values() for at in range(region.start, region.end)}
        theirs = {at for start, end in base.layout.rendered.generation for at in range(start, end)}
        for who, more in (("ours", ours - theirs), ("theirs", theirs - ours)):
            for start, end in stretches(more):
                found[(kind, who, base.layout.text[start:end])] += 1
    return found


def stretches(positions: set[int]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for at in sorted(positions):
        if out and out[-1][1] == at:
            out[-1] = (out[-1][0], at + 1)
        else:
            out.append((at, at + 1))
    return out


def explained(templates: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The golden file's content."""
    table: dict[str, list[dict[str, Any]]] = {}
    for name, source in templates.items():
        if not name.endswith("_training"):
            continue
        groups: dict[tuple[str, str], Counter[str]] = {}
        for (kind, who, text), count in sorted(differences(name, source).items()):
            groups.setdefault((who, text), Counter())[kind] += count
        table[name] = [
            {"more": who, "text": text, "why": reason(who, text), "in": dict(sorted(kinds.items()))}
            for (who, text), kinds in sorted(groups.items())
        ]
    return table


def reason(who: str, text: str) -> str:
    return next((why for side, pattern, why in REASONS if side == who and re.fullmatch(pattern, text)), "")


def test_every_difference_from_generation_blocks_is_explained(real_templates: dict[str, str]) -> None:
    found = explained(real_templates)
    assert len(found) == 31
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))
    unexplained = [(name, entry) for name, entries in found.items() for entry in entries if not entry["why"]]
    assert not unexplained


def main() -> None:
    folder = Path(__file__).resolve().parents[3] / "fixtures" / ".cache" / "templates"
    templates = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    text = json.dumps(explained(templates), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(text, encoding="utf-8")


if __name__ == "__main__" and "--write" in sys.argv:
    main()
