"""Output formats: their published shapes, their safety, and that they say the same thing."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from check_defects import PLANTERS
from check_make import SMALL, Foreign, Rows, foreign
from check_rollouts import clean

from tracemask.check.config import Settings, Tolerance
from tracemask.check.finding import Finding, Place, Severity
from tracemask.check.formats import FORMATS
from tracemask.check.formats.text import with_skipped
from tracemask.check.report import Collector, Report, Skip
from tracemask.check.rule import all_rules
from tracemask.check.runner import check_dataset
from tracemask.check.schema import schema
from tracemask.render.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b[31m\u202eb</script><!--&\"'\n\ud800\x00%0A::error::x,y"

# The part of SARIF 2.1.0 (OASIS) that a log with results and rules must follow: required members, names, enumerations.
_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}, "markdown": {"type": "string"}}, "additionalProperties": False}  # fmt: skip # noqa: E501
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {"type": "array", "items": {"$ref": "#/$defs/run"}},
    },
    "$defs": {
        "run": {
            "type": "object",
            "required": ["tool"],
            "additionalProperties": False,
            "properties": {
                "tool": {"type": "object", "required": ["driver"], "additionalProperties": False,
                         "properties": {"driver": {"$ref": "#/$defs/driver"}}},
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "invocations": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/invocation"}},
                "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
                "properties": {"type": "object"},
            },
        },
        "driver": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string"}, "version": {"type": "string"}, "semanticVersion": {"type": "string"},
                "informationUri": {"type": "string", "pattern": "^https://"},
                "rules": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/rule"}},
            },
        },
        "rule": {
            "type": "object",
            "required": ["id"],
            "additionalProperties": False,
            "properties": {
                "id": {"type": "string"}, "name": {"type": "string"}, "shortDescription": _TEXT,
                "fullDescription": _TEXT, "help": _TEXT,
                "defaultConfiguration": {"type": "object", "additionalProperties": False,
                                         "properties": {"level": _LEVEL}},
            },
        },
        "invocation": {
            "type": "object",
            "required": ["executionSuccessful"],
            "additionalProperties": False,
            "properties": {
                "executionSuccessful": {"type": "boolean"}, "exitCode": {"type": "integer"},
                "toolExecutionNotifications": {"type": "array", "items": {
                    "type": "object", "required": ["message"], "additionalProperties": False,
                    "properties": {"level": _LEVEL, "message": _TEXT}}},
            },
        },
        "result": {
            "type": "object",
            "required": ["message"],
            "additionalProperties": False,
            "properties": {
                "ruleId": {"type": "string"}, "ruleIndex": {"type": "integer", "minimum": -1}, "level": _LEVEL,
                "message": _TEXT, "locations": {"type": "array", "items": {"$ref": "#/$defs/location"}},
                "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                "properties": {"type": "object"},
            },
        },
        "location": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"physicalLocation": {
                "type": "object", "additionalProperties": False, "anyOf": [{"required": ["artifactLocation"]}],
                "properties": {
                    "artifactLocation": {"type": "object", "additionalProperties": False,
                                         "properties": {"uri": {"type": "string", "pattern": "^[!-~]+$"}}},
                    "region": {"type": "object", "additionalProperties": False, "properties": {
                        "startLine": {"type": "integer", "minimum": 1},
                        "startColumn": {"type": "integer", "minimum": 1},
                        "endLine": {"type": "integer", "minimum": 1},
                        "endColumn": {"type": "integer", "minimum": 1}}},
                }}},
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def report() -> Report:
    data = clean(Tokenizer.load(SMALL))
    rows = PLANTERS["TM302"](data).bad
    return check_dataset(Foreign(rows), tokenizer=data.renderer.tokenizer, template=data.renderer.template)


@pytest.fixture(scope="module")
def hostile() -> Report:
    collector = Collector(all_rules(), keep=10)
    place = Place(path=HOSTILE, row=3, turn=1, token=9, end=12, id=HOSTILE)
    collector.add(Finding("TM305", HOSTILE, place, cause=HOSTILE, data={"text": HOSTILE}))
    settings = Settings(ignore={"TM107": HOSTILE})
    rule = all_rules()["TM402"]
    return Report(path="d", kind="foreign", rows=4, tokens=9, groups=collector.ordered({}, total=4),
                  skipped=[Skip(rule, ("scores",), "score it", required=True)], ran=("TM305",), settings=settings,
                  unused_ignores=("TM107",), unreadable=(HOSTILE,))  # fmt: skip


def test_json_follows_the_published_schema(report):
    import jsonschema

    published = json.loads((ROOT / "schemas" / "finding.v1.schema.json").read_text())
    assert published == schema()
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(json.loads(FORMATS["json"](report)), published)


def test_sarif_follows_the_standard_and_points_to_row_and_token(report):
    import jsonschema

    log = json.loads(FORMATS["sarif"](report))
    jsonschema.validate(log, SARIF)
    run = log["runs"][0]
    results = [result for result in run["results"] if result["ruleId"] == "TM302"]
    (finding,) = [finding for finding in report.findings if finding.code == "TM302"]
    region = results[0]["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == finding.place.row + 1 and region["startColumn"] == finding.place.token + 1
    assert results[0]["level"] == "error" and "shift -1" in results[0]["properties"]["cause"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_has_what_github_s_code_scanning_asks_for(report, hostile):
    for each in (report, hostile):
        (run,) = json.loads(FORMATS["sarif"](each))["runs"]
        for rule in run["tool"]["driver"]["rules"]:
            assert all(rule[name]["text"].strip() for name in ("shortDescription", "fullDescription", "help"))
            assert len(rule["shortDescription"]["text"]) <= 1024 and len(rule["name"]) <= 255
        prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
        assert prints and len(set(prints)) == len(prints)
        for result in run["results"]:
            (location,) = result["locations"]
            region = location["physicalLocation"]["region"]
            assert region.keys() == {"startLine", "startColumn", "endLine", "endColumn"}
            assert region["startLine"] == region["endLine"] and region["startColumn"] < region["endColumn"]
            assert not location["physicalLocation"]["artifactLocation"]["uri"].startswith("/")


def sarif_of(*findings, keep=10, path="d"):
    collector = Collector(all_rules(), keep=keep)
    for finding in findings:
        collector.add(finding)
    made = Report(path=path, kind="foreign", rows=9, tokens=9, groups=collector.ordered({}, total=9), skipped=[],
                  ran=(), settings=Settings())  # fmt: skip
    (run,) = json.loads(FORMATS["sarif"](made))["runs"]
    return run


@pytest.mark.parametrize(
    ("path", "uri", "line"),
    [
        ("data/a b.parquet", "data/a%20b.parquet", 1),
        ("{here}/data/x.jsonl:21", "data/x.jsonl", 21),
        ("/elsewhere/x.arrow", "file:///elsewhere/x.arrow", 1),
        ("s3://bucket/x.arrow", "s3://bucket/x.arrow", 1),
    ],
)
def test_sarif_paths_are_relative_to_the_folder_one_stands_in(path, uri, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = sarif_of(Finding("TM105", "m", Place(path=path.format(here=tmp_path))))
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (uri, line)


def test_sarif_shows_every_cause_when_there_are_more_findings_than_may_be_shown(monkeypatch):
    monkeypatch.setattr("tracemask.check.formats.sarif.MOST", 4)
    many = [Finding("TM305", "m", Place(row=i, token=0)) for i in range(9)]
    run = sarif_of(*many, Finding("TM306", "m", Place(row=3, token=1)))
    assert sorted(result["ruleId"] for result in run["results"]) == ["TM305", "TM305", "TM305", "TM306"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert notes[-1]["message"]["text"] == "4 of 10 findings are listed here"


# What junit-10.xsd (Jenkins) and surefire-test-report.xsd (Maven) have in common, stated by us: element -> its
# attributes (True: required) and its children. A testcase holds them in this order.
NUMBER, TIME = re.compile(r"[0-9]+"), re.compile(r"[0-9]{1,3}(\.[0-9]{0,3})?")
JUNIT = {
    "testsuites": ({"name": False, "time": False, "tests": False, "failures": False, "errors": False}, ("testsuite",)),
    "testsuite": (
        {"name": True, "time": False, "tests": True, "failures": True, "errors": True, "skipped": True},
        ("properties", "testcase"),
    ),
    "testcase": ({"name": True, "classname": False, "time": True}, ("failure", "skipped", "error", "system-out")),
    "failure": ({"message": False, "type": True}, ()),
    "skipped": ({"message": False}, ()),
    "system-out": ({}, ()),
}


def junit_faults(element):
    """What breaks JUNIT, in words."""
    attributes, children = JUNIT[element.tag]
    for name, needed in attributes.items():
        if needed and name not in element.attrib:
            yield f"{element.tag} without {name}"
    yield from (f"{element.tag} with {name}" for name in element.attrib if name not in attributes)
    for name in {"tests", "failures", "errors", "skipped"} & set(element.attrib):
        if not NUMBER.fullmatch(element.get(name)):
            yield f"{name} is {element.get(name)}"
    if "time" in element.attrib and not TIME.fullmatch(element.get("time")):
        yield f"time is {element.get('time')}"
    tags = [child.tag for child in element]
    yield from (f"{tag} in {element.tag}" for tag in tags if tag not in children)
    if element.tag == "testcase" and tags != sorted(tags, key=children.index):
        yield f"order {tags}"
    for child in element:
        yield from junit_faults(child)


@pytest.mark.parametrize("name", ["report", "hostile"])
def test_junit_keeps_to_what_jenkins_and_surefire_know(name, request):
    suites = ET.fromstring(FORMATS["junit"](request.getfixturevalue(name)))
    assert suites.tag == "testsuites" and list(junit_faults(suites)) == []


def test_the_statement_of_junit_refuses_what_is_wrong():
    case = '<testcase name="b" time="0"><failure/></testcase>'
    wrong = f'<testsuite name="a" tests="x" errors="0" failures="1">{case}</testsuite>'
    faults = set(junit_faults(ET.fromstring(wrong)))
    assert faults == {"testsuite without skipped", "tests is x", "failure without type"}


def test_junit_has_a_case_per_rule_and_its_counts_add_up(report):
    suites = ET.fromstring(FORMATS["junit"](report))
    (suite,) = suites
    cases = list(suite)
    assert suites.tag == "testsuites" and suite.tag == "testsuite" and {case.tag for case in cases} == {"testcase"}
    assert {case.get("name").split()[0] for case in cases} == set(all_rules())
    kinds = [{child.tag for child in case} for case in cases]
    assert all(kind <= {"failure", "skipped", "system-out"} for kind in kinds)
    for attribute, tag in (("failures", "failure"), ("skipped", "skipped")):
        assert int(suite.get(attribute)) == sum(tag in kind for kind in kinds)
    assert int(suite.get("tests")) == len(cases) and int(suite.get("failures")) == 1
    for element in (suites, suite):
        assert {"name", "tests", "failures", "errors", "time"} <= set(element.attrib)


def test_github_lines_are_commands_with_escaped_properties(report):
    lines = FORMATS["github"](report).splitlines()
    commands = [line for line in lines if line.startswith("::")]
    assert len(commands) == len(report.groups)
    assert all(re.fullmatch(r"::(error|warning|notice) [^:\n]*::.+", line) for line in commands)


def test_json_lines_are_one_finding_each(report):
    lines = [json.loads(line) for line in FORMATS["jsonl"](report).splitlines()]
    assert len(lines) == len(report.findings)
    assert {line["code"] for line in lines} == set(report.codes)


@pytest.mark.parametrize("path", ["a\udcff.jsonl", "/x/a\udcff.jsonl", "s3://b/a\udcff", "b\ud800.jsonl"])
def test_a_place_whose_name_is_no_text_has_a_uri(path):
    (result,) = sarif_of(Finding("TM301", "nothing trained", Place(path=path, row=0)))["results"]
    assert re.fullmatch("[!-~]+", result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_hostile_text_drives_no_terminal_page_or_annotation(hostile, name):
    text = FORMATS[name](hostile)
    text.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    if name == "html":
        assert "</script>" not in text and "<!--" not in text
    if name == "github":
        assert not any(line.startswith("::error::x") for line in text.splitlines())
    if name == "junit":
        ET.fromstring(text)
    if name in ("json", "sarif"):
        json.loads(text)


def test_the_same_rows_give_the_same_report_byte_for_byte():
    data = clean(Tokenizer.load(SMALL), n=10)
    renders = {FORMATS["json"](check_dataset(Rows(data.rows), tokenizer=data.renderer.tokenizer)) for _ in range(2)}
    assert len(renders) == 1


def test_text_says_cause_share_and_places_and_what_did_not_run(report):
    text = FORMATS["text"](report)
    assert "E TM302 mask-shifted: 1 of 50 rows, one cause: shift -1" in text
    assert text.endswith(" could not (--skipped lists them)\n") and "not run" not in text and "TM401" not in text
    full = with_skipped(report)
    assert "not run, missing log-probs" in full and "TM401" in full


def test_a_tolerated_share_does_not_fail(report):
    data = clean(Tokenizer.load(SMALL))
    rows = Foreign([foreign(row) for row in data.rows])
    strict = Settings(fail_on=Severity.WARNING)
    assert check_dataset(rows, tokenizer=data.renderer.tokenizer, settings=strict).exit_code == 1
    for text, code in (("20%", 0), ("19%", 1), ("10", 0), ("9", 1)):
        lenient = Settings(fail_on=Severity.WARNING, tolerance={"TM107": Tolerance.of(text)})
        assert check_dataset(rows, tokenizer=data.renderer.tokenizer, settings=lenient).exit_code == code
