"""tracemask check, rules, rule: exit codes, options, configuration, baseline, ignores."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from check_make import SMALL, TALK, chat, ours
from typer.testing import CliRunner

from tracemask.check.config import read
from tracemask.check.rule import all_rules
from tracemask.core.errors import TracemaskError, UsageError
from tracemask.render.tokenizer import Tokenizer
from tracemask_cli.main import app

SHIFTED = (1, 3)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def lines():
    """Five rows of another tool's JSON lines; two masks are shifted."""
    tokenizer = Tokenizer.load(SMALL)
    out = []
    for i in range(5):
        talk = [TALK[0], ("user", f"When does the Orla leave Pier {i + 3}?"), *TALK[2:]]
        row = ours(tokenizer, chat(talk), index=i)
        mask = row["sampled"].astype(int)
        if i in SHIFTED:
            mask = np.roll(mask, 1)
        out.append(json.dumps({"input_ids": row["token_ids"].tolist(), "loss_mask": mask.tolist()}))
    return out


@pytest.fixture
def data(tmp_path, lines, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "d.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def check(data, *arguments):
    return run("check", data, "-t", SMALL, *arguments)


def test_findings_exit_with_one_and_clean_data_with_zero(data, lines):
    assert check(data).exit_code == 1
    data.write_text(lines[0] + "\n")
    assert check(data).exit_code == 0


def test_what_could_not_run_is_a_coded_error(data, tmp_path):
    for arguments in (("check", tmp_path / "no.jsonl"), ("check", data, "-t", tmp_path / "no")):
        with pytest.raises(TracemaskError) as caught:
            run(*arguments)
        assert caught.value.code == "TM901"
    (tmp_path / "e.jsonl").write_text("")
    with pytest.raises(TracemaskError) as caught:
        run("check", tmp_path / "e.jsonl")
    assert caught.value.code == "TM904"


def test_select_takes_prefixes_and_names(data):
    assert check(data, "--select", "TM5").exit_code == 0
    assert check(data, "--select", "TM30").exit_code == 1
    assert "TM302" in check(data, "--select", "mask-shifted").stdout
    with pytest.raises(TracemaskError) as caught:
        check(data, "--select", "TM9")
    assert caught.value.code == "TM902"


def test_an_ignore_needs_a_reason_and_an_unused_one_is_reported(data):
    with pytest.raises(TracemaskError, match="no reason"):
        check(data, "--ignore", "TM302")
    result = check(data, "--ignore", "TM302=known, see issue 7", "--ignore", "TM401=never")
    assert result.exit_code == 0
    assert "ignored TM302 (known, see issue 7): 2 findings" in result.stdout
    assert "unused ignore TM401 (never)" in result.stdout


def test_fail_on_and_tolerance_decide_the_exit_code(data):
    assert check(data, "--fail-on", "W").exit_code == 1
    assert check(data, "--tolerance", "TM302=40%").exit_code == 0
    assert check(data, "--tolerance", "TM302=39%").exit_code == 1
    assert check(data, "--tolerance", "TM302=2").exit_code == 0
    with pytest.raises(TracemaskError):
        check(data, "--tolerance", "TM302=many")


def test_require_makes_a_skipped_rule_a_failure(data, lines):
    data.write_text(lines[0] + "\n")
    assert check(data).exit_code == 0
    result = check(data, "--require", "TM402")
    assert result.exit_code == 1 and "required but not run: TM402" in result.stdout


def test_a_baseline_survives_reordering_and_fails_for_new_findings(data, lines, tmp_path):
    baseline = tmp_path / "baseline.json"
    assert check(data, "--write-baseline", baseline).exit_code == 0
    written = baseline.read_text()
    assert check(data, "--baseline", baseline).exit_code == 0
    order = list(lines)
    random.Random(3).shuffle(order)
    data.write_text("\n".join(order) + "\n")
    result = check(data, "--baseline", baseline)
    assert result.exit_code == 0 and "2 findings known to the baseline" in result.stdout
    assert check(data, "--write-baseline", baseline).exit_code == 0
    assert baseline.read_text() == written
    record = json.loads(lines[0])
    record["loss_mask"] = np.roll(record["loss_mask"], 1).tolist()
    data.write_text("\n".join([*lines[1:], json.dumps(record)]) + "\n")
    assert check(data, "--baseline", baseline).exit_code == 1
    data.write_text(lines[0] + "\n")
    assert "2 baseline entries not found any more" in check(data, "--baseline", baseline).stdout


def test_settings_come_from_a_file_and_the_command_line_adds_to_them(data, tmp_path):
    config = tmp_path / "tracemask.toml"
    config.write_text(f'[check]\ntokenizer = "{SMALL}"\nfail-on = "W"\n[check.ignore]\nTM302 = "being repaired"\n')
    result = run("check", data)
    assert result.exit_code == 0 and "being repaired" in result.stdout
    config.write_text("[check]\nunknown = 1\n")
    with pytest.raises(TracemaskError, match="unknown setting"):
        run("check", data)


def test_settings_are_read_from_pyproject(data, tmp_path):
    table = f'[tool.tracemask.check]\ntokenizer = "{SMALL}"\n[tool.tracemask.check.tolerance]\nTM302 = "40%"\n'
    (tmp_path / "pyproject.toml").write_text(table)
    result = run("check", data)
    assert result.exit_code == 0 and "(tolerated)" in result.stdout


def test_paths_of_a_configuration_count_from_its_folder(data, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "policy").symlink_to(SMALL)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tracemask.check]\ntokenizer = "models/policy"\nbaseline = "known.json"\n'
    )
    (tmp_path / "deep" / "er").mkdir(parents=True)
    path = tmp_path / data
    assert check(path, "--write-baseline", tmp_path / "known.json").exit_code == 0
    for folder in (tmp_path, tmp_path / "deep" / "er"):
        monkeypatch.chdir(folder)
        result = run("check", path)
        assert result.exit_code == 0 and "known to the baseline" in result.stdout


@pytest.mark.parametrize(
    "line", ['fail-on = "X"', 'tolerance = { TM107 = "x" }', 'ignore = { TM107 = "" }', "other = 1"]
)
def test_a_fault_of_a_configuration_names_its_file(data, tmp_path, line):
    (tmp_path / "tracemask.toml").write_text(line + "\n")
    with pytest.raises(TracemaskError) as error:
        run("check", data, "--config", tmp_path / "tracemask.toml")
    assert error.value.where == str(tmp_path / "tracemask.toml")


def test_statistics_are_counts_per_rule(data):
    result = check(data, "--statistics")
    assert result.exit_code == 1 and "TM302 mask-shifted [shift +1]" in result.stdout
    assert "token 36" not in result.stdout


def test_a_report_may_go_to_a_file(data, tmp_path):
    out = tmp_path / "report.sarif"
    assert check(data, "--format", "sarif", "-o", out).exit_code == 1
    assert json.loads(out.read_text())["version"] == "2.1.0"
    assert json.loads(check(data, "--json").stdout)["counts"]["E"] == 2


def test_rules_lists_every_rule_and_filters():
    assert [line.split()[0] for line in run("rules").stdout.splitlines()] == sorted(all_rules())
    listed = json.loads(run("rules", "TM30", "--json").stdout)
    assert [rule["code"] for rule in listed] == [f"TM30{i}" for i in range(1, 10)]


@pytest.mark.parametrize("word", ["What it does", "Example", "How to fix", "Limits"])
def test_every_page_has_its_sections(word):
    for code, rule in all_rules().items():
        assert f"**{word}.**" in rule.doc, code
        assert "**Why it is bad.**" in rule.doc or "**Why it matters.**" in rule.doc, code
        assert 20 < len(rule.summary) < 120, code


def test_rule_prints_the_page_that_the_docs_hold():
    from pathlib import Path

    page = run("rule", "stop-untrained").stdout
    assert page == (Path(__file__).parents[2] / "docs/reference/rules/TM305.md").read_text()
    with pytest.raises(TracemaskError):
        run("rule", "TM999")


def test_a_log_with_broken_lines_is_checked_and_both_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    bad = '{"messages": [{"role": "user"'
    unknown = {"messages": [{"role": "narrator", "content": "e"}]}
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join([json.dumps(good), json.dumps(good), bad, json.dumps(unknown)]) + "\n")
    result = run("check", log)
    assert result.exit_code == 1 and "2 traces" in result.stdout
    assert "log.jsonl:3" in result.stdout and "invalid JSON" in result.stdout
    assert "log.jsonl:4" in result.stdout and "messages[0].role" in result.stdout and "narrator" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_missing_template_file_is_a_coded_error(data, tmp_path):
    for verb in (["check", data], ["fix", data, "--diff"]):
        with pytest.raises(TracemaskError) as caught:
            run(*verb, "-t", SMALL, "--template", tmp_path / "no.jinja")
        assert caught.value.code == "TM901"


def test_a_log_beside_the_rows_lets_the_rules_about_messages_run(data, tmp_path):
    log = tmp_path / "log.jsonl"
    orphan = {"role": "tool", "tool_call_id": "c", "content": "x"}
    turns = [{"role": "user", "content": "q"}, orphan, {"role": "assistant", "content": "a"}]
    log.write_text(json.dumps({"messages": turns}) + "\n")
    result = check(data, "--traces", log, "--select", "TM1")
    assert result.exit_code == 1 and "TM105 orphan-tool-result" in result.stdout
    assert "TM105" not in check(data, "--select", "TM3").stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("select = 5", "select: "),
        ('select = "TM3"', "select: "),
        ('examples = "x"', "examples: "),
        ('max_tokens = "abc"', "max_tokens: "),
        ("max_tokens = 0", "max_tokens: "),
        ("tolerance = 3", "tolerance: "),
        ('columns = "ids=a"', "columns: "),
        ("baseline = 3", "baseline: "),
        ('pre_shifted = "no"', "pre_shifted: "),
        ('ignore = ["TM107"]', "ignore: "),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_name_and_never_taken_for_findings(tmp_path, line, said):
    file = tmp_path / "tracemask.toml"
    file.write_text(f"[check]\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read(file)
    assert (caught.value.code, caught.value.where) == ("TM900", str(file))
    assert said in caught.value.what


def test_a_file_without_a_table_of_settings_is_refused_and_a_day_may_be_a_toml_date(tmp_path):
    file = tmp_path / "tracemask.toml"
    file.write_text("check = 3\n")
    with pytest.raises(UsageError, match="check is 3, not a table"):
        read(file)
    file.write_text("[check]\ndate = 2025-03-14\n")
    assert read(file).date == "2025-03-14"


def test_the_code_of_an_error_is_explained_though_it_is_no_rule():
    assert run("rule", "tm931").output.startswith("# TM931 not-a-dataset\n")
    assert json.loads(run("rule", "TM931", "--json").output)["name"] == "not-a-dataset"
