"""Split patterns translated for `re` cut as the tokenizers package cuts; what is not certain is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tracemask.render.backends import characters
from tracemask.render.backends.patterns import Pattern, Unsupported

KINDS = [r"\p{L}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{M}", r"\p{Lu}", r"\p{Ll}", r"\p{Lm}", r"\p{Nd}", r"\p{Zs}", r"\s"]
LITERALS = ["a", "S", "'", " ", r"\r", r"\n", "\n", r"\-", "/", "!", r"\[", "é", "中", "0", "-", "<", "~", ",", r"\t"]
MEMBERS = [*KINDS, *LITERALS, "a-z", "A-Z", "0-9", "一-龥", r"\t-\r"]
FOLDED = ["(?i:'s)", "(?i:[sk]|ss)", "(?i:'s|'ll|'re)", "(?i:ss|k)"]
REPEATS = ["", "", "?", "*", "+", "{1,3}", "{2}", "+?", "??", "++", "?+"]
TEXTS = ["a", "z", "S", "s", "k", "K", "ss", "'s", "'LL", "'", " ", "  ", "\t", "\n", "\r\n", "0", "12", "1234",
         "½", "é", "中", "あ", "!", "/", "-", "[", "<", "~", ",", "\u0301", "\xa0", "\u3000", "…", "ʰ", "Ǆ",
         "🚀"]  # fmt: skip

classes = st.builds(
    lambda negated, members: f"[{'^' * negated}{''.join(members)}]",
    st.booleans(),
    st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=4),
)
atoms = st.one_of(classes, st.sampled_from([*KINDS, r"\S", *LITERALS]))
looks = st.sampled_from([r"(?!\S)", r"(?=\s)", r"(?![\r\n])"])
sequences = st.builds(
    lambda pieces, end: "".join(atom + repeat for atom, repeat in pieces) + end,
    st.lists(st.tuples(st.one_of(atoms, st.sampled_from(FOLDED)), st.sampled_from(REPEATS)), min_size=1, max_size=4),
    st.one_of(st.just(""), looks),
)
patterns = st.lists(sequences, min_size=1, max_size=3).map("|".join)
texts = st.lists(st.sampled_from([*TEXTS, *list(characters.stable())[::997]]), max_size=16).map("".join)


@settings(max_examples=300, deadline=None)
@given(patterns, st.lists(texts, min_size=1, max_size=6))
def test_a_translated_pattern_cuts_as_the_package_does(pattern: str, found: list[str]) -> None:
    try:
        cut = re.compile(f"({Pattern(pattern).source})")
    except Unsupported:
        assume(False)
        raise
    package = pre_tokenizers.Split(Regex(pattern), "isolated")
    for text in found:
        assert [word for word in cut.split(text) if word] == [word for word, _ in package.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "pattern",
    [
        ".", "^a", "a$", "a}", "]", "a{,3}", r"\d+", r"\w+", r"\bx", r"\pL", r"\p{Han}", r"\p{^L}", r"\P{L}",
        r"[\P{L}]", r"[\S]", "[a[bc]]", "[a&&b]", "[]a]", "[z-a]", r"[\p{L}-a]", "(a)", "(?<=a)b", "(?>a)", "(?m:a)",
        "(?i:é)", "(?i:[a-c])", "(?i:[^a])", "(?i:a[b])", "(?i:[a]b)", r"(?i:\s)", r"(?i:\p{L})",
        "(?i:a+)", "(?i:(?:a))", "a{1,3}+", "a{2}?", "a{3,1}", "a**", "a+{2}", "(?!a)+", "a?",
        "a|b*", "(?!a)", "a)", "(?:a", "[a", "\\", "a" * 1001, "a{1001}",
    ],
)  # fmt: skip
def test_what_the_two_languages_may_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(Unsupported):
        Pattern(pattern)


def test_every_white_space_character_is_stable() -> None:
    assert set(characters.stable()) >= characters.WHITE_SPACE
    package = pre_tokenizers.Split(Regex(r"\s+"), "isolated")
    joined = [word for word, _ in package.pre_tokenize_str("".join(f"x{c}x" for c in characters.stable()))]
    assert {c for word in joined if "x" not in word for c in word} == characters.WHITE_SPACE


@pytest.mark.parametrize("kind", sorted(kind for kind in characters.kinds() if kind[0] != "C"))
def test_a_kind_holds_the_same_characters_as_in_the_package(kind: str) -> None:
    ours = {c for c, found in characters.stable().items() if found.startswith(kind)}
    package = pre_tokenizers.Split(Regex(f"\\p{{{kind}}}"), "removed")
    every = "".join(characters.stable())
    left = {c for word, _ in package.pre_tokenize_str(every) for c in word}
    assert set(every) - left == ours
