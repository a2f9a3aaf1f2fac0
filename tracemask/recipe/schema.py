"""The recipe's published JSON Schema, generated from the models. Knows the models, writes no file."""

from __future__ import annotations

import json
from typing import Any

from tracemask.recipe.model import Recipe
from tracemask.recipe.terms import TERMS

ID = "tracemask/recipe.v1.schema.json"


def recipe_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe's TOML: sections, and every other table a component with its term's options."""
    schema = Recipe.model_json_schema()
    defs = schema["$defs"]
    component = defs["Component"]
    component["properties"]["term"]["description"] = f"one of {', '.join(TERMS)}, or your own as module:function"
    component["properties"]["options"] = {"type": "object", "default": {}}
    component["properties"]["normalizer"] = {
        "anyOf": [{"enum": _enum(defs["Normalizer"], "name")}, {"$ref": "#/$defs/Normalizer"}],
        "default": "token_mean",
    }
    component["properties"]["mismatch"]["anyOf"].append({"enum": _enum(defs["Mismatch"], "kind")})
    component["allOf"] = [_options_of(name, defs) for name in TERMS]
    properties = schema["properties"]
    properties["extends"] = {"type": "string", "description": "name of the preset that this recipe changes"}
    schema["additionalProperties"] = {"$ref": "#/$defs/Component"}
    component["required"].remove("term")  # a recipe that extends another may leave it out
    schema["if"] = {"not": {"required": ["extends"]}}
    schema["then"] = {"properties": dict.fromkeys(properties, True), "additionalProperties": {"required": ["term"]}}
    schema.pop("required", None)
    schema.pop("title", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": ID, "title": "tracemask recipe"}
    return head | schema


def schema_text() -> str:
    """The schema as the bytes of the published file."""
    return json.dumps(recipe_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _enum(definition: dict[str, Any], field: str) -> list[str]:
    return definition["properties"][field]["enum"]


def _options_of(term: str, defs: dict[str, Any]) -> dict[str, Any]:
    model = TERMS[term].options
    defs[model.__name__] = model.model_json_schema()
    return {
        "if": {"properties": {"term": {"const": term}}, "required": ["term"]},
        "then": {"properties": {"options": {"$ref": f"#/$defs/{model.__name__}"}}},
    }
