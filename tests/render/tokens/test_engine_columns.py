"""Per-token columns of the engine: policy versions stand beside the tokens they sampled, foreign names are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from render_tools import renderer, small

from tracemask.core.errors import RenderError, StoreError
from tracemask.store.rows import of_sample
from tracemask.store.spans import from_spans, to_spans
from tracemask.trace.model import Trace


def sampled(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "token_ids": small().encode(text + "<|im_end|>")} | fields


def row(*replies: dict[str, Any]) -> Any:
    messages: list[dict[str, Any]] = []
    for reply in replies:
        messages += [{"role": "user", "content": "go"}, reply]
    trace = Trace.from_messages(messages)
    (sample,) = renderer().render(trace)
    return sample, of_sample(sample, trace)


def test_the_policy_version_of_a_call_stands_at_its_tokens_and_nowhere_else() -> None:
    sample, stored = row(sampled("red", policy_version=7), sampled("blue", policy_version=12))
    versions = sample.columns["policy_version"]
    assert versions.dtype == np.int64
    assert set(versions[sample.message == 1][sample.sampled[sample.message == 1]]) == {7}
    assert set(versions[sample.sampled & (sample.message == 3)]) == {12}
    assert set(versions[~sample.sampled]) == {-1}
    spans = to_spans(stored.columns["policy_version"])
    assert [span["version"] for span in spans] == ["7", "12"]
    assert from_spans(spans, len(sample)).tolist() == versions.tolist()


def test_weights_that_changed_in_flight_are_spans_of_one_reply() -> None:
    text = "one two three four"
    count = len(small().encode(text + "<|im_end|>"))
    spans = [{"start": 0, "end": 2, "version": 3}, {"start": 2, "end": count, "version": 4}]
    sample, _ = row(sampled(text, policy_version=spans), sampled("blue"))
    first = sample.columns["policy_version"][sample.sampled & (sample.message == 1)]
    assert first.tolist() == [3, 3] + [4] * (count - 2)
    assert set(sample.columns["policy_version"][sample.message == 3]) == {-1}, "unknown is not version zero"


def test_versions_that_are_names_stay_names() -> None:
    sample, stored = row(sampled("red", policy_version="step-7"), sampled("blue", policy_version=1234567))
    found = [span["version"] for span in to_spans(stored.columns["policy_version"])]
    assert found == ["step-7", "1234567"]
    assert sample.columns["policy_version"].dtype.kind == "U"


@pytest.mark.parametrize("name", ["token_ids", "logprob", "author", "id", "n_tokens", "findings"])
def test_a_column_named_like_one_of_the_rows_own_is_refused(name: str) -> None:
    with pytest.raises(StoreError) as caught:
        row(sampled("red", columns={name: [1.0] * len(small().encode("red<|im_end|>"))}))
    assert caught.value.code == "TM501" and repr(name) in caught.value.what


def test_a_column_of_versions_beside_the_field_is_refused() -> None:
    with pytest.raises(RenderError, match="policy_version"):
        row(sampled("red", columns={"policy_version": [1.0] * len(small().encode("red<|im_end|>"))}))
