"""Each cause of drift on a minimal pair of replies."""

from __future__ import annotations

import pytest
from render_tools import small

from tracemask.render.drift import cause_of_text, compare

CALL = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
STOP = "<|im_end|>"

PAIRS = {
    "nfc": ("cafe\u0301 here", "café here"),
    "whitespace_trim": (" Low. \n", "Low."),
    "think_strip": ("<think>\nSo.\n</think>\n\nBlue.", "Blue."),
    "json_reserialize": (CALL % '{"b":1,"a":[2,3]}', CALL % '{"a": [2, 3], "b": 1}'),
    "tool_call_lost": ("Looking.\n" + CALL % "{}", "Looking."),
    "text_changed": ("Blue.", "Green."),
}


@pytest.mark.parametrize("cause", PAIRS)
def test_a_changed_text_names_its_cause(cause: str) -> None:
    sampled, rendered = PAIRS[cause]
    assert cause_of_text(sampled, rendered) == cause
    ids = small().plain.encode_batch([sampled])[0] if cause == "nfc" else small().encode(sampled + STOP)
    found = compare(small(), ids, small().encode(rendered + STOP))
    if cause == "nfc":
        return  # the tokenizer itself composes: no ids of this text decompose it
    assert found is not None and found.cause == cause
    assert ids[: found.first] == small().encode(rendered + STOP)[: found.first]
    assert ids[found.first] != small().encode(rendered + STOP)[found.first]


def test_spaces_inside_a_call_are_a_reserialization() -> None:
    assert cause_of_text(CALL % '{"a":1}', CALL % '{"a": 1}') == "json_reserialize"


def test_a_call_spelled_anew_is_found_in_a_context_that_names_the_tags_and_has_calls_before() -> None:
    context = "Write <tool_call></tool_call>.\n" + CALL % '{"a": 0}' + "\nand\n" + CALL
    assert cause_of_text(context % '{"a":1}', context % '{"a": 1}') == "json_reserialize"
    assert cause_of_text(context % '{"a": 1}' + " \n", context % '{"a": 1}') == "whitespace_trim"


def test_another_split_of_the_same_bytes_is_bpe_split() -> None:
    text = "harbour"
    pieces = [token for character in text for token in small().encode(character)]
    assert pieces != small().encode(text)
    found = compare(small(), pieces, small().encode(text))
    assert found is not None and found.cause == "bpe_split" and found.changed > 0
    assert [*pieces[: found.first], *found.expected, *pieces[found.end :]] == small().encode(text)


def test_a_special_token_spelled_as_text_is_its_own_cause() -> None:
    spelled = small().encode(STOP, control="text")
    found = compare(small(), spelled, small().encode(STOP))
    assert found is not None and found.cause == "special_token_text"


def test_decomposed_bytes_are_nfc_drift() -> None:
    raw = "e\u0301".encode()
    ids = [small().id_table.index(bytes([byte])) for byte in raw]
    found = compare(small(), ids, small().encode("é"))
    assert found is not None and found.cause == "nfc" and small().decode_bytes(ids) == raw


def test_bytes_that_are_no_text_are_invalid_utf8() -> None:
    first, second = (small().id_table.index(bytes([byte])) for byte in "東".encode()[:2])
    word = small().encode(" word")
    found = compare(small(), [*word, first, second], [*word, *small().encode("\ufffd")])
    assert found is not None and found.cause == "invalid_utf8" and found.first == len(word)
