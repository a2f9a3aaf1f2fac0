"""Cuts inputs into ranges that become one shard each; the cut depends on the inputs alone. Knows no template or row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemask.core.fingerprint import file_sha256, fingerprint
from tracemask.store.commit import shard_name
from tracemask.store.manifest import Input
from tracemask.trace.reading import InputFile, UnitRange, count_units, unit_ranges

DEFAULT_SHARD_BYTES = 256 << 20
_BYTES_PER_INPUT_BYTE = 2.0  # a fast shard per byte of log, roughly; only the size of shards depends on it
_SHARDS_TO_SHARE = 16  # enough ranges to share out over workers …
_LEAST_UNITS = 64  # … unless they would be smaller than this


@dataclass(frozen=True, slots=True)
class Range:
    """Units [start, stop) over all inputs: pieces of files in order. name: the shard they become."""

    name: str
    start: int
    stop: int
    pieces: tuple[tuple[InputFile, UnitRange], ...]


def describe(files: Sequence[InputFile]) -> list[Input]:
    """What the manifest says of the inputs: relative path, format, sha256, units."""
    return [
        Input(path=file.rel, format=file.format, sha256=_sha256(file.path), units=count_units(file)) for file in files
    ]


def units_per_shard(files: Sequence[InputFile], described: Sequence[Input], *, shard_bytes: int) -> int:
    """How many units make a shard of about `shard_bytes`, and enough shards to share out over workers."""
    units = sum(one.units for one in described)
    size = sum(_size(file.path) for file in files)
    if units == 0:
        return 1
    by_bytes = int(shard_bytes / max(1.0, size / units * _BYTES_PER_INPUT_BYTE))
    by_share = max(_LEAST_UNITS, -(-units // _SHARDS_TO_SHARE))
    return max(1, min(by_bytes, by_share))


def cut(files: Sequence[InputFile], *, every: int, plan: str) -> list[Range]:
    """Ranges of at most `every` units; small files share one, a unit is never split. plan: names the shards."""
    ranges: list[Range] = []
    pieces: list[tuple[InputFile, UnitRange]] = []
    start = held = 0

    def close() -> None:
        nonlocal start, held
        if pieces:
            name = shard_name(len(ranges), fingerprint(plan, start, start + held))
            ranges.append(Range(name, start, start + held, tuple(pieces)))
            start, held = start + held, 0
            pieces.clear()

    for file in files:
        for piece in unit_ranges(file, every):
            units = piece.stop - piece.start
            if held + units > every:
                close()
            pieces.append((file, piece))
            held += units
    close()
    return ranges


def _sha256(path: str) -> str:
    if not os.path.isdir(path):
        return file_sha256(path)
    files = sorted(file for file in Path(path).rglob("*") if file.is_file())
    return fingerprint([(file.relative_to(path).as_posix(), file_sha256(file)) for file in files])


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
