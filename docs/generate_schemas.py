"""schemas/*.json from the models: one table line a schema."""

from __future__ import annotations

import json
from importlib import import_module

SCHEMAS = {
    "schemas/trace.v1.schema.json": "tracemask.trace:schema",
    "schemas/recipe.v1.schema.json": "tracemask.recipe.schema:recipe_schema",
    "schemas/manifest.v1.schema.json": "tracemask.store.manifest:schema",
    "schemas/finding.v1.schema.json": "tracemask.check.schema:schema",
}


def pages() -> dict[str, str]:
    """Path to JSON Schema, keys sorted."""
    out = {}
    for path, source in SCHEMAS.items():
        module, _, function = source.partition(":")
        schema = getattr(import_module(module), function)()
        out[path] = json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return out
