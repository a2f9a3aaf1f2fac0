"""Settings of a run: from tracemask.toml or [tool.tracemask.check], then the command line. Knows no dataset."""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracemask.check.context import Options
from tracemask.check.finding import Severity
from tracemask.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much of a rule's finding is let pass: a share of the rows, or a number of findings."""

    share: float | None = None
    count: int | None = None

    @classmethod
    def of(cls, text: str | int | float) -> Tolerance:
        """ "5%" is a share of the rows, "3" a number of findings. UsageError TM900 for anything else."""
        spelled = str(text).strip()
        try:
            if spelled.endswith("%"):
                share = float(spelled[:-1]) / 100
                if 0 <= share <= 1:
                    return cls(share=share)
            elif int(spelled) >= 0:
                return cls(count=int(spelled))
        except ValueError:
            pass
        raise UsageError("TM900", what=f"tolerance {spelled!r}", fix='write a share of rows as "5%" or a number as "3"')

    def allows(self, *, findings: int, rows: int, total: int) -> bool:
        """Whether this many findings in `rows` of `total` rows pass."""
        if self.share is not None:
            return rows <= self.share * total
        return self.count is not None and findings <= self.count


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run and what counts. ignore: selector → reason. examples: findings kept per rule and cause.
    date: ISO, the day that the template prints.
    """

    select: tuple[str, ...] = ()
    ignore: Mapping[str, str] = field(default_factory=dict)
    require: tuple[str, ...] = ()
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    fail_on: Severity = Severity.ERROR
    baseline: str | None = None
    examples: int = 1000
    block_tokens: int = 1 << 19
    options: Options = field(default_factory=Options)
    columns: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    template: str | None = None
    date: str | None = None

    def __post_init__(self) -> None:
        for selector, reason in self.ignore.items():
            if not str(reason).strip():
                raise UsageError(
                    "TM900",
                    what=f"ignore of {selector} gives no reason",
                    fix=f'write {selector}="why" so that the next reader can judge it',
                )


_OPTIONS = {item.name for item in fields(Options)}
_KNOWN = {item.name for item in fields(Settings)} - {"options", "block_tokens"} | _OPTIONS


def read(path: str | Path) -> Settings:
    """Settings of a TOML file: pyproject.toml ([tool.tracemask.check]) or any other ([check], or its top level).

    Its paths count from its own folder.

    UsageError TM901 without the file, TM900 for what cannot be read, TM902 for unknown keys.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError("TM901", where=str(path), what="no such configuration file", fix="check --config")
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("TM900", where=str(path), what=f"not TOML: {error}", fix="correct the file") from None
    if file.name == "pyproject.toml":
        for name in ("tool", "tracemask", "check"):
            table = _table(table.get(name, {}), name, where=str(path))
    else:
        table = _table(table.get("check", table), "check", where=str(path))
    try:
        return from_table(_beside(table, file.parent), where=str(path))
    except UsageError as error:
        raise UsageError(error.code, where=error.where or str(path), what=error.what, fix=error.fix) from None


_PATHS = ("tokenizer", "template", "baseline", "eval_path", "eval-path")


def _beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`table` with its paths as seen from here: they count from the file's folder, wherever one stands below it."""
    base = os.path.relpath(folder)
    if base == ".":
        return table
    seen = {
        key: os.path.join(base, value)
        for key, value in table.items()
        if key in _PATHS and isinstance(value, str) and "://" not in value and not value.startswith("hub:")
    }
    return table | seen


def _table(value: Any, name: str, *, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError("TM900", where=where, what=f"{name} is {value!r}, not a table", fix=f"write [{name}]")
    return value


def find(start: str | Path) -> Path | None:
    """The nearest tracemask.toml, or pyproject.toml with our table, in `start` or above."""
    here = Path(start).resolve()
    for folder in (here, *here.parents):
        own = folder / "tracemask.toml"
        if own.is_file():
            return own
        project = folder / "pyproject.toml"
        if project.is_file() and "[tool.tracemask.check" in project.read_text(encoding="utf-8"):
            return project
    return None


def from_table(table: Mapping[str, Any], *, where: str = "") -> Settings:
    """Settings from parsed TOML; dashes and underscores are the same.

    UsageError TM902 for unknown keys, TM900 for values of another kind.
    """
    given = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise UsageError(
            "TM902",
            where=where,
            what=f"unknown setting {', '.join(unknown)}",
            fix=f"known: {', '.join(sorted(_KNOWN))}",
        )
    given = _typed(given, where=where)
    options = Options(**{key: given.pop(key) for key in list(given) if key in _OPTIONS})
    for key in ("select", "require"):
        if key in given:
            given[key] = tuple(given[key])
    if "tolerance" in given:
        given["tolerance"] = {code: Tolerance.of(value) for code, value in given["tolerance"].items()}
    if "fail_on" in given:
        given["fail_on"] = severity(given["fail_on"])
    return Settings(**given, options=options)


class _Given(BaseModel):
    """The kind of every setting that a file may hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    select: list[str] = []
    ignore: dict[str, str] = {}
    require: list[str] = []
    tolerance: dict[str, str | int | float] = {}
    fail_on: str = ""
    baseline: str | None = None
    examples: int = Field(default=0, ge=0)
    columns: dict[str, str] = {}
    tokenizer: str | None = None
    template: str | None = None
    date: str | datetime.date | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    group_size: int | None = Field(default=None, ge=1)
    pre_shifted: bool = False
    eval_path: str | None = None


def _typed(given: dict[str, Any], *, where: str) -> dict[str, Any]:
    """`given` as it is, a day in ISO form; UsageError TM900 names every setting of another kind."""
    try:
        _Given.model_validate(given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UsageError("TM900", where=where, what=faults, fix="docs/howto/check.md shows each setting") from None
    day = given.get("date")
    return given | {"date": day.isoformat()} if isinstance(day, datetime.date) else given


def severity(text: str) -> Severity:
    """E, W or i. UsageError TM900 for anything else."""
    try:
        return Severity(text)
    except ValueError:
        raise UsageError("TM900", what=f"severity {text!r}", fix="use E, W or i") from None


def merged(base: Settings, **over: Any) -> Settings:
    """`base` with every value of `over` that was given (not None, not empty); ignores and tolerances add up."""
    given = {key: value for key, value in over.items() if value not in (None, (), {}, [])}
    for key in ("ignore", "tolerance", "columns"):
        if key in given:
            given[key] = {**getattr(base, key), **given[key]}
    changed = {key: given.pop(key) for key in list(given) if key in _OPTIONS}
    return replace(base, **given, options=replace(base.options, **changed))
