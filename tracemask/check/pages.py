"""Documentation pages of rules, generated from their docstrings. Knows no file."""

from __future__ import annotations

from collections.abc import Iterable

from tracemask.check.finding import Severity
from tracemask.check.rule import Rule

WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
SUBJECTS = {
    "TM1": "Traces",
    "TM2": "Tokens",
    "TM3": "Masks",
    "TM4": "Log-probs and rewards",
    "TM5": "Datasets",
    "TM6": "Recipes and steps",
}


def page(rule: Rule) -> str:
    """The Markdown page of one rule."""
    needs = ", ".join(f"{need.label} ({need.letter})" for need in rule.needs) or "nothing"
    head = (
        f"# {rule.code} {rule.name}\n\n{WORDS[rule.severity].capitalize()} ({rule.severity.value}). Needs {needs}.\n\n"
    )
    return head + rule.doc + "\n"


def index(rules: Iterable[Rule]) -> str:
    """The table of all rules with links to their pages."""
    lines = ["# Rules", "", "Generated from the rules' docstrings by `docs/generate_rules.py`.", ""]
    subject = ""
    for rule in rules:
        if rule.code[:3] != subject:
            subject = rule.code[:3]
            lines += [
                "",
                f"## {SUBJECTS[subject]}",
                "",
                "| code | severity | needs | what it finds |",
                "| --- | --- | --- | --- |",
            ]
        lines.append(
            f"| [{rule.code} {rule.name}]({rule.code}.md) | {rule.severity.value} | {rule.letters} | {rule.summary} |"
        )
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"
