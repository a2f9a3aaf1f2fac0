"""The report as GitHub Actions annotations: one per cause, its first place named."""

from __future__ import annotations

from tracemask.check.finding import Severity
from tracemask.check.formats.plain import neutral
from tracemask.check.formats.text import group_lines, summary
from tracemask.check.report import Report

MOST = 10  # annotations of a kind that GitHub shows in a step
COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report) -> str:
    """`::error file=…,title=…::message` lines and a plain summary."""
    lines = []
    for group in report.groups:
        head, *examples = group_lines(group, report)
        place = group.examples[0].place if group.examples else None
        file = _property((place.path if place and place.path else report.path) or "")
        title = _property(f"{group.rule.code} {group.rule.name}")
        line = f",line={place.line}" if place and place.line else ""
        where = f"file={file}{line},title={title}" if file else f"title={title}"
        body = "%0A".join(_message(line) for line in [head[2:], *examples])
        command = "notice" if group.tolerated else COMMANDS[group.severity]
        lines.append(f"::{command} {where}::{body}")
    lines += [f"::error title=unreadable record::{_message(neutral(text))}" for text in report.unreadable[:MOST]]
    return "\n".join([*lines, neutral(summary(report))]) + "\n"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(neutral(text)).replace(":", "%3A").replace(",", "%2C")
