"""Typed taking of fields from a JSON object: each is taken once, the rest is known, errors name the field.

Knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from tracemask.core.errors import TraceError


class Fields:
    """A JSON object whose fields are taken one by one; `rest` is what nobody took.

    Absent and null are alike: None.
    """

    __slots__ = ("_left", "raw", "where")

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, Mapping):
            raise TraceError("TM911", where=where, what=f"expected an object, found {_kind(raw)}")
        self.raw: Mapping[str, Any] = cast("Mapping[str, Any]", raw)
        self._left: dict[str, Any] = dict(self.raw)
        self.where = where

    def has(self, key: str) -> bool:
        """The key is there and not yet taken, null included."""
        return key in self._left

    def empty(self) -> bool:
        """Nothing is left to take."""
        return not self._left

    def get(self, key: str) -> Any:
        """The value without taking it."""
        return self._left.get(key)

    def take(self, key: str) -> Any:
        """The value as it is, or None."""
        return self._left.pop(key, None)

    def take_first(self, *keys: str) -> Any:
        """The first of several spellings that is not null; the others stay in the rest."""
        for key in keys:
            if self._left.get(key) is not None:
                return self._left.pop(key)
        for key in keys:
            self._left.pop(key, None)
        return None

    def give(self, key: str, value: Any) -> None:
        """Puts a value back: what an importer did not read of it stays in the rest."""
        self._left[key] = value

    def take_str(self, key: str) -> str | None:
        """A string or None. Raises TraceError TM911."""
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"expected a string, found {_kind(value)}")
        return value

    def take_id(self, key: str) -> str | None:
        """A string, or an integer as a string, or None."""
        value = self._left.pop(key, None)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise self.error(key, f"expected a string or an integer, found {_kind(value)}")

    def take_number(self, key: str) -> float | None:
        """A number as a float, or None; true and "1" are not numbers."""
        value = self._left.pop(key, None)
        if value is None or isinstance(value, float):
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"expected a number, found {_kind(value)}")
        try:
            return float(value)
        except OverflowError:
            raise self.error(key, "a number beyond the range of floats") from None

    def take_int(self, key: str) -> int | None:
        """An integer or None."""
        value = self._left.pop(key, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.error(key, f"expected an integer, found {_kind(value)}")
        return value

    def take_bool(self, key: str) -> bool | None:
        """true, false or None."""
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"expected true or false, found {_kind(value)}")
        return value

    def take_list(self, key: str) -> list[Any] | None:
        """A list or None."""
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, list):
            raise self.error(key, f"expected a list, found {_kind(value)}")
        return cast("list[Any] | None", value)

    def take_dict(self, key: str) -> dict[str, Any] | None:
        """An object or None."""
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, f"expected an object, found {_kind(value)}")
        return cast("dict[str, Any] | None", value)

    def rest(self) -> dict[str, Any]:
        """What nobody took, nulls left out."""
        return {key: value for key, value in self._left.items() if value is not None} if self._left else {}

    def at(self, path: str) -> str:
        """The place of a field of this object: where.path, or file:line:path at the top of a line."""
        return f"{self.where}{path}" if not self.where or self.where.endswith(":") else f"{self.where}.{path}"

    def error(self, key: str, what: str, *, fix: str = "", code: str = "TM911") -> TraceError:
        """The error for one field of this object."""
        return TraceError(code, where=self.at(key), what=what, fix=fix)


def first_problem(error: ValidationError) -> tuple[str, str]:
    """(field path, reason) of the first problem that pydantic found, in our words."""
    problem = error.errors(include_url=False, include_context=False)[0]
    path = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("function-before", "nullable"):
            path += f".{part}" if path else part
    value = problem.get("input")
    shown = repr(value) if isinstance(value, str | int | float | None) else _kind(value)
    reason = problem["msg"].removeprefix("Value error, ")
    return path, f"{reason[0].lower()}{reason[1:]}, found {shown[:80]}"


def _kind(value: Any) -> str:
    """The JSON word for a value's type, with the value itself where it is short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, int | float):
        return f"the number {value!r}"[:60]
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else type(value).__name__
