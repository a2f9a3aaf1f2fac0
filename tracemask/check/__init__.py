"""Rules about token datasets and the runner that applies them. Knows rows, tokenizers and templates, never a loss."""

from typing import Any

__all__ = ["Report", "Settings", "all_rules", "check_dataset"]

_HOMES = {
    "Report": "tracemask.check.report",
    "Settings": "tracemask.check.config",
    "all_rules": "tracemask.check.rule",
    "check_dataset": "tracemask.check.runner",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
