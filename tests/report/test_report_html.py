"""The HTML page's data and markup, without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
from report_rows import make_row

from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Author
from tracemask.report.html import embed, page
from tracemask.report.page import STEP, Page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)> \u202e \x1b[2J"


def data_of(html: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def ids_of(data: dict, row: dict) -> list[int]:
    raw = base64.b64decode(row["ids"])
    local = np.frombuffer(raw, "<u4" if row["wide"] else "<u2")
    return [data["vocab"][index][0] for index in local]


def test_hostile_content_cannot_close_the_data_block(small):
    row = make_row(small, [(Author.ENVIRONMENT, HOSTILE, False)], id=HOSTILE)
    html = page(Page(HOSTILE, small).data([row]))
    assert html.count("</script>") == 2
    assert "<img" not in html
    assert HOSTILE not in html


def test_the_policy_allows_this_script_and_this_style_alone(small):
    html = page(Page("t", small).data([make_row(small, [(Author.POLICY, "x", True)])]))
    script = re.findall(r"<script>(.*?)</script>", html, re.S)[0]
    style = re.findall(r"<style>(.*?)</style>", html, re.S)[0]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in html
    assert "unsafe-inline" not in html
    assert "default-src 'none'" in html


def test_nothing_is_fetched_from_anywhere(small):
    html = page(Page("t", small).data([make_row(small, [(Author.POLICY, "x", True)])]))
    assert not re.search(r"https?://|@import|url\(", html)


def test_ids_runs_and_logprobs_survive_the_packing(small):
    row = make_row(small, [(Author.USER, "hello there", False), (Author.POLICY, "well then", True)])
    row.columns["logprob"][-1] = -40.0
    data = data_of(page(Page("t", small).data([row])))
    shown = data["rows"][0]
    assert ids_of(data, shown) == row["token_ids"].tolist()
    assert shown["runs"][0][:3] == [0, int((row["message"] == 0).sum()), int(Author.USER)]
    assert [run[6] for run in shown["runs"]] == [0.0, 1.0]
    values = np.frombuffer(base64.b64decode(shown["lp"]), "<u2")
    start, end, offset = shown["lpRuns"][0]
    assert (start, end, offset) == (int((row["message"] == 0).sum()), len(row), 0)
    assert np.allclose(values[:-1] / STEP, 0.5, atol=1 / STEP)
    assert values[-1] == 65534  # clipped, not taken for missing


def test_rows_with_findings_are_shown_first_and_all_are_counted(small):
    rows = [make_row(small, [(Author.POLICY, f"row {i}", True)], index=i) for i in range(10)]
    finding = Finding("TM305", "stop not trained", Place(row=8, token=1))
    data = Page("t", small, findings=[finding], checked=True, most_rows=2).data(rows)
    assert [row["index"] for row in data["rows"]] == [0, 8]
    assert sum(count[2] for count in data["counts"]) == sum(len(row) for row in rows)
    assert data["findings"][0]["examples"][0][0] == 1


def test_weights_of_each_normalizer_are_totalled_by_author(small):
    rows = [
        make_row(small, [(Author.USER, "question", False), (Author.POLICY, "a b c d", True)], index=i) for i in range(2)
    ]
    trained = [int(row["sampled"].sum()) for row in rows]
    scales = {"token_mean": np.full(2, 1 / sum(trained))}
    data = Page("t", small, scales=scales).data(rows)
    key = f"{int(Author.POLICY)}/{int(rows[0]['role'][0])}"
    assert abs(data["totals"]["token_mean"][key] - 1.0) < 1e-12


def test_a_split_character_is_spelled_on_its_last_token_in_the_page(small):
    row = make_row(small, [(Author.POLICY, "👍", True)])
    shown = Page("t", small).data([row])["rows"][0]
    assert shown["pieces"][len(row) - 1] == "👍"


def test_two_hundred_thousand_tokens_stay_within_a_megabyte_and_a_half(small):
    rng = np.random.default_rng(0)
    row = make_row(small, [(Author.POLICY, "x", True)])
    n = 200_000
    block = np.repeat(np.arange(n // 100) % 2, 100)
    row.columns.update(
        token_ids=rng.integers(0, 1900, n).astype(np.int32),
        author=np.where(block, Author.POLICY, Author.ENVIRONMENT).astype(np.uint8),
        role=np.full(n, 4, np.uint8),
        part=np.full(n, 2, np.uint8),
        message=np.repeat(np.arange(n // 100), 100).astype(np.int32),
        sampled=block.astype(bool),
        logprob=np.where(block, -rng.random(n) * 5, np.nan).astype(np.float32),
    )
    row.columns.pop("origin")
    assert len(page(Page("t", small).data([row])).encode()) <= 1_500_000


def test_json_in_the_page_has_no_markup_characters():
    assert embed({"a": "<>&\u2028"}) == '{"a":"\\u003c\\u003e\\u0026\\u2028"}'
