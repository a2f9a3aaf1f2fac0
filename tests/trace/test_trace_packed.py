"""base64 arrays stay in one piece of memory and still read, compare, travel and serialize like lists."""

from __future__ import annotations

import copy
import math
import pickle
from base64 import b64encode, urlsafe_b64encode

import numpy as np
import pytest

from tracemask.trace import Trace
from tracemask.trace.arrays import Packed, floats_to_base64, ints_to_base64, numbers, token_ids
from tracemask.trace.invariants import logprobs
from tracemask.trace.jsonl import Arrays, from_json, to_json
from tracemask.trace.model import Sampled

IDS = [5, 0, 2**31 - 1, 70_000]
LOGPROBS = [-0.5, -0.25, -1.0, 0.0]


def packed() -> Sampled:
    """A call whose arrays were base64."""
    logprobs = floats_to_base64(LOGPROBS)
    ids = ints_to_base64(IDS)
    return Sampled.model_validate(
        {"token_ids": ids, "logprobs": logprobs, "prompt_ids": ids, "columns": {"teacher": logprobs}}
    )


def listed() -> Sampled:
    """The same call from lists."""
    return Sampled(token_ids=IDS, logprobs=LOGPROBS, prompt_ids=IDS, columns={"teacher": LOGPROBS})


def test_base64_arrays_stay_packed_and_lists_stay_lists() -> None:
    call = packed()
    assert {type(array) for array in (call.token_ids, call.prompt_ids, call.logprobs, call.columns["teacher"])} == {
        Packed
    }
    assert type(listed().token_ids) is list


def test_a_packed_call_equals_the_call_made_of_lists() -> None:
    assert packed() == listed()
    assert listed() == packed()
    assert packed().model_dump() == listed().model_dump()
    assert packed().model_dump_json() == listed().model_dump_json()
    other = listed()
    other.token_ids = [*IDS[:-1], 1]
    assert packed() != other


def test_slices_copies_sums_and_pickles_keep_their_values() -> None:
    ids = packed().token_ids
    assert ids[1:] == IDS[1:]
    assert ids[-1] == IDS[-1]
    assert ids + [7] == [*IDS, 7]
    assert [7] + ids == [7, *IDS]
    for same in (copy.copy(ids), copy.deepcopy(ids), pickle.loads(pickle.dumps(ids))):  # noqa: S301
        assert type(same) is Packed
        assert same == IDS
    assert pickle.loads(pickle.dumps(packed())) == listed()  # noqa: S301
    assert packed().model_copy(deep=True) == listed()


def test_numpy_reads_packed_ids_where_they_lie() -> None:
    ids = packed().token_ids
    view = np.asarray(ids, np.int32)
    assert view.tolist() == IDS
    assert not view.flags.owndata


def test_a_trace_read_from_base64_writes_the_json_of_lists() -> None:
    reply = {"role": "assistant", "content": "x", "token_ids": IDS, "logprobs": LOGPROBS, "prompt_ids": IDS}
    trace = Trace.from_messages([{"role": "user", "content": "q"}, reply], id="t")
    again = from_json(to_json(trace, arrays=Arrays.BASE64))
    assert again == trace
    assert to_json(again) == to_json(trace)
    assert to_json(again, arrays=Arrays.BASE64) == to_json(trace, arrays=Arrays.BASE64)


def test_a_missing_log_prob_stays_missing() -> None:
    found = numbers(floats_to_base64([-0.5, None, -0.25]))
    assert list(found) == [-0.5, None, -0.25]
    assert list(numbers(floats_to_base64([-math.inf, 3e38]))) == [-math.inf, pytest.approx(3e38)]


@pytest.mark.parametrize("text", ["AAA", "AAAAAA", "AA AA", "AAA=AAAA", "é", "AAAAA==="])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="base64"):
        token_ids(text)


def test_the_web_alphabet_of_base64_is_refused() -> None:
    raw = bytes([255, 239, 191, 3])
    assert token_ids(b64encode(raw).decode()) == [int.from_bytes(raw, "little")]
    with pytest.raises(ValueError, match="base64"):
        token_ids(urlsafe_b64encode(raw).decode())


def test_a_negative_id_is_refused_in_either_form() -> None:
    for value in ([1, -1], ints_to_base64([1, -1])):
        with pytest.raises(ValueError, match="negative"):
            token_ids(value)


def test_bad_log_probs_are_found_among_many_good_ones() -> None:
    good = [-0.5] * 50
    for bad in (0.5, math.nan, math.inf, -math.inf):
        for values in ([*good, bad], [bad, *good], [None, *good, bad]):
            message = {"role": "assistant", "content": "x", "token_ids": list(range(len(values))), "logprobs": values}
            trace = Trace.from_messages([message], id="t")
            assert [finding.data["field"] for finding in logprobs(trace)] == [
                f"messages[0].sampled.logprobs[{next(t for t, v in enumerate(values) if v is bad)}]"
            ]
    fine = {"role": "assistant", "content": "x", "token_ids": [1, 2], "logprobs": [None, -1.0]}
    assert not list(logprobs(Trace.from_messages([fine], id="t")))
