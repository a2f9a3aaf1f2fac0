"""Tokenizers of every kind: bytes, fingerprints, stops, control tokens, backends held to each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from render_tools import SMALL, same, small, text_of

from tracemask.core.errors import RenderError, UsageError
from tracemask.core.vocab import Author, Part
from tracemask.render.backends.probes import PROBES
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer
from tracemask.trace.model import Trace

REAL = ("qwen3", "llama3_1", "deepseek_v3", "gemma3", "gptoss")
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "How deep is the harbour — and the café's cellar, 東京?\n\n  Say it\tin metres."},
    {"role": "assistant", "content": "It is 12.5 m deep;\n the cellar 3 m. Ελλάδα 👩‍👩‍👧"},
    {"role": "user", "content": "x = {'a': [1, 2]}  # e\u0301 combined"},
    {"role": "assistant", "content": "def f():\n\treturn 'ok'"},
]


@cache
def loaded(folder: Path, backend: str = "auto") -> Tokenizer:
    return Tokenizer.load(folder, backend=backend)


def front(tokenizer: Tokenizer, template: str | None = None) -> Renderer:
    source = template or tokenizer.chat_template
    assert source is not None
    return Renderer(tokenizer, Template(source, tokens=tokenizer.token_strings, sandbox="inline"))


# ------------------------------------------------------------------ small


def test_the_small_tokenizer_is_what_its_script_writes() -> None:
    import runpy

    script = runpy.run_path(str(SMALL.parent.parent / "make_tokenizer.py"))
    assert script["main"](["--check"]) == 0


def test_padding_truncation_and_key_order_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    source = json.loads((SMALL / "tokenizer.json").read_text(encoding="utf-8"))
    changed = dict(reversed(source.items()))
    changed["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                          "pad_type_id": 0, "pad_token": "<|endoftext|>"}  # fmt: skip
    changed["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed), encoding="utf-8")
    other = Tokenizer.load(tmp_path / "tokenizer.json")
    assert other.sha256 == small().sha256
    text = "Which colour is the sky?"
    assert other.encode(text) == small().encode(text), "neither padded nor cut"
    source["model"]["merges"] = [
        " ".join(merge) if isinstance(merge, list) else merge for merge in source["model"]["merges"]
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    assert Tokenizer.load(tmp_path).sha256 == small().sha256, "merges as strings or as pairs"
    source["model"]["merges"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    assert Tokenizer.load(tmp_path).sha256 != small().sha256


def test_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    with pytest.raises(RenderError, match=rf"id {small().size}.*TM201"):
        small().id_bytes(small().size)
    with pytest.raises(RenderError, match="TM201"):
        small().decode_bytes([-1])


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TM901"):
        Tokenizer.load(tmp_path)
    with pytest.raises(UsageError, match="gigatoken"):
        Tokenizer.load(SMALL, backend="gigatokn")
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(RenderError, match="TM923"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}}}', encoding="utf-8")
    with pytest.raises(RenderError, match="TM923"):
        Tokenizer.load(tmp_path).encode("x")


def test_stops_come_from_the_generation_configuration_too(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((SMALL / name).read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2039, 2041]}', encoding="utf-8")
    assert Tokenizer.load(tmp_path).stop_ids == {2039, 2041}
    assert small().stop_ids == {2041}


def test_control_text_can_be_encoded_as_text() -> None:
    ids = small().encode("<|im_end|><think>", control="text")
    assert small().id_of("<|im_end|>") not in ids and small().id_of("<think>") in ids
    assert small().decode_bytes(ids) == b"<|im_end|><think>"
    assert not set(small().plain_batch(["<|im_end|><think>"])[0]) & set(small().added)


# ------------------------------------------------------------------ backends


def test_a_backend_that_disagrees_is_refused_and_the_other_named() -> None:
    pytest.importorskip("gigatoken")
    import awkward

    backend = Tokenizer.load(SMALL, backend="gigatoken").engine

    class Wrong:
        def encode_batch(self, texts: list[str], parallel: bool) -> Any:
            return awkward.Array([[1] for _ in texts])

    backend._tokenizer = Wrong()  # type: ignore[attr-defined]
    with pytest.raises(RenderError, match="TM923.*gigatoken.*backend='tokenizers'"):
        backend.encode_batch(["hello there"] * 300)


def test_every_backend_is_asked_for_by_name() -> None:
    names = {name: Tokenizer.load(SMALL, backend=name).engine.name for name in ("auto", "tokenizers", "wordcache")}
    assert names == {"auto": "wordcache", "tokenizers": "tokenizers", "wordcache": "wordcache"}


@pytest.mark.real
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ("llama3_1", "gptoss") else name for name in REAL]
)
def test_gigatoken_gives_the_same_samples(
    name: str, real_tokenizer: Callable[[str], Path], real_templates: dict[str, str]
) -> None:
    pytest.importorskip("gigatoken")
    template = real_templates["gptoss"] if name == "gptoss" else None
    slow = front(loaded(real_tokenizer(name)), template)
    fast = front(Tokenizer.load(real_tokenizer(name), backend="gigatoken"), template)
    trace = Trace.from_messages(CHAT)
    assert same(slow.render(trace), fast.render(trace))
    assert slow.fingerprint == fast.fingerprint
    texts = [text for text in PROBES if text]
    assert fast.tokenizer.encode_batch(texts) == slow.tokenizer.encode_batch(texts)


# ------------------------------------------------------------------ real ones


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_bytes_of_ids_are_the_bytes_of_the_text(name: str, real_tokenizer: Callable[[str], Path]) -> None:
    tokenizer = loaded(real_tokenizer(name))
    for text in PROBES:
        ids = tokenizer.encode(text)
        if name != "qwen3" or "\u0301" not in text:
            assert tokenizer.decode_bytes(ids).decode() == text or "Å" in text
    assert tokenizer.size >= tokenizer.vocab_size
    assert tokenizer.size == max(max(tokenizer.json["model"]["vocab"].values()), max(tokenizer.added)) + 1


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3", "gemma3"])
def test_ids_equal_those_of_apply_chat_template(name: str, real_tokenizer: Callable[[str], Path]) -> None:
    """Where no reply begins with a newline and no content holds a control token."""
    from transformers import AutoTokenizer

    tokenizer = loaded(real_tokenizer(name))
    reference = AutoTokenizer.from_pretrained(real_tokenizer(name))
    expected = reference.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    rows = front(tokenizer).render(Trace.from_messages(CHAT))
    assert len(rows) == 1
    assert rows[0].token_ids.tolist() == list(expected)
    prompt = reference.apply_chat_template(CHAT[:3], tokenize=True, add_generation_prompt=True, return_dict=False)
    assert front(tokenizer).prompt_ids(CHAT[:3]) == list(prompt)


@pytest.mark.real
def test_llama_has_one_bos(real_tokenizer: Callable[[str], Path]) -> None:
    tokenizer = loaded(real_tokenizer("llama3_1"))
    (row,) = front(tokenizer).render(Trace.from_messages(CHAT))
    assert (row.token_ids == tokenizer.bos_id).sum() == 1 and row.part[0] == Part.BOS


@pytest.mark.real
def test_gemma_keeps_its_markup_tokens_and_guards_its_control_tokens(real_tokenizer: Callable[[str], Path]) -> None:
    tokenizer = loaded(real_tokenizer("gemma3"))
    renderer = front(tokenizer)
    text = "make <b>this</b> bold\n\nand <end_of_turn> plain <start_of_turn>model <bos>"
    (row,) = renderer.render(
        Trace.from_messages([{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}])
    )
    ids = row.token_ids.tolist()
    assert tokenizer.id_of("<b>") in ids and tokenizer.id_of("</b>") in ids and tokenizer.id_of("\n\n") in ids
    assert ids.count(tokenizer.id_of("<end_of_turn>")) == 2 and ids.count(tokenizer.id_of("<start_of_turn>")) == 2
    assert ids.count(tokenizer.bos_id) == 1
    content = row.author == Author.TASKSET
    assert tokenizer.decode_bytes(row.token_ids[content].tolist()).decode() == text
    assert sorted({finding.code for finding in row.findings}) == ["TM208"]


# ------------------------------------------------------------------ other kinds of vocabulary


def unigram(tmp_path: Path, **metaspace: Any) -> Tokenizer:
    """A SentencePiece-like Unigram whose normalizer changes the text."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Package

    package = Package(models.Unigram())
    package.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\t", " ")])
    package.pre_tokenizer = pre_tokenizers.Metaspace(**metaspace)
    package.decoder = decoders.Metaspace(**metaspace)
    lines = (SMALL.parent.parent / "make_tokenizer.py").read_text(encoding="utf-8").splitlines()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    package.train_from_iterator(lines, trainer)
    package.add_tokens(
        [AddedToken("<|user|>", special=True, normalized=False), AddedToken("<|bot|>", special=True, normalized=False)]
    )
    package.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>"}), encoding="utf-8"
    )
    return Tokenizer.load(tmp_path)


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% else %}<|bot|>{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)


@pytest.mark.parametrize("scheme", ["never", "first", "always"])
def test_a_unigram_vocabulary_is_labelled_by_offsets(scheme: str, tmp_path: Path) -> None:
    tokenizer = unigram(tmp_path, replacement="▁", prepend_scheme=scheme)
    assert not tokenizer.byte_level and tokenizer.prefix_sensitive == (scheme != "never")
    messages = [
        {"role": "user", "content": "Rain\tfell on the ﬁrst pier </s> at noon"},
        {"role": "assistant", "content": "Nobody had tied the small boat"},
    ]
    (row,) = front(tokenizer, TEMPLATE).render(Trace.from_messages(messages))
    ids = row.token_ids
    assert (ids == tokenizer.id_of("</s>")).sum() == 1 and row.sampled[-1] and ids[-1] == tokenizer.id_of("</s>")
    assert (ids == tokenizer.id_of("<s>")).sum() == 1
    sampled = tokenizer.decode_bytes(ids[row.sampled].tolist()).decode()
    assert sampled.strip() == "Nobody had tied the small boat</s>"
    asked = tokenizer.decode_bytes(ids[row.author == Author.TASKSET].tolist()).decode()
    assert "pier" in asked and "noon" in asked and "Nobody" not in asked
    assert (row.message[row.author == Author.TASKSET] == 0).all()
    assert np.array_equal(row.message[row.sampled], np.ones(int(row.sampled.sum())))


def test_a_template_whose_control_token_swallows_space_keeps_the_packages_ids(tmp_path: Path) -> None:
    source = json.loads((SMALL / "tokenizer.json").read_text(encoding="utf-8"))
    for entry in source["added_tokens"]:
        if entry["content"] == "<|im_end|>":
            entry["rstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_bytes((SMALL / "tokenizer_config.json").read_bytes())
    tokenizer = Tokenizer.load(tmp_path)
    renderer = front(tokenizer)
    (row,) = renderer.render(Trace.from_messages(CHAT))
    assert row.token_ids.tolist() == tokenizer.encode(renderer.render_text(CHAT).text)
    assert row.sampled[-1]


def test_reading_a_sample_back_gives_its_text() -> None:
    (row,) = front(small()).render(Trace.from_messages(CHAT[:2]))
    assert text_of(row).startswith("<|im_start|>user\nHow deep")
