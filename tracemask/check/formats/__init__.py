"""Output formats by name: each is a function from a report to text."""

from collections.abc import Callable

from tracemask.check.report import Report
from tracemask.core.registry import Table

FORMATS: Table[Callable[[Report], str]] = Table(
    "output format",
    text="tracemask.check.formats.text:render",
    json="tracemask.check.formats.json:render",
    jsonl="tracemask.check.formats.jsonl:render",
    sarif="tracemask.check.formats.sarif:render",
    junit="tracemask.check.formats.junit:render",
    github="tracemask.check.formats.github:render",
    html="tracemask.check.formats.html:render",
)
