"""The report for people: causes first, examples after, then what did not run. No colour; the command line adds it."""

from __future__ import annotations

from collections.abc import Iterator

from tracemask.check.finding import Severity
from tracemask.check.formats.plain import neutral, plural
from tracemask.check.pages import WORDS
from tracemask.check.report import Group, Report

EXAMPLES = 3  # per group


def render(report: Report) -> str:
    """Groups worst first: one line each, then up to three examples; a summary line ends the report."""
    hint = " (--skipped lists them)" if report.skipped else ""
    return _render(report, _required(report)) + summary(report) + hint + "\n"


def with_skipped(report: Report) -> str:
    """The same, with every rule that could not run by what it lacks."""
    return _render(report, _skipped(report)) + summary(report) + "\n"


def _render(report: Report, not_run: Iterator[str]) -> str:
    lines = [line for group in report.groups for line in group_lines(group, report)]
    if lines:
        lines.append("")
    lines += [f"unreadable: {neutral(line)}" for line in report.unreadable]
    lines += list(not_run)
    lines += list(_ignores(report))
    return "".join(line + "\n" for line in lines)


def group_lines(group: Group, report: Report) -> Iterator[str]:
    """The headline of one cause and its examples."""
    cause = f", one cause: {neutral(group.cause)}" if group.cause else ""
    passed = " (tolerated)" if group.tolerated else ""
    yield f"{group.severity.value} {group.rule.code} {group.rule.name}: {_share(group, report)}{cause}{passed}"
    for finding in group.examples[:EXAMPLES]:
        where = neutral(str(finding.place)) or neutral(report.path) or "dataset"
        yield f"    {where}: {neutral(finding.message)}"
    if group.findings > EXAMPLES:
        yield f"    … and {group.findings - EXAMPLES:,} more"


def _share(group: Group, report: Report) -> str:
    if group.rows:
        return f"{group.rows:,} of {plural(report.rows, 'row')}"
    return plural(group.findings, "finding")


def _required(report: Report) -> Iterator[str]:
    """The rules that were required and could not run."""
    for skip in report.skipped:
        if skip.required:
            fix = f" ({skip.remedy})" if skip.remedy else ""
            yield f"required but not run: {skip.rule.code}, missing {', '.join(skip.missing)}{fix}"


def _skipped(report: Report) -> Iterator[str]:
    """Skipped rules by what they lack: never counted as passed."""
    by_need: dict[tuple[str, str], list[str]] = {}
    for skip in report.skipped:
        codes = by_need.setdefault((", ".join(skip.missing), skip.remedy), [])
        codes.append(skip.rule.code + ("!" if skip.required else ""))
    for (missing, remedy), codes in sorted(by_need.items()):
        fix = f" ({remedy})" if remedy else ""
        yield f"not run, missing {missing}{fix}: {' '.join(codes)}"
    if any(skip.required for skip in report.skipped):
        yield "! = required, so this run fails"


def _ignores(report: Report) -> Iterator[str]:
    for selector, count in sorted(report.ignored.items()):
        yield f"ignored {selector} ({neutral(str(report.settings.ignore[selector]))}): {plural(count, 'finding')}"
    for selector in report.unused_ignores:
        reason = neutral(str(report.settings.ignore[selector]))
        yield f"unused ignore {selector} ({reason}): nothing to ignore, remove it"
    if report.suppressed:
        yield f"{plural(report.suppressed, 'finding')} known to the baseline"
    if report.stale_baseline:
        yield f"{plural(report.stale_baseline, 'baseline entry').replace('entrys', 'entries')} not found any more"
    yield from map(neutral, report.notes)


def summary(report: Report) -> str:
    """One line: the verdict and its numbers."""
    found = [plural(report.count(each), WORDS[each]) for each in Severity if report.count(each)]
    verdict = ", ".join(found) if found else "no findings"
    size = f"{plural(report.rows, 'row')}, {plural(report.tokens, 'token')}"
    if report.traces:
        size = plural(report.traces, "trace") + (f", {size}" if report.rows else "")
    lost = f", {plural(len(report.unreadable), 'unreadable record')}" if report.unreadable else ""
    return f"{verdict}{lost} in {size}; {plural(len(report.ran), 'rule')} ran, {len(report.skipped)} could not"


def statistics(report: Report) -> str:
    """One line a rule: findings, rows, code, name."""
    lines = [
        f"{group.findings:>9,} {group.rows:>9,}  {group.severity.value} {group.rule.code} {group.rule.name}"
        + (f" [{neutral(group.cause)}]" if group.cause else "")
        for group in report.groups
    ]
    return "\n".join([f"{'findings':>9} {'rows':>9}", *lines, summary(report)]) + "\n"
