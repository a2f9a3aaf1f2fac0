"""The report as SARIF 2.1.0, for code scanning. Rows stand where lines would: line = row + 1."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from tracemask.check.baseline import key
from tracemask.check.finding import Finding, Severity
from tracemask.check.formats.json import _number
from tracemask.check.report import Group, Report
from tracemask.check.rule import Rule, all_rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    """One run with the rules that ran, its results, and notifications for rules that could not run."""
    codes = sorted({*report.ran, *report.codes})
    index = {code: i for i, code in enumerate(codes)}
    rules = all_rules()
    run: dict[str, Any] = {
        "tool": {"driver": {
            "name": "tracemask", "version": _version(), "semanticVersion": _version(),
            "informationUri": "https://pypi.org/project/tracemask/", "rules": [_rule(rules[code]) for code in codes],
        }},
        "columnKind": "unicodeCodePoints",
        "invocations": [{
            "executionSuccessful": True, "exitCode": report.exit_code,
            "toolExecutionNotifications": [
                {"level": "note", "message": {"text": f"{skip.rule.code} not run: no {', '.join(skip.missing)}"}}
                for skip in report.skipped
            ],
        }],
        "results": [_result(finding, group, index, report) for group in report.groups for finding in group.examples],
        "properties": {"rows": report.rows, "tokens": report.tokens},
    }  # fmt: skip
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False, default=_number) + "\n"


def _version() -> str:
    from tracemask import __version__

    return __version__


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": rule.doc, "markdown": rule.doc},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }


def _result(finding: Finding, group: Group, index: dict[str, int], report: Report) -> dict[str, Any]:
    place = finding.place
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": LEVELS[group.severity],
        "message": {"text": f"{place}: {finding.message}" if str(place) else finding.message},
        "locations": [{"physicalLocation": _location(finding, report)}],
        "partialFingerprints": {"tracemask/v1": key(finding, place.id)},
    }
    properties = {
        name: value
        for name, value in (("cause", finding.cause), ("turn", place.turn), ("token", place.token))
        if value is not None
    }
    if properties:
        result["properties"] = properties
    return result


def _location(finding: Finding, report: Report) -> dict[str, Any]:
    place = finding.place
    path = place.path or report.path or "dataset"
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(PurePath(path).as_posix(), safe="/:@+~,")}}
    if place.row is not None:
        region: dict[str, Any] = {"startLine": place.row + 1}
        if place.token is not None:
            region["startColumn"] = place.token + 1
            region["endColumn"] = (place.end if place.end is not None else place.token + 1) + 1
        location["region"] = region
    return location
