"""Author overrides from TOML: first rule that fits, counted, and never able to make text sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracemask.core.errors import UsageError
from tracemask.trace import AuthorRules, Trace, read_traces

MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "task"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "Observation: ok"},
    {"role": "user", "content": "score", "name": "judge"},
    {"role": "assistant", "content": "b"},
]
TOML = """
[[authors]]
role = "user"
name = "judge"
author = "verifier"

[[authors]]
role = "user"
match = "^Observation:"
author = "environment"
label = "observations"

[[authors]]
index = -1
author = "model"

[[authors]]
role = "user"
first = false
author = "harness"
"""


def test_rules_by_role_name_text_and_place_decide_in_order_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "authors.toml").write_text(TOML)
    rules = AuthorRules.load(tmp_path / "authors.toml")
    trace = Trace.from_messages(MESSAGES)
    assert rules.apply(trace) == {3: "observations", 4: "0: role=user name=judge → verifier", 5: "2: index=-1 → model"}
    authors = [message.author for message in trace.messages]
    assert authors == ["harness", "taskset", "policy", "environment", "verifier", "model"]


def test_a_reading_counts_what_each_rule_touched(tmp_path: Path) -> None:
    import json

    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps({"messages": MESSAGES}) for _ in range(3)))
    (tmp_path / "authors.toml").write_text(TOML)
    reading = read_traces(tmp_path / "log.jsonl", authors=tmp_path / "authors.toml")
    list(reading)
    assert reading.rules["observations"] == 3


@pytest.mark.parametrize(
    ("toml", "word"),
    [
        ("", "no \\[\\[authors\\]\\]"),
        ("[[authors]]\nauthor = 'ghost'", "ghost"),
        ("[[authors]]\nauthor = 'model'\nroel = 'user'", "roel"),
        ("[[authors]]\nauthor = 'model'\nrole = 'pilot'", "pilot"),
        ("[[authors]]\nauthor = 'policy'\nrole = 'tool'", "assistant messages only"),
        ("[[authors]]\nauthor = 'model'\nmatch = '['", "regular expression"),
        ("[[authors]]\nauthor = 'model'\nindex = 'one'", "index"),
        ("not toml", "not TOML"),
    ],
)
def test_a_bad_rule_is_a_usage_error_that_names_it(toml: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "authors.toml").write_text(toml)
    with pytest.raises(UsageError, match=word):
        AuthorRules.load(tmp_path / "authors.toml")


def test_rules_name_themselves_completely_for_a_fingerprint() -> None:
    rules = AuthorRules.load({"authors": [{"author": "model", "index": 0}]})
    assert AuthorRules.load({"authors": [{"author": "model", "index": 1}]}).to_json() != rules.to_json()
