"""Small precise cases on real templates: text and ids, or what an error must name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tracemask.core.errors import RenderError
from tracemask.render.template import Template

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "cases" / "render_text" / "texts.json").read_text(encoding="utf-8")
)
pytestmark = pytest.mark.real


@lru_cache(maxsize=8)
def template_of(folder: Path) -> Template:
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    bos = config.get("bos_token")
    tokens = {} if bos is None else {"bos_token": bos if isinstance(bos, str) else bos["content"]}
    return Template(config["chat_template"], name=folder.name, tokens=tokens)


@lru_cache(maxsize=8)
def vocabulary_of(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("case", [case for case in CASES if "text" in case], ids=lambda case: case["name"])
def test_a_case_renders_to_its_text_and_ids(case: dict[str, Any], real_tokenizer: Callable[[str], Path]) -> None:
    folder = real_tokenizer(case["tokenizer"])
    rendered = template_of(folder).render(case["messages"], tools=case.get("tools"))
    assert rendered.text == case["text"], case["fact"]
    assert list(rendered.empty_content) == case.get("empty", []), case["fact"]
    assert list(rendered.null_content) == case.get("null", []), case["fact"]
    assert list(rendered.other_arguments) == case.get("other_arguments", []), case["fact"]
    if "ids" in case:
        assert vocabulary_of(folder).encode(rendered.text, add_special_tokens=False).ids == case["ids"], case["fact"]


@pytest.mark.parametrize("case", [case for case in CASES if "refused" in case], ids=lambda case: case["name"])
def test_a_refusal_names_what_the_case_names(case: dict[str, Any], real_tokenizer: Callable[[str], Path]) -> None:
    with pytest.raises(RenderError) as caught:
        template_of(real_tokenizer(case["tokenizer"])).render(case["messages"])
    for name in case["refused"]:
        assert name in str(caught.value), case["fact"]
