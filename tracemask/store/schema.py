"""The columns of a shard, their Arrow types and the metadata that says how to read them. Knows no file.

Convention, stated once: index t of every per-token column speaks of token t. `logprob[t]` is log p(token t | tokens
before t), `weight.x[t]` weighs token t; nothing is pre-shifted. All lists are large_list: lengths beyond 2^31 are safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.core.vocab import Author, Fidelity, Origin, Part, Role
from tracemask.store.choice import Choice
from tracemask.store.damage import damaged

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = "2.0"
READABLE = ("1", "2")  # major versions; in 1 every row of a compact shard had a batch of its own
METADATA_KEY = b"tracemask"
BATCHES_KEY = b"tracemask.batches"  # rows of each record batch of a compact shard, as a JSON list


class Profile(Choice):
    """How a shard is laid out."""

    FAST = "fast"  # uncompressed, memory-mapped, zero-copy
    COMPACT = "compact"  # lz4, long rows alone in their record batch


# Per-token columns that every row has, and the numpy type each is read as.
TOKEN_COLUMNS: dict[str, str] = {
    "token_ids": "int32",
    "author": "uint8",
    "role": "uint8",
    "part": "uint8",
    "message": "int32",
    "origin": "uint8",
    "sampled": "bool",
    "logprob": "float32",
}
# Per-token columns whose type is known but which a row may lack (a null list, read as an absent column).
OPTIONAL_COLUMNS: dict[str, str] = {
    "temperature": "float32",
    "advantage": "float32",
    "old_logprob": "float32",
    "ref_logprob": "float32",
    "score_logprob": "float32",
}
# Prefixes of derived columns, one per loss component.
DERIVED_PREFIXES: dict[str, str] = {"weight.": "float32", "denominator.": "float64"}

# Scalars of a row in shard order: name → Arrow spelling, resolved by `scalar_type`.
SCALARS: dict[str, str] = {
    "id": "string",
    "trace_id": "string",
    "branch": "int32",
    "task_id": "string",
    "group_id": "string",
    "attempt": "int32",
    "reward": "float64",
    "rewards": "rewards",
    "row_advantage": "float64",
    "stop": "string",
    "truncated": "bool",
    "fidelity": "string",
    "approximate": "bool",
    "fork_row": "int32",
    "fork_position": "int64",
    "n_tokens": "int64",
    "n_sampled": "int64",
    "n_turns": "int32",  # messages with sampled tokens in this row
    "drift": "int32",
    "drifts": "drifts",
    "trainable": "bool",
    "source": "source",
    "findings": "texts",  # JSON of core Finding.to_json, what only the renderer saw
}
# A per-token column that rarely changes is kept as spans and read as one value a token.
SPANS = "policy_version"
# A trace-level advantage is called `advantage` in a row; in a shard that name is the per-token column.
SCALAR_ALIASES = {"row_advantage": "advantage"}


@cache
def numpy_type(column: str, found: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a per-token column is stored; unknown columns keep the type they come in."""
    fixed = TOKEN_COLUMNS.get(column) or OPTIONAL_COLUMNS.get(column)
    if fixed is None:
        fixed = next((kind for prefix, kind in DERIVED_PREFIXES.items() if column.startswith(prefix)), None)
    return np.dtype(fixed) if fixed else found


def cast(column: str, values: np.ndarray, *, where: str = "") -> np.ndarray:
    """`values` in the column's stored type; a cast that would change an integer or overflow a float is TM501."""
    target = numpy_type(column, values.dtype)
    if column == SPANS or (values.dtype is target and values.ndim == 1 and target.kind in "biuf"):
        return values
    if values.ndim != 1:
        raise _schema_error(where, f"column {column!r} has {values.ndim} dimensions", "give one value per token")
    if target.kind not in "biuf":
        raise _schema_error(where, f"column {column!r} has type {values.dtype}", "store numbers or booleans")
    if values.dtype == target:
        return values
    if target.kind != "f" and values.dtype.kind not in "biu":
        raise _schema_error(where, f"column {column!r} needs {target}, got {values.dtype}", "give whole numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        out = values.astype(target)
    if target.kind in "iub":
        changed = out != values
    else:
        changed = np.isinf(out) & ~np.isinf(values)
    if changed.any():
        t = int(np.argmax(changed))
        what = f"column {column!r} token {t}: {values[t]} does not fit {target}"
        raise _schema_error(where, what, "check the values")
    return out


def _schema_error(where: str, what: str, fix: str) -> StoreError:
    return StoreError("TM501", where=where, what=what, fix=fix)


@cache
def scalar_type(kind: str) -> pa.DataType:
    """The Arrow type behind a spelling of SCALARS."""
    import pyarrow as pa

    compound = {
        "rewards": [("name", pa.string()), ("score", pa.float64()), ("weight", pa.float64()), ("source", pa.string())],
        "drifts": [("message", pa.int32()), ("cause", pa.string()), ("token", pa.int64()), ("changed", pa.int64()),
                   ("where", pa.string())],
        "versions": [("start", pa.int64()), ("end", pa.int64()), ("version", pa.string())],
    }  # fmt: skip
    if kind in compound:
        return pa.large_list(pa.field("item", pa.struct(compound[kind])))
    if kind == "texts":
        return pa.large_list(pa.field("item", pa.large_string()))
    if kind == "source":
        return pa.struct([("format", pa.string()), ("path", pa.string()), ("line", pa.int64())])
    return {"bool": pa.bool_(), "string": pa.large_string()}.get(kind) or getattr(pa, kind)()


def token_type(dtype: np.dtype[Any]) -> pa.DataType:
    """The Arrow type of a per-token column of numpy type `dtype`."""
    import pyarrow as pa

    return pa.large_list(pa.field("item", pa.from_numpy_dtype(dtype)))


def shard_schema(
    extra: dict[str, np.dtype[Any]],
    metadata: dict[str, Any],
    *,
    scalars: dict[str, Any],
    batches: list[int] | None = None,
) -> pa.Schema:
    """Scalars, then the fixed token columns, then `extra` ones by name.

    extra: per-token columns beyond the fixed ones. scalars: further scalar columns (name → Arrow type). batches: rows
    of each record batch, where a reader must know it without reading them.
    """
    import pyarrow as pa

    fields = [pa.field(name, scalar_type(kind)) for name, kind in SCALARS.items()]
    fields += [pa.field(name, kind) for name, kind in sorted(scalars.items())]
    fields += [pa.field(name, token_type(np.dtype(kind))) for name, kind in TOKEN_COLUMNS.items()]
    for name in sorted(extra):
        fields.append(pa.field(name, scalar_type("versions") if name == SPANS else token_type(extra[name])))
    facts = {METADATA_KEY: json.dumps(metadata, sort_keys=True).encode()}
    if batches is not None:
        facts[BATCHES_KEY] = json.dumps(batches, separators=(",", ":")).encode()
    return pa.schema(fields, metadata=facts)


def is_token_field(field: pa.Field) -> bool:
    """Whether an Arrow field of a shard holds one value per token."""
    import pyarrow as pa

    kind = field.type
    if field.name in (SPANS, *SCALARS) or not pa.types.is_large_list(kind):
        return False
    return pa.types.is_primitive(kind.value_type)


def enum_tables() -> dict[str, dict[str, int]]:
    """The codes of every enum column, as written into each shard; they never change meaning."""
    tables = {"author": Author, "role": Role, "part": Part, "origin": Origin, "fidelity": Fidelity}
    return {name: {member.label: int(member) for member in code} for name, code in tables.items()}


def make_metadata(
    *,
    tokenizer_sha256: str = "",
    vocab_size: int = 0,
    template_sha256: str = "",
    renderer_version: str = "",
    profile: Profile | str = Profile.FAST,
    recipe: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a shard says about itself. recipe: given where weights were materialised."""
    return {
        "format_version": FORMAT_VERSION,
        "tokenizer_sha256": tokenizer_sha256,
        "vocab_size": vocab_size,
        "template_sha256": template_sha256,
        "renderer_version": renderer_version,
        "profile": Profile(profile).value,
        "recipe": recipe,
        "enums": enum_tables(),
    }


def read_metadata(schema: pa.Schema, *, where: str) -> dict[str, Any]:
    """The metadata of a shard's schema. TM501: not one of our shards, or of a major version that is not ours."""
    raw = (schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        what = "no tracemask metadata in the schema"
        raise _schema_error(where, what, "open it as a foreign dataset or convert again")
    try:
        metadata = json.loads(raw)
        version = str(metadata["format_version"])
    except (ValueError, TypeError, LookupError) as error:
        raise damaged(where, "metadata in the schema", error) from error
    if version.split(".")[0] not in READABLE:
        raise _schema_error(where, f"format version {version}, this reads {FORMAT_VERSION}", "update tracemask")
    return metadata


def read_kinds(schema: pa.Schema, names: Iterable[str], *, where: str) -> dict[str, np.dtype[Any]]:
    """The numpy type of each per-token column `names`. TM501 where one, or a scalar, has a type that is not written."""
    kinds = {name: np.dtype(schema.field(name).type.value_type.to_pandas_dtype()) for name in names}
    for name in (*TOKEN_COLUMNS, *kinds):
        found = kinds.get(name)
        if found is None or found.kind not in "biuf" or numpy_type(name, found) != found:
            what = f"column {name!r} has type {found}" if found else f"no column {name!r}"
            raise _schema_error(where, what, "convert again")
    for name, kind in (*SCALARS.items(), (SPANS, "versions")):
        if name in schema.names and schema.field(name).type != scalar_type(kind):
            raise _schema_error(where, f"column {name!r} has type {schema.field(name).type}", "convert again")
    return kinds


def read_batches(schema: pa.Schema) -> list[int] | None:
    """How many rows each record batch of a compact shard has; None: one. ValueError where it says no numbers."""
    raw = (schema.metadata or {}).get(BATCHES_KEY)
    if raw is None:
        return None
    stated = json.loads(raw)
    if not isinstance(stated, list) or not all(type(rows) is int and rows > 0 for rows in stated):
        raise ValueError("rows of record batches: no list of numbers")
    return stated
