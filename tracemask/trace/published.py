"""The published JSON Schema of a trace, generated from the model. Knows only the model."""

from __future__ import annotations

from typing import Any

from tracemask.trace.model import SCHEMA_VERSION, Trace


def schema() -> dict[str, Any]:
    """schemas/trace.v1.schema.json: what a line of our own JSONL may hold (draft 2020-12)."""
    body = Trace.model_json_schema(mode="validation", ref_template="#/$defs/{model}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"tracemask/trace.v{SCHEMA_VERSION.split('.')[0]}.schema.json",
        "x-version": SCHEMA_VERSION,
        **body,
    }
