"""The word cache gives the ids of the tokenizers package, for every character and every boundary that it knows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_tools import SMALL

from tracemask.core.errors import RenderError
from tracemask.render.backends import characters, probes, wordcache
from tracemask.render.backends.boundaries import Boundaries
from tracemask.render.backends.probes import PROBES
from tracemask.render.backends.tokenizers import Tokenizers
from tracemask.render.backends.wordcache import WordCache, asked, automatic
from tracemask.render.tokenizer import Tokenizer

REAL = ("qwen3", "llama3_1", "deepseek_v3", "gptoss", "smollm2")
FRAMES = ("a{c}b 1{c} {c}\n{c}{c} x{c}'S{c}s A{c}'re", " {c}\r\n\n {c}", "!{c}a", "B{c}C{c}d12345{c}6 {c}{c} {c}")
PIECES = [
    "a", "B", "z", "ſ", "K", "ß", "'s", "'S", "'ll", "'LL", "'re", "'", "’", " ", "  ", "\t", "\n",
    "\n\n", "\r\n", "\r", "\x0b", "\x1c", "\x1f", "\x85", "\xa0", "\u2028", "\u3000", "0", "7", "12",
    "1234", "½", "Ⅷ", "٣", "\u0301", "é", "中", "あ", "カ", "가", "!", "/", "//", "+", "€", "<", "<|", "|>",
    "_", "—", "✅", "🚀", "\x00", "\x7f", "\u200b", "\u200d", "\ufeff", "️", "ǅ", "ʰ", "ª", "ﬁ", "İ", "ı",
    "Å", "e\u0301", "<think>", "<|im_end|>", "</think>", "the", " of",
]  # fmt: skip


@cache
def loaded(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def cache_of(tokenizer: Tokenizer) -> WordCache:
    assert isinstance(tokenizer.engine, WordCache)
    return tokenizer.engine


def source(**changes: Any) -> dict[str, Any]:
    return {**json.loads((SMALL / "tokenizer.json").read_text(encoding="utf-8")), **changes}


def made(content: dict[str, Any]) -> WordCache:
    return asked(content, Tokenizers(json.dumps(content).encode()))


def agrees(tokenizer: Tokenizer, texts: list[str]) -> None:
    found, expected = cache_of(tokenizer).encode_batch(texts), tokenizer.reference.encode_batch(texts)
    assert [text for text, ours, theirs in zip(texts, found, expected, strict=True) if ours != theirs] == []


# ------------------------------------------------------------------ the same ids


@pytest.mark.parametrize("frame", FRAMES)
def test_every_stable_character_at_every_kind_of_boundary(frame: str) -> None:
    agrees(loaded(SMALL), [frame.replace("{c}", character) for character in characters.stable()])


@pytest.mark.real
@pytest.mark.parametrize("name", [name if name == "deepseek_v3" else pytest.param(name, marks=pytest.mark.slow)
                                  for name in REAL])  # fmt: skip
def test_every_stable_character_in_a_real_tokenizer(
    name: str, real_tokenizer: Callable[[str], Path], smollm2: Path
) -> None:
    tokenizer = loaded(smollm2 if name == "smollm2" else real_tokenizer(name))
    known = [character for character in characters.stable() if cache_of(tokenizer)._boundaries.covers(character)]
    assert len(known) > 50_000
    for frame in FRAMES:
        agrees(tokenizer, [frame.replace("{c}", character) for character in known])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=24).map("".join), min_size=1, max_size=20))
def test_any_mixture_of_odd_pieces(texts: list[str]) -> None:
    agrees(loaded(SMALL), texts)


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=24).map("".join), min_size=1, max_size=30))
def test_any_mixture_of_odd_pieces_in_a_real_tokenizer(
    name: str, texts: list[str], real_tokenizer: Callable[[str], Path], smollm2: Path
) -> None:
    tokenizer = loaded(smollm2 if name == "smollm2" else real_tokenizer(name))
    agrees(tokenizer, [*texts, *PROBES])


def test_ordinary_text_takes_the_short_way() -> None:
    boundaries = cache_of(loaded(SMALL))._boundaries
    for text in ("The harbour's depth: 12 m.\n", "naïve — “quoted” … Ελλάδα Москва 東京 ✅ 🚀", "x\ty\r\n\r\n"):
        assert boundaries.covers(text)
    for text in ("a <|im_end|>", "<think>", "e\u0301", "ſ", "\U00016a40", "\ue000"):
        assert not boundaries.covers(text)


def test_forgetting_words_changes_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordcache, "WORDS", 20)
    cached = made(source())
    texts = [f"the harbour is {index} metres deep, said no. {index}" for index in range(200)]
    assert cached.encode_batch(texts) == loaded(SMALL).reference.encode_batch(texts)
    assert len(cached._words) <= 20


def test_long_words_are_not_kept() -> None:
    cached = made(source())
    before = len(cached._words)
    assert cached.encode_batch(["q" * 300]) == loaded(SMALL).reference.encode_batch(["q" * 300])
    assert len(cached._words) == before


def test_no_text_gives_no_ids() -> None:
    flat, counts = made(source()).encode_flat([])
    assert len(flat) == len(counts) == 0
    assert made(source()).encode_batch(["", "a", ""])[::2] == [[], []]


added_texts = st.lists(st.text("ab<|é", min_size=1, max_size=6), min_size=1, max_size=12)


@settings(deadline=None)
@given(added_texts, st.text("ab<|é", max_size=8))
def test_a_text_with_any_added_token_is_found(contents: list[str], text: str) -> None:
    added = [{"content": content} for content in contents]
    boundaries = Boundaries(source(added_tokens=added, normalizer=None))
    assert boundaries.covers(text) is not any(content in text for content in contents)


def test_thousands_of_added_tokens_cost_a_text_nothing() -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    more = [{"id": 3000 + k, "content": f"<|reserved_{k}|>", **flags} for k in range(5000)]
    cached, text = (
        made(source(added_tokens=source()["added_tokens"] + more)),
        "<div class='a'><p>so</p></div> <|\n" * 3000,
    )
    taken: dict[str, float] = {}
    for backend in (cached, cached._reference):
        backend.encode_flat([text])
        start = time.process_time()
        backend.encode_flat([text])
        taken[backend.name] = time.process_time() - start
    assert taken["wordcache"] < 2 * taken["tokenizers"]  # one after the other they took twenty times as long


# ------------------------------------------------------------------ tokenizers that it does not know

LAST = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def cut_by(*parts: dict[str, Any]) -> dict[str, Any]:
    return source(pre_tokenizer={"type": "Sequence", "pretokenizers": [*parts, LAST]})


def split(**changes: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": r"\s+|\S+"}, "behavior": "Isolated", "invert": False, **changes}


def model(**changes: Any) -> dict[str, Any]:
    return source(model={**source()["model"], **changes})


TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def written(single: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [TEXT, TEXT], "special_tokens": {}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (cut_by(split(pattern={"String": " "})), "a Split at a fixed text"),
        (cut_by(split(behavior="Removed")), "the pre-tokenizer Split"),
        (cut_by(split(behavior="MergedWithNext", invert=True)), "the pre-tokenizer Split"),
        (cut_by(split(pattern={"Regex": r"\p{Han}+|\P{Han}"})), "Han"),
        (cut_by({"type": "WhitespaceSplit"}), "WhitespaceSplit"),
        (cut_by(), "no pattern"),
        (source(pre_tokenizer=None), "does not end with ByteLevel"),
        (source(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}), "ByteLevel"),
        (source(normalizer={"type": "NFKC"}), "NFKC"),
        (source(normalizer={"type": "Lowercase"}), "Lowercase"),
        (model(dropout=0.1), "dropout"),
        (model(unk_token="<nothing>"), "an unk_token without an id"),
        (model(type="WordLevel", unk_token="<nothing>"), "the model WordLevel"),
        (
            model(type="WordPiece", unk_token="[NONE]", continuing_subword_prefix="##", max_input_chars_per_word=9),
            "WordPiece",
        ),
        (source(post_processor=written([TEXT, TEXT])), "a template"),
        (source(post_processor={"type": "Sequence", "processors": [LAST, written([])]}), "a template"),
    ],
)
def test_an_unknown_tokenizer_is_encoded_by_the_reference(content: dict[str, Any], why: str) -> None:
    reference = Tokenizers(json.dumps(content).encode())
    assert automatic(content, reference) is reference
    with pytest.raises(RenderError, match=f"TM923.*{why}.*backend='tokenizers'"):
        asked(content, reference)


@pytest.mark.parametrize(
    "content",
    [
        cut_by(split()),
        cut_by(split(invert=True)),
        cut_by(split(behavior="Removed", invert=True)),
        cut_by(split(pattern={"Regex": r"[一-龥]+|\p{L}+"}, behavior="Removed", invert=True), split()),
        cut_by(split(pattern={"Regex": "[一-龥]+"}, behavior="Removed", invert=True)),
        cut_by({"type": "Digits", "individual_digits": True}, split()),
        cut_by({"type": "Digits", "individual_digits": False}, split()),
        cut_by(split(pattern={"Regex": r"\p{N}{1,3}"}), split(pattern={"Regex": "[一-龥]+"}), split()),
        source(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}),
        source(normalizer=None, added_tokens=[]),
        source(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
        source(post_processor=written([TEXT])),
        source(model={key: value for key, value in source()["model"].items() if key != "type"}),
        model(ignore_merges=True),
        model(unk_token="!", vocab={k: v for k, v in source()["model"]["vocab"].items() if k != "q"}, merges=[]),
    ],
)
def test_every_known_form_of_boundary_agrees(content: dict[str, Any]) -> None:
    cached = made(content)
    texts = ["".join(PIECES[first::step]) for step in range(1, 9) for first in range(step)]
    texts += ["1234567 12,5 ١٢٣ Ⅷ½²", "中文 1中2", "x" * 70 + "1" * 70]
    assert cached.encode_batch(texts) == cached._reference.encode_batch(texts)


def test_asking_for_the_package_switches_the_cache_off_everywhere() -> None:
    tokenizer = Tokenizer.load(SMALL, backend="tokenizers")
    assert isinstance(tokenizer.engine, Tokenizers)
    assert isinstance(tokenizer.plain, Tokenizers)
    assert isinstance(loaded(SMALL).plain, WordCache)


def test_a_word_cache_that_disagrees_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "CHECK_EVERY", 1)
    cached = made(source())
    cached._words["harbour"] = cached._words["the"]
    with pytest.raises(RenderError, match="TM923.*wordcache.*backend='tokenizers'"):
        cached.encode_batch(["harbour"])
