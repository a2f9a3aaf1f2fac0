"""The report as one plain HTML file with a strict policy and no script; `tracemask report` makes the full one."""

from __future__ import annotations

from html import escape

from tracemask.check.formats.plain import neutral
from tracemask.check.formats.text import EXAMPLES, summary
from tracemask.check.report import Group, Report

_UNREADABLE = 100  # records listed
_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
code,td:first-child{font-family:ui-monospace,monospace}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
.E{border-left:.4rem solid #c33}.W{border-left:.4rem solid #c90}.i{border-left:.4rem solid #58a}
details{margin:.2rem 0}
"""


def render(report: Report) -> str:
    """Groups as a table with examples folded in, then the rules that could not run."""
    rows = "".join(_group(group, report) for group in report.groups)
    skipped = "".join(
        f"<tr><td>{skip.rule.code}</td><td>{escape(skip.rule.name)}</td><td>{escape(', '.join(skip.missing))}</td></tr>"
        for skip in report.skipped
    )
    unreadable = "".join(f"<li>{escape(neutral(text))}</li>" for text in report.unreadable[:_UNREADABLE])
    unreadable = f"<h2>Unreadable</h2><ul>{unreadable}</ul>" if unreadable else ""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width"><title>tracemask check</title>'
        f"<style>{_STYLE}</style></head><body><h1>tracemask check</h1>"
        f"<p><code>{escape(neutral(report.path))}</code></p>"
        f"<p>{escape(summary(report))}</p><table><thead><tr><th>rule</th><th>rows</th><th>what</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>{unreadable}<h2>Not run</h2>"
        f"<table><thead><tr><th>rule</th><th>name</th><th>missing</th></tr>"
        f"</thead><tbody>{skipped}</tbody></table></body></html>\n"
    )


def _group(group: Group, report: Report) -> str:
    examples = "".join(
        f"<li><code>{escape(neutral(str(each.place)) or 'dataset')}</code> {escape(neutral(each.message))}</li>"
        for each in group.examples[: 10 * EXAMPLES]
    )
    cause = f" · {escape(neutral(group.cause))}" if group.cause else ""
    count = f"{group.rows:,} of {report.rows:,}" if group.rows else f"{group.findings:,}"
    return (
        f'<tr class="{group.severity.value}"><td>{group.severity.value} {group.rule.code}</td><td>{count}</td>'
        f"<td>{escape(group.rule.name)}{cause}<details><summary>{group.findings:,} found</summary><ul>{examples}</ul>"
        f"</details></td></tr>"
    )
