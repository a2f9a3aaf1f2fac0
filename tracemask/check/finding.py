"""The words of check, gathered in one place for rule authors: findings come from core, rules add their own."""

from tracemask.core.finding import Finding, Place, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

__all__ = ["ERROR", "INFO", "WARNING", "Finding", "Place", "Severity"]
