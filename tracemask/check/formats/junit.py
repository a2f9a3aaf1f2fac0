"""The report as JUnit XML: a rule is a test case, so that CI dashboards show which rules ran.

The elements and attributes are those that both Jenkins's junit-10.xsd and Maven Surefire's test report know.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from tracemask.check.finding import Severity
from tracemask.check.formats.plain import neutral
from tracemask.check.formats.text import group_lines
from tracemask.check.report import Group, Report
from tracemask.check.rule import all_rules

_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """One suite. A failing group is a failure, a skipped rule is skipped, a tolerated or lesser group is output."""
    groups: dict[str, list[Group]] = {}
    for group in report.groups:
        groups.setdefault(group.rule.code, []).append(group)
    cases = []
    failures = 0
    names = {skip.rule.code: skip.rule.name for skip in report.skipped}
    names |= {group.rule.code: group.rule.name for group in report.groups}
    for code in sorted({*report.ran, *groups}):
        body, failed = _case(groups.get(code, []), report)
        failures += failed
        cases.append(_wrap(code, names.get(code) or all_rules()[code].name, body))
    for skip in report.skipped:
        missing = f"missing {', '.join(skip.missing)}"
        failures += skip.required
        kind = f"<skipped message={quoteattr(missing)}/>"
        if skip.required:
            kind = f'<failure message={quoteattr("required: " + missing)} type="required"/>'
        cases.append(_wrap(skip.rule.code, skip.rule.name, [kind]))
    if report.unreadable:
        failures += 1
        lines = [_valid(neutral(text)) for text in report.unreadable]
        failure = f'<failure message={quoteattr(lines[0])} type="error">{escape(chr(10).join(lines))}</failure>'
        cases.append(f'<testcase classname="tracemask" name="unreadable records" time="0">{failure}</testcase>')
    skipped = sum(not skip.required for skip in report.skipped)
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0"'
    suite = f'<testsuite name="tracemask check" {counts} skipped="{skipped}" time="0">'
    head = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="tracemask" {counts} time="0">', suite]
    return "\n".join([*head, *cases, "</testsuite>", "</testsuites>"]) + "\n"


def _case(groups: list[Group], report: Report) -> tuple[list[str], int]:
    body: list[str] = []
    failing = [g for g in groups if g.severity.rank <= report.settings.fail_on.rank and not g.tolerated]
    if failing:
        lines = [line for group in failing for line in group_lines(group, report)]
        kind = "error" if failing[0].severity is Severity.ERROR else failing[0].severity.name.lower()
        body.append(
            f"<failure message={quoteattr(_valid(lines[0]))} type={quoteattr(kind)}>"
            f"{escape(_valid(chr(10).join(lines)))}</failure>"
        )
    others = [line for group in groups if group not in failing for line in group_lines(group, report)]
    if others:
        body.append(f"<system-out>{escape(_valid(chr(10).join(others)))}</system-out>")
    return body, int(bool(failing))


def _wrap(code: str, name: str, body: list[str]) -> str:
    head = f'<testcase classname="tracemask.{code}" name={quoteattr(f"{code} {name}")} time="0"'
    return head + ("/>" if not body else ">" + "".join(body) + "</testcase>")


def _valid(text: str) -> str:
    """`text` without characters that XML 1.0 cannot hold."""
    return _INVALID.sub("\ufffd", text)
