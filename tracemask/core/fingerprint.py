"""Fingerprints that depend on content alone: no path, time, machine or hash seed enters them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def canonical_json(value: object) -> bytes:
    """The one UTF-8 spelling of a JSON value: sorted keys, no spaces, NaN refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def fingerprint(*values: object) -> str:
    """sha256 (hex) over the canonical JSON of `values`, in order."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(canonical_json(value))
        digest.update(b"\n")
    return digest.hexdigest()


def file_sha256(path: str | Path, *, chunk: int = 1 << 22) -> str:
    """sha256 (hex) of a local file's bytes, read `chunk` bytes at a time."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(chunk):
            digest.update(block)
    return digest.hexdigest()
