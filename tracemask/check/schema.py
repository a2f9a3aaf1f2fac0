"""The JSON Schema of check's report, for tools in other languages. Knows the report's shape, not its contents."""

from __future__ import annotations

from typing import Any

_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_SEVERITY = {"enum": ["E", "W", "i"]}
_CODE = {"type": "string", "pattern": "^TM[1-9][0-9]{2}$"}
_TEXTS = {"type": "array", "items": _TEXT}


def schema() -> dict[str, Any]:
    """Draft 2020-12. `$defs/finding` is one finding; the document is a report (`--format json`)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "tracemask/finding.v1.schema.json",
        "title": "tracemask check report",
        "description": "What `tracemask check --format json` prints; minor versions only add fields.",
        **_object(
            {
                "version": {"const": "1.0"},
                "dataset": _object({"path": _TEXT, "kind": _TEXT, "rows": _COUNT, "tokens": _COUNT, "traces": _COUNT}),
                "exit_code": {"enum": [0, 1]},
                "counts": _object({"E": _COUNT, "W": _COUNT, "i": _COUNT}),
                "groups": {"type": "array", "items": {"$ref": "#/$defs/group"}},
                "skipped": {"type": "array", "items": {"$ref": "#/$defs/skip"}},
                "ran": {"type": "array", "items": _CODE},
                "suppressed": _COUNT,
                "ignored": {"type": "object", "additionalProperties": _COUNT},
                "unused_ignores": _TEXTS,
                "stale_baseline": _COUNT,
                "unreadable": _TEXTS,
                "notes": _TEXTS,
            }
        ),
        "$defs": {"finding": _finding(), "group": _group(), "skip": _skip()},
    }


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": True}


def _finding() -> dict[str, Any]:
    place = {
        "path": {**_TEXT, "description": "the dataset, shard or log"},
        "line": {**_COUNT, "description": "line of the log, from 1"},
        "row": {**_COUNT, "description": "row of the dataset, or of all that were rendered, from 0"},
        "turn": {**_COUNT, "description": "message of the trace, from 0"},
        "token": {**_COUNT, "description": "first token in the row, from 0"},
        "end": {**_COUNT, "description": "one past the last token"},
        "id": _TEXT,
    }
    return _object(
        {
            "code": _CODE,
            "message": _TEXT,
            "place": _object(place, optional=tuple(place)),
            "severity": {**_SEVERITY, "description": "absent: the rule's own"},
            "cause": {**_TEXT, "description": "groups findings that share a root"},
            "data": {"type": "object"},
        },
        optional=("severity", "cause", "data"),
    )


def _group() -> dict[str, Any]:
    return _object(
        {
            "code": _CODE,
            "name": _TEXT,
            "severity": _SEVERITY,
            "cause": {"type": ["string", "null"]},
            "findings": _COUNT,
            "rows": _COUNT,
            "tolerated": {"type": "boolean"},
            "examples": {"type": "array", "items": {"$ref": "#/$defs/finding"}},
        }
    )


def _skip() -> dict[str, Any]:
    flags = {"missing": _TEXTS, "remedy": _TEXT, "required": {"type": "boolean"}}
    return _object({"code": _CODE, "name": _TEXT, **flags})
