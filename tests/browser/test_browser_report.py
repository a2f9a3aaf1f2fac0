"""The report in a real browser: draws, answers keys and pointer, asks the network for nothing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Author
from tracemask.render.tokenizer import Tokenizer
from tracemask.report.html import page as html_page
from tracemask.report.page import Page

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from report_rows import make_row

pytestmark = pytest.mark.browser
SMALL = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "small"
WORST_CONTRAST = """() => {
  const channel = (x) => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; };
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(channel);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const page = getComputedStyle(document.body).backgroundColor;
  return Math.min(...[...document.querySelectorAll('.seg .text')].map((element) => {
    const style = getComputedStyle(element), own = style.backgroundColor;
    const back = luminance(own === 'rgba(0, 0, 0, 0)' ? page : own), fore = luminance(style.color);
    return (Math.max(back, fore) + .05) / (Math.min(back, fore) + .05);
  }));
}"""
HOSTILE = "<b>bold</b></script><script>document.title='owned'</script>\u202e\x1b[2J"


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        message = "Chromium is missing: run `make chromium`"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="module")
def small():
    return Tokenizer.load(SMALL)


@pytest.fixture
def opened(browser, small, tmp_path):
    """Opens a report of rows; the page, its console problems and its requests."""

    def open_report(rows, **options):
        scales = {"token_mean": np.full(len(rows), 0.01), "constant": np.full(len(rows), 0.001)}
        file = tmp_path / "report.html"
        file.write_text(html_page(Page("rollouts", small, scales=scales, **options).data(rows)), encoding="utf-8")
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        problems: list[str] = []
        requests: list[str] = []
        loud = ("error", "warning")
        tab.on("console", lambda said: problems.append(said.text) if said.type in loud else None)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        return tab, problems, requests

    return open_report


def rows_of(small):
    first = make_row(
        small,
        [
            (Author.HARNESS, "You are careful.", False),
            (Author.TASKSET, "When does she leave?", False),
            (Author.POLICY, "I look at the board. 👍", True),
            (Author.ENVIRONMENT, HOSTILE + " departures " * 60, False),
            (Author.POLICY, "She leaves at 07:40.", True),
        ],
        reward=1.0,
    )
    second = make_row(small, [(Author.USER, "again", False), (Author.POLICY, "No.", True)], index=1)
    return [first, second]


def test_the_page_loads_only_itself_without_a_word_on_the_console(opened, small):
    tab, problems, requests = opened(rows_of(small))
    tab.wait_for_timeout(200)
    assert problems == []
    assert [url for url in requests if not url.startswith("data:")] == [tab.url]
    assert tab.title() == "rollouts — tracemask"


def test_hostile_text_is_shown_as_text(opened, small):
    tab, _, _ = opened(rows_of(small))
    tab.click("button.fold")
    tab.wait_for_function("document.querySelectorAll('.seg.E b').length > 100")
    text = tab.inner_text(".seg.E .text")
    assert "<b>bold</b></script>" in text.replace("·", "")
    assert "‹U+202E›" in text
    assert tab.query_selector(".seg.E .text b b") is None
    assert tab.title() == "rollouts — tracemask"


def test_a_token_under_the_pointer_tells_id_bytes_author_weight_and_logprob(opened, small):
    row = rows_of(small)[0]
    tab, _, _ = opened(rows_of(small))
    token = int(np.flatnonzero(row["sampled"])[0])
    tab.hover(f'b[data-k="{token}"]')
    tip = tab.inner_text("#tip")
    assert f"token {token}" in tip
    assert f"id {int(row['token_ids'][token])}" in tip
    assert "author policy" in tip
    assert "weight sampled 1" in tip
    assert "log-prob -0.500" in tip
    assert "token_mean: 0.01 of the loss" in tip
    tab.select_option("#normalizer", "constant")
    tab.hover(f'b[data-k="{token + 1}"]')
    assert "constant: 0.001 of the loss" in tab.inner_text("#tip")


def test_keys_walk_loss_spans_rows_and_findings(opened, small):
    findings = [Finding("TM305", "the stop is not trained", Place(row=1, token=2))]
    tab, _, _ = opened(rows_of(small), findings=findings, checked=True)
    row = rows_of(small)[0]
    starts = np.flatnonzero(np.diff(np.concatenate(([0], row["sampled"].astype(int)))) == 1)
    for start in (*starts, starts[0]):
        tab.keyboard.press("n")
        tab.wait_for_function(f"document.querySelector('b.here')?.dataset.k === '{int(start)}'")
    tab.keyboard.press("f")
    tab.wait_for_function("document.querySelector('b.here')?.dataset.k === '2'")
    assert tab.inner_text("#rowtitle").startswith("row 1")
    assert "TM305" in tab.inner_text("#rowfindings")
    tab.keyboard.press("p")
    assert tab.inner_text("#rowtitle").startswith("row 0")


def test_a_finding_links_to_its_token(opened, small):
    findings = [Finding("TM305", "the stop is not trained", Place(row=1, token=2))]
    tab, _, _ = opened(rows_of(small), findings=findings, checked=True)
    tab.click("#findings summary")
    tab.click("#findings a")
    tab.wait_for_function("document.querySelector('b.here')?.dataset.k === '2'")
    assert "#row=1&token=2" in tab.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(opened, small, scheme):
    tab, _, _ = opened(rows_of(small))
    tab.emulate_media(color_scheme=scheme)
    ratio = tab.evaluate(WORST_CONTRAST)
    assert ratio >= 4.5


def test_the_theme_button_switches(opened, small):
    tab, _, _ = opened(rows_of(small))
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.keyboard.press("d")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_sampled_ids_stand_behind_the_first_trained_token_that_differs(opened, small):
    row = rows_of(small)[0]
    token = int(np.flatnonzero(row["sampled"])[2])
    expected = small.plain_batch([" over here"])[0]
    finding = Finding("TM202", "trained ids differ", Place(row=0, token=token), data={"expected_ids": expected})
    tab, problems, _ = opened([row], findings=[finding])
    tab.keyboard.press("f")
    tab.wait_for_selector("b.here.bad + .sampled")
    shown = tab.locator("b.here.bad + .sampled").inner_text()
    assert "over·here" in shown and shown.strip().startswith("⟨") and shown.strip().endswith("⟩")
    assert tab.locator("b.here").get_attribute("data-k") == str(token) and not problems


def test_arrows_walk_tokens_and_tell_about_each(opened, small):
    tab, problems, _ = opened(rows_of(small))
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_selector('b.here[data-k="2"]')
    assert tab.locator("#tip").inner_text().startswith("token 2 ")
    tab.keyboard.press("ArrowLeft")
    tab.wait_for_selector('b.here[data-k="1"]')
    tab.keyboard.press("Escape")
    assert tab.locator("#tip").is_hidden() and not problems


def test_paper_shows_every_token_that_is_not_folded(opened, small):
    long = [(Author.POLICY if i % 2 else Author.USER, f"line {i} of many\n" * 3, bool(i % 2)) for i in range(200)]
    tab, problems, _ = opened([make_row(small, long)])
    drawn = "() => [...document.querySelectorAll('.seg .text')].filter((e) => !e.textContent).length"
    tab.wait_for_timeout(300)
    assert tab.evaluate(drawn) > 0  # those out of sight are drawn when they come into it
    tab.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate(drawn) == 0 and not problems


def test_marks_for_white_space_are_fainter_than_words(opened, small):
    tab, _, _ = opened(rows_of(small))
    faint, word = tab.evaluate(
        "() => ['.seg b i', '.seg b'].map((e) => getComputedStyle(document.querySelector(e)).opacity)"
    )
    assert float(faint) < float(word)


def test_hostile_rows_are_drawn_in_time_and_stay_inside_the_page(opened, small):
    text = "\u202eevil\u200b\x00\x1b[2J</script><img src=x onerror=alert(1)>\u2066" + "A" * 200_000
    tab, problems, requests = opened([make_row(small, [(Author.ENVIRONMENT, text, True)], id="</script>\u202e")])
    assert float(tab.evaluate("document.documentElement.dataset.ready")) < 2000
    body = tab.evaluate("document.body.innerText")
    assert not set(body) & set("\u202e\u200b\x00\x1b\u2066") and not problems
    assert all(url.startswith(("file:", "data:")) for url in requests)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
