"""What a run found: groups of findings with one cause, what was skipped and why, the exit code. Knows no dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tracemask.check.config import Settings, Tolerance
from tracemask.check.finding import Finding, Severity
from tracemask.check.rule import Rule

VERSION = "1.0"


@dataclass
class Group:
    """All findings of one rule with one cause: counted in full, the first `examples` kept."""

    rule: Rule
    severity: Severity
    cause: str | None
    findings: int = 0
    rows: int = 0
    examples: list[Finding] = field(default_factory=list)
    tolerated: bool = False
    _last_row: int | None = None

    def add(self, finding: Finding, *, keep: int) -> None:
        """Count `finding`; findings come in row order, so rows are counted without a set."""
        self.findings += 1
        row = finding.place.row
        if row is not None and row != self._last_row:
            self.rows += 1
            self._last_row = row
        if len(self.examples) < keep:
            self.examples.append(finding)


@dataclass(frozen=True, slots=True)
class Skip:
    """A rule that could not run, and the inputs it lacks. It did not pass."""

    rule: Rule
    missing: tuple[str, ...]
    remedy: str
    required: bool = False


@dataclass
class Report:
    """The outcome of a run. groups: worst first. ran: codes that saw data. suppressed: known to the baseline.

    unreadable: records of a log that could not be read, each with its place and code.
    """

    path: str
    kind: str
    rows: int
    tokens: int
    groups: list[Group]
    skipped: list[Skip]
    ran: tuple[str, ...]
    settings: Settings
    suppressed: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    unused_ignores: tuple[str, ...] = ()
    stale_baseline: int = 0
    notes: tuple[str, ...] = ()
    traces: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Every kept finding, groups in order."""
        return [finding for group in self.groups for finding in group.examples]

    @property
    def graded(self) -> list[Finding]:
        """`findings`, each with the severity of its group."""
        return [replace(finding, severity=group.severity) for group in self.groups for finding in group.examples]

    @property
    def codes(self) -> list[str]:
        """Codes found, each once, in order."""
        return sorted({group.rule.code for group in self.groups})

    def count(self, severity: Severity) -> int:
        """Findings of one severity, tolerated ones included."""
        return sum(group.findings for group in self.groups if group.severity is severity)

    @property
    def failed(self) -> bool:
        """A group at or above `fail_on` and not tolerated, a required rule that was skipped, an unreadable record."""
        worst = any(group.severity.rank <= self.settings.fail_on.rank and not group.tolerated for group in self.groups)
        return worst or bool(self.unreadable) or any(skip.required for skip in self.skipped)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings."""
        return int(self.failed)

    def to_json(self, *, examples: int | None = None) -> dict[str, Any]:
        """A plain dict: schemas/finding.v1.schema.json. examples: findings per group, default all that were kept."""
        return {
            "version": VERSION,
            "dataset": {"path": self.path, "kind": self.kind, "rows": self.rows, "tokens": self.tokens,
                        "traces": self.traces},
            "exit_code": self.exit_code,
            "counts": {each.value: self.count(each) for each in Severity},
            "groups": [_group(group, examples) for group in self.groups],
            "skipped": [
                {"code": skip.rule.code, "name": skip.rule.name, "missing": list(skip.missing), "remedy": skip.remedy,
                 "required": skip.required}
                for skip in self.skipped
            ],
            "ran": list(self.ran),
            "suppressed": self.suppressed,
            "ignored": dict(sorted(self.ignored.items())),
            "unused_ignores": list(self.unused_ignores),
            "stale_baseline": self.stale_baseline,
            "unreadable": list(self.unreadable),
            "notes": list(self.notes),
        }  # fmt: skip


def _group(group: Group, examples: int | None) -> dict[str, Any]:
    kept = group.examples if examples is None else group.examples[:examples]
    return {
        "code": group.rule.code,
        "name": group.rule.name,
        "severity": group.severity.value,
        "cause": group.cause,
        "findings": group.findings,
        "rows": group.rows,
        "tolerated": group.tolerated,
        "examples": [finding.to_json() for finding in kept],
    }


class Collector:
    """Gathers findings into groups as they come; memory is bounded by rules × causes × examples."""

    def __init__(self, rules: Mapping[str, Rule], *, keep: int) -> None:
        self.rules = rules
        self.keep = keep
        self.groups: dict[tuple[str, str | None, Severity], Group] = {}

    def add(self, finding: Finding) -> None:
        """Count one finding."""
        rule = self.rules[finding.code]
        severity = finding.severity or rule.severity
        key = (finding.code, finding.cause, severity)
        if key not in self.groups:
            self.groups[key] = Group(rule, severity, finding.cause)
        self.groups[key].add(finding, keep=self.keep)

    def ordered(self, tolerance: Mapping[str, Tolerance], *, total: int) -> list[Group]:
        """Worst first, then by code and number; tolerances are settled here."""
        groups = sorted(
            self.groups.values(),
            key=lambda group: (group.severity.rank, group.rule.code, -group.findings, group.cause or ""),
        )
        for selector, each in tolerance.items():
            chosen = [group for group in groups if group.rule.code.startswith(selector.upper())]
            findings, rows = sum(group.findings for group in chosen), sum(group.rows for group in chosen)
            if chosen and each.allows(findings=findings, rows=min(rows, total), total=total):
                for group in chosen:
                    group.tolerated = True
        return groups
