"""Text: every str method gives str's characters and keeps each character's origin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracemask.core.vocab import Origin
from tracemask.render.fields import Record, wrap, wrap_message
from tracemask.render.formatting import TextFormatter, printf
from tracemask.render.json_spelling import json_text
from tracemask.render.markup import Safe, mark_safe
from tracemask.render.provenance import Text, cat, plain, sub, tagged
from tracemask.render.spelling import representation, text_of
from tracemask.render.tags import MAX_CHARS, LimitExceeded, Tag, Untraceable

# Characters of field n come from alphabet n alone, so that every character names its field.
ALPHABETS = ("abĉ \n", "DEŠ\t,", "019<>&", "xyß-")
TAGS = [Tag(index, Origin.CONTENT, ("content",)) for index in range(len(ALPHABETS))]
OWNER = {character: index for index, letters in enumerate(ALPHABETS) for character in letters}

piece = st.integers(0, 3).flatmap(lambda n: st.text(ALPHABETS[n], max_size=5).map(lambda text: tagged(text, TAGS[n])))
texts = st.lists(piece, min_size=1, max_size=4).map(lambda parts: cat([*parts, tagged("", TAGS[0])]))
separators = st.sampled_from([" ", "a", ",", "b\n", "0", "xy", "DE"])
widths = st.integers(-2, 30)
quick = settings(max_examples=60, derandomize=True, deadline=None)


def origins(text: str) -> list[Tag | None]:
    """The tag of each character."""
    runs = text._runs if isinstance(text, Text) else ((len(text), None),)
    spread = [tag for length, tag in runs for _ in range(length)]
    assert len(spread) == len(text), "runs must cover the text"
    return spread


def follows(text: str, *, folded: bool = False) -> None:
    """Every character that has a tag has that of its alphabet."""
    for character, tag in zip(plain(text), origins(text), strict=True):
        if tag is not None:
            candidates = (
                {character, character.lower(), character.upper(), character.swapcase()} if folded else {character}
            )
            owners = {OWNER[each] for each in candidates if each in OWNER}
            assert not owners or tag.source in owners or character in "sS", (text, character, tag)


def same(result: Any, expected: Any, *, folded: bool = False) -> None:
    """Equal to what str gives, with the right origins."""
    if isinstance(expected, (list, tuple)):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            same(one, other, folded=folded)
        return
    assert plain(result) == expected
    follows(result, folded=folded)


@quick
@given(texts, separators, st.integers(-1, 3))
def test_splits_are_those_of_str_and_keep_origins(text: Text, sep: str, limit: int) -> None:
    raw = plain(text)
    same(text.split(sep, limit), raw.split(sep, limit))
    same(text.rsplit(sep, limit), raw.rsplit(sep, limit))
    same(text.split(None, limit), raw.split(None, limit))
    same(text.rsplit(None, limit), raw.rsplit(None, limit))
    same(text.splitlines(), raw.splitlines())
    same(text.splitlines(True), raw.splitlines(True))
    same(text.partition(sep), raw.partition(sep))
    same(text.rpartition(sep), raw.rpartition(sep))


@quick
@given(texts, separators, texts, st.integers(-1, 3))
def test_replace_and_join_keep_the_origins_of_all_their_arguments(text: Text, old: str, new: Text, limit: int) -> None:
    raw = plain(text)
    same(text.replace(old, new, limit), raw.replace(old, plain(new), limit))
    same(text.replace("", new, limit), raw.replace("", plain(new), limit))
    same(text[1:2].replace("", new, limit), raw[1:2].replace("", plain(new), limit))
    for wrong in ((None, new), (old, None), (1, 1), ("", 2)):
        with pytest.raises(TypeError):
            text.replace(*wrong)  # type: ignore[arg-type]
    same(text.join([new, text, "lit"]), raw.join([plain(new), raw, "lit"]))


@quick
@given(texts, st.one_of(st.none(), st.sampled_from([" ", "ab", "\n\t "])))
def test_strips_are_those_of_str(text: Text, chars: str | None) -> None:
    raw = plain(text)
    same(text.strip(chars), raw.strip(chars))
    same(text.lstrip(chars), raw.lstrip(chars))
    same(text.rstrip(chars), raw.rstrip(chars))
    same(text.removeprefix(raw[:2]), raw.removeprefix(raw[:2]))
    same(text.removesuffix(raw[-2:]), raw.removesuffix(raw[-2:]))


@quick
@given(texts, st.integers(-8, 8), st.integers(-8, 8), st.sampled_from([None, 1, 2, -1, -2]))
def test_slices_indices_and_iteration_are_those_of_str(text: Text, start: int, stop: int, step: int | None) -> None:
    raw = plain(text)
    same(text[start:stop:step], raw[start:stop:step])
    same(list(text), list(raw))
    same(list(reversed(text)), list(reversed(raw)))
    if -len(raw) <= start < len(raw):
        same(text[start], raw[start])
    else:
        with pytest.raises(IndexError):
            text[start]


@quick
@given(texts, widths, st.sampled_from([" ", "*", "a"]))
def test_padding_is_literal_and_the_text_keeps_its_origins(text: Text, width: int, fill: str) -> None:
    raw = plain(text)
    for name in ("center", "ljust", "rjust"):
        padded = getattr(text, name)(width, fill)
        assert plain(padded) == getattr(raw, name)(width, fill)
        assert sum(tag is not None for tag in origins(padded)) == len(raw)
    assert plain(text.zfill(width)) == raw.zfill(width)
    assert plain(tagged("-5", TAGS[2]).zfill(6)) == "-00005"


@quick
@given(texts)
def test_changes_of_letter_case_keep_origins_or_are_refused(text: Text) -> None:
    raw = plain(text)
    for name in ("upper", "lower", "swapcase", "casefold", "title", "capitalize"):
        try:
            changed = getattr(text, name)()
        except Untraceable:
            assert len(text._runs) > 1
            continue
        same(changed, getattr(raw, name)(), folded=True)


@quick
@given(texts, texts, st.integers(0, 4))
def test_sums_and_repeats_are_those_of_str(text: Text, other: Text, count: int) -> None:
    same(text + other, plain(text) + plain(other))
    same("lit" + text + "lit", "lit" + plain(text) + "lit")
    same(text * count, plain(text) * count)
    same(count * text, count * plain(text))


@quick
@given(texts, texts)
def test_printf_and_format_follow_each_argument(text: Text, other: Text) -> None:
    raw, second = plain(text), plain(other)
    spec, named, plain_named = "[%s|%9s|%-9s|%.3s|%%|%r]", "%(a)s %(b)5s", "{a}{b}"
    same(printf(spec, (text, other, text, other, 5)), spec % (raw, second, raw, second, 5))
    same(printf(named, {"a": text, "b": other}), named % {"a": raw, "b": second})
    formatter = TextFormatter(lambda name, args, kwargs: args[int(name)] if name.isdigit() else kwargs[name])
    form = "{}|{:>9}|{:^9}|{:*<9}|{:.2}|{{}}|{!r}"
    same(formatter.spell(form, (text, other, text, other, text, 7), {}), form.format(raw, second, raw, second, raw, 7))
    same(formatter.spell(plain_named, (), {"a": text, "b": other}), plain_named.format(a=raw, b=second))


@quick
@given(texts, texts)
def test_json_and_repr_are_those_of_python(text: Text, other: Text) -> None:
    import json

    mixed = {"k": text, "l": [other, 1, None, True, {"m": text + other}], "e": [], "f": {}}
    raw = {"k": plain(text), "l": [plain(other), 1, None, True, {"m": plain(text) + plain(other)}], "e": [], "f": {}}
    for options in ({}, {"ensure_ascii": True}, {"indent": 2}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert plain(json_text(mixed, **options)) == json.dumps(raw, **{"ensure_ascii": False, **options})
    assert plain(representation(mixed)) == repr(raw)
    assert plain(representation((text,))) == repr((plain(text),))
    follows(json_text(mixed))


def test_a_field_spelled_as_json_belongs_to_the_field_whole() -> None:
    message = wrap_message({"role": "assistant", "tool_calls": [{"function": {"arguments": {"a": [1, "x"]}}}]}, 3)
    spelled = json_text(message["tool_calls"][0]["function"]["arguments"])
    assert isinstance(spelled, Text) and spelled == '{"a": [1, "x"]}'
    assert [tag.path for _, tag in spelled._runs] == [("tool_calls", 0, "function", "arguments")]


def test_origins_of_a_message_follow_its_field_names() -> None:
    message = wrap_message({"role": "assistant", "content": "c", "thinking": "t", "name": "n", "extra": {"k": 1}}, 2)
    found = {
        key: (runs.source, runs.origin, runs.path)
        for key in ("role", "content", "thinking", "name")
        for _, runs in message[key]._runs
    }
    assert found == {
        "role": (2, Origin.FIELD, ("role",)),
        "content": (2, Origin.CONTENT, ("content",)),
        "thinking": (2, Origin.REASONING, ("reasoning_content",)),
        "name": (2, Origin.FIELD, ("name",)),
    }
    assert type(message["extra"]) is Record
    assert [tag.path for _, tag in text_of(message["extra"]["k"])._runs] == [("extra", "k")]  # type: ignore[union-attr]


def test_booleans_null_and_containers_are_coarse() -> None:
    for value in (True, False, None):
        printed = text_of(wrap(value, 4, Origin.CONTENT, ("content", 0)))
        assert printed == str(value) and isinstance(printed, Text)
        assert printed._runs[0][1] == Tag(4, Origin.CONTENT, ("content", 0), True)
        assert type(text_of(value)) is str, "the template's own"
    field = wrap({"a": [1]}, 4, Origin.CONTENT, ("content", 0))
    printed = text_of(field)
    assert printed == "{'a': [1]}" and printed._runs[0][1] == Tag(4, Origin.CONTENT, ("content", 0), True)  # type: ignore


def test_what_cannot_be_followed_names_itself() -> None:
    text = tagged("a\tb", TAGS[0])
    for act, name in (
        (lambda: text.encode(), "str.encode"),
        (lambda: text.expandtabs(), "expandtabs"),
        (lambda: printf(text, 1), "% with a field as the format"),
        (lambda: printf("%*d", (3, 1)), "width taken from the arguments"),
        (lambda: text_of(print), "printing a"),
        (lambda: text_of([object()]), "printing a"),
    ):
        with pytest.raises(Untraceable, match=name):
            act()


def test_sizes_are_bounded_before_memory_is_taken() -> None:
    text = tagged("ab", TAGS[0])
    for act in (
        lambda: text * MAX_CHARS,
        lambda: text.center(MAX_CHARS + 1),
        lambda: text.zfill(10**12),
        lambda: cat([tagged("a" * (MAX_CHARS // 2), TAGS[0])] * 3),
        lambda: printf("%99999999999d", 1),
        lambda: json_text({"a": text}, indent=10**9),
    ):
        with pytest.raises(LimitExceeded):
            act()


def test_safe_text_escapes_what_is_joined_to_it_as_markup_does() -> None:
    from markupsafe import Markup

    field = tagged("0<1>", TAGS[2])
    joined = mark_safe(field) + tagged("a<b", TAGS[0])
    assert type(joined) is Safe and plain(joined) == str(Markup("0<1>") + "a<b")
    assert plain("a&b" + mark_safe(field)) == str("a&b" + Markup("0<1>"))
    follows(mark_safe(field) + tagged("DE", TAGS[1]))
    with pytest.raises(Untraceable, match="safe"):
        mark_safe(field).replace("0", "1")


def test_sub_keeps_zero_length_texts_out() -> None:
    text = cat((tagged("aa", TAGS[0]), tagged("DD", TAGS[1])))
    assert sub(text, 2, 2) == "" and origins(sub(text, 1, 3)) == [TAGS[0], TAGS[1]]
