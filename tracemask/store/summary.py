"""What a conversion did, for people and machines. Knows no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracemask.core.errors import StoreError
from tracemask.store.counts import Counts
from tracemask.store.manifest import Manifest, Skip
from tracemask.trace.files import LeftOut


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of a finished conversion. reused: shards that an earlier, interrupted run had finished.

    left_out: files of the input that were not read. author_rules: tokens that each author rule touched. notes: what the
    importer left out on purpose, counted.
    """

    out: str
    format: str
    why: str
    counts: Counts
    shards: int
    reused: int
    skipped: list[Skip]
    max_skipped: int
    unknown_fields: dict[str, int]
    author_rules: dict[str, int]
    notes: dict[str, int]
    bytes: int
    left_out: LeftOut

    @classmethod
    def of(
        cls, manifest: Manifest, *, out: str, format: str, why: str, reused: int, max_skipped: int, left_out: LeftOut
    ) -> Summary:
        """The summary of what the manifest states."""
        return cls(
            out=out,
            format=format,
            why=why,
            counts=manifest.counts,
            shards=len(manifest.shards),
            reused=reused,
            skipped=manifest.skipped,
            max_skipped=max_skipped,
            unknown_fields=manifest.reading.unknown_fields,
            author_rules=manifest.reading.author_rules,
            notes=manifest.reading.notes,
            bytes=sum(shard.bytes for shard in manifest.shards),
            left_out=left_out,
        )

    @property
    def rows(self) -> int:
        return self.counts.rows

    @property
    def traces(self) -> int:
        return self.counts.traces

    @property
    def tokens(self) -> int:
        return self.counts.tokens

    @property
    def sampled_share(self) -> float:
        """Sampled tokens of all tokens; 0.0 where there are none."""
        return self.counts.sampled / self.counts.tokens if self.counts.tokens else 0.0

    @property
    def too_many_skipped(self) -> bool:
        """More records were skipped than `max_skipped` allows."""
        return len(self.skipped) > self.max_skipped

    def suspicion(self) -> StoreError | None:
        """TM205 where sampled ids mostly say another text than the log: not the tokenizer that sampled it."""
        changed = self.counts.drift.get("text_changed", 0)
        if self.counts.drifted_rows * 2 <= self.rows or changed * 2 <= sum(self.counts.drift.values()):
            return None
        what = f"sampled ids say another text than the log in {self.counts.drifted_rows} of {self.rows} rows"
        return StoreError(
            "TM205", where=self.out, what=what, fix="give the tokenizer of the model that sampled the log"
        )

    def skip_error(self) -> StoreError:
        """TM915, for those who stop on it."""
        n = len(self.skipped)
        what = f"{n:,} record{'s were' if n != 1 else ' was'} skipped, --max-skipped is {self.max_skipped}"
        return StoreError("TM915", where=self.out, what=what, fix="repair the records, or raise --max-skipped")

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return {
            "out": self.out,
            "format": self.format,
            "why": self.why,
            "shards": self.shards,
            "reused": self.reused,
            "bytes": self.bytes,
            **self.counts.model_dump(),
            "sampled_share": self.sampled_share,
            "skipped": [skip.model_dump() for skip in self.skipped],
            "max_skipped": self.max_skipped,
            "too_many_skipped": self.too_many_skipped,
            "wrong_tokenizer": self.suspicion() is not None,
            "unknown_fields": self.unknown_fields,
            "author_rules": self.author_rules,
            "notes": self.notes,
            "left_out": self.left_out.to_json(),
        }
