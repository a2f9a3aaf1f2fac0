"""Findings as JSON lines, one a line, for pipes."""

from __future__ import annotations

from tracemask.check.formats.json import text_of
from tracemask.check.report import Report


def render(report: Report) -> str:
    """One object per kept finding, with its rule's name and severity; nothing for a clean report."""
    lines = []
    for group in report.groups:
        for finding in group.examples:
            entry = {**finding.to_json(), "name": group.rule.name, "severity": group.severity.value}
            lines.append(text_of(entry))
    return "".join(line + "\n" for line in lines)
