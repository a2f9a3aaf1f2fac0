"""The report as SARIF 2.1.0, for code scanning. Rows of a dataset stand where lines would: line = row + 1.

Beyond the standard it keeps to what GitHub's code scanning asks for: a whole region and a `primaryLocationLineHash` in
every result, paths relative to the folder one stands in, at most MOST results.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from tracemask.check.baseline import key
from tracemask.check.finding import Finding, Severity
from tracemask.check.formats.json import text_of
from tracemask.check.report import Group, Report
from tracemask.check.rule import Rule, all_rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST = 5_000  # results of a run that code scanning shows
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
                *({"level": "error", "message": {"text": f"unreadable: {text}"}} for text in report.unreadable[:MOST]),
                *({"level": "note", "message": {"text": text}} for text in _notes(report)),
            ],
        }],
        "results": [_result(finding, group, index, report) for group, finding in _results(report)],
        "properties": {"rows": report.rows, "tokens": report.tokens},
    }  # fmt: skip
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return text_of(document, indent=2) + "\n"


def _results(report: Report) -> list[tuple[Group, Finding]]:
    """At most MOST findings: of every cause its first ones, so that no cause hides another."""
    taken, rounds = [], max((len(group.examples) for group in report.groups), default=0)
    for k in range(rounds):
        taken += [(g, group.examples[k]) for g, group in enumerate(report.groups) if k < len(group.examples)]
        if len(taken) >= MOST:
            break
    return [(report.groups[g], finding) for g, finding in sorted(taken[:MOST], key=lambda each: each[0])]


def _notes(report: Report) -> list[str]:
    notes = [f"{skip.rule.code} not run, missing {', '.join(skip.missing)}" for skip in report.skipped]
    found = sum(group.findings for group in report.groups)
    shown = min(sum(len(group.examples) for group in report.groups), MOST)
    return notes if shown == found else [*notes, f"{shown:,} of {found:,} findings are listed here"]


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
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding)},
    }
    properties = {
        name: value
        for name, value in (("cause", finding.cause), ("turn", place.turn), ("token", place.token))
        if value is not None
    }
    if properties:
        result["properties"] = properties
    return result


def _fingerprint(finding: Finding) -> str:
    """The same for the same finding in the next run: by the row's id where it has one, else by its number."""
    place = finding.place
    row = place.id if place.id is not None else None if place.row is None else f"row {place.row}"
    return hashlib.blake2b(key(finding, row).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest() + ":1"


def _location(finding: Finding, report: Report) -> dict[str, Any]:
    place = finding.place
    path, line = _line_of(place.path or report.path or "dataset")
    start = 1 if place.token is None else place.token + 1
    end = start + 1 if place.end is None or place.token is None else max(place.end, place.token + 1) + 1
    first = place.line or (line if place.row is None else place.row + 1)
    region = {"startLine": first, "startColumn": start, "endLine": first, "endColumn": end}
    return {"artifactLocation": {"uri": _uri(path)}, "region": region}


def _line_of(path: str) -> tuple[str, int]:
    """A log's `file:line`, else the path and line 1."""
    file, colon, line = path.rpartition(":")
    return (file, max(int(line), 1)) if colon and line.isdecimal() and line.isascii() else (path, 1)


def _uri(path: str) -> str:
    """Relative where the path lies in the folder one stands in, else absolute with its scheme."""
    if "://" in path:
        return quote(path, safe="/:@+~,", errors="surrogatepass")
    pure = PurePath(path)
    if pure.is_absolute():
        here = Path.cwd()
        if not pure.is_relative_to(here):
            return "file://" + _quoted(pure)
        pure = pure.relative_to(here)
    return _quoted(pure)


def _quoted(path: PurePath) -> str:
    """The bytes of a name, of which not all need be text."""
    try:
        return quote(os.fsencode(path.as_posix()), safe="/@+~,")
    except UnicodeEncodeError:  # no name that this system gave
        return quote(path.as_posix(), safe="/@+~,", errors="surrogatepass")
