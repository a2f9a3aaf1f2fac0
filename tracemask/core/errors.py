"""Errors that say where, what and what to do; picklable, because workers raise them too. Knows only text."""

from __future__ import annotations


class TracemaskError(Exception):
    """A fault of the input or the request, never of our code.

    code: a rule code (TM1xx–TM6xx) or an operational code (TM9xx, `core/codes.py`).
    where: file:line, row, message or token. what: the fact. fix: what the reader can do about it.
    """

    def __init__(self, code: str, *, where: str = "", what: str, fix: str = "") -> None:
        super().__init__(code, where, what, fix)
        self.code = code
        self.where = where
        self.what = what
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.where, self.what, self.fix)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" Fix: {self.fix}" if self.fix else ""
        return f"{place}{self.code} {self.what}{'' if self.what.endswith('.') else '.'}{remedy}"


def _rebuild(kind: type[TracemaskError], code: str, where: str, what: str, fix: str) -> TracemaskError:
    return kind(code, where=where, what=what, fix=fix)


class UsageError(TracemaskError):
    """A missing file, an unknown name, options that exclude each other."""


class TraceError(TracemaskError):
    """A log line that cannot become a trace."""


class RenderError(TracemaskError):
    """A trace, template or tokenizer that cannot be rendered exactly."""


class StoreError(TracemaskError):
    """A shard, receipt, manifest or lock that is not what it should be."""


class RecipeError(TracemaskError):
    """A recipe that contradicts itself or the data."""


class LossError(TracemaskError):
    """Arrays that a loss term must refuse: non-finite, missing, misaligned."""


class TrainError(TracemaskError):
    """A model, checkpoint or launch that cannot train exactly."""


class MissingExtra(TracemaskError):
    """An optional dependency that is not installed."""

    @classmethod
    def named(cls, package: str, extra: str) -> MissingExtra:
        """The error for `package`, installed by `tracemask[extra]`."""
        return cls("TM903", what=f"{package} is not installed", fix=f"pip install 'tracemask[{extra}]'")
