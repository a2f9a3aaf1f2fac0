"""The pages of the lint rules, from their docstrings: docs/reference/rules/CODE.md and an index."""

from __future__ import annotations

from tracemask.check.pages import index, page
from tracemask.check.rule import all_rules

FOLDER = "docs/reference/rules"


def pages() -> dict[str, str]:
    """Path from the project's root → Markdown."""
    rules = all_rules()
    out = {f"{FOLDER}/{code}.md": page(rule) for code, rule in rules.items()}
    out[f"{FOLDER}/index.md"] = index(rules.values())
    return out
