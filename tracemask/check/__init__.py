"""Rules about token datasets and the runner that applies them. Knows rows, tokenizers and templates, never a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracemask.core.lazy import names

if TYPE_CHECKING:
    from tracemask.check.config import Settings
    from tracemask.check.report import Report
    from tracemask.check.rule import all_rules
    from tracemask.check.runner import check_dataset

__all__ = ["Report", "Settings", "all_rules", "check_dataset"]

_HOME = {
    "Report": "tracemask.check.report",
    "Settings": "tracemask.check.config",
    "all_rules": "tracemask.check.rule",
    "check_dataset": "tracemask.check.runner",
}

__getattr__ = names(__name__, _HOME)
