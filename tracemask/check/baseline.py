"""Known findings, by content: a file of keys that survives reordering, renaming and resharding. Knows no rule."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tracemask.check.finding import Finding
from tracemask.core.errors import UsageError
from tracemask.store.folder import put_file

FORMAT = "tracemask-baseline"


def content_hash(ids: np.ndarray) -> str:
    """sixteen hex digits of blake2b over a row's ids as little-endian int64."""
    return hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i8").tobytes(), digest_size=8).hexdigest()


def key(finding: Finding, content: str | None) -> str:
    """content:code:offset of a row's finding, dataset:code:cause of a finding about the whole."""
    if content is None:
        return f"dataset:{finding.code}:{finding.cause or ''}"
    token = finding.place.token
    return f"{content}:{finding.code}:{'' if token is None else token}"


class Baseline:
    """Keys of accepted findings; each key excuses as many findings as it was written for."""

    def __init__(self, keys: Counter[str] | None = None) -> None:
        self.left: Counter[str] = Counter(keys or ())
        self.used = 0

    @classmethod
    def load(cls, path: str | Path) -> Baseline:
        """Reads a baseline. UsageError TM901 without the file, TM900 where it is none."""
        file = Path(path)
        if not file.is_file():
            raise UsageError("TM901", where=str(path), what="no such baseline", fix="write it with --write-baseline")
        try:
            table: Any = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UsageError("TM900", where=str(path), what=f"not a baseline: {error}", fix="write it again") from None
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise UsageError("TM900", where=str(path), what="not a baseline", fix="write it with --write-baseline")
        return cls(Counter(table["findings"]))

    def excuses(self, spelled: str) -> bool:
        """Whether a finding with this key is known; each use is spent."""
        if self.left[spelled] <= 0:
            return False
        self.left[spelled] -= 1
        self.used += 1
        return True

    @property
    def stale(self) -> int:
        """Entries that no finding used: fixed since."""
        return sum(count for count in self.left.values() if count > 0)


def write(path: str | Path, keys: Counter[str]) -> None:
    """Writes a baseline, sorted: the same findings give the same file. UsageError TM932."""
    table = {"format": FORMAT, "version": 1, "findings": dict(sorted(keys.items()))}
    put_file(str(path), (json.dumps(table, indent=1) + "\n").encode())
