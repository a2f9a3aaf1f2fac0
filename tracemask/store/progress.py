"""How far a conversion is: receipts as they come, told to whoever shows it. Knows no engine and no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tracemask.store.commit import valid_receipt
from tracemask.store.folder import open_folder
from tracemask.store.manifest import Receipt
from tracemask.store.plan import Range
from tracemask.store.work import Tell, Work


@dataclass(frozen=True, slots=True)
class Progress:
    """What a conversion has done. done, total: units. shards, rows, tokens, skipped: of finished shards. reused: shards
    that an earlier run had finished."""

    done: int
    total: int
    shards: int
    reused: int
    rows: int
    tokens: int
    skipped: int


@dataclass
class Run:
    """Receipts as they come, and what the callback is told. told: units of which the workers said they are rows."""

    ranges: list[Range]
    progress: Callable[[Progress], None] | None
    receipts: dict[str, Receipt] = field(default_factory=dict)
    reused: int = 0
    told: int = 0

    def through(self, work: Work, engine: Callable[[list[Range], Tell], Iterator[Receipt]]) -> list[Receipt]:
        """The receipts of all ranges: those that an earlier run left, and the engine's for the rest."""
        folder = open_folder(work.out)
        for span in self.ranges:
            done = valid_receipt(folder, span.name, plan=work.plan, span=(span.start, span.stop))
            if done is not None:
                self.reused += 1
                self._take(done)
        self.told = self._finished()
        todo = [span for span in self.ranges if span.name not in self.receipts]
        for receipt in engine(todo, self._tell):
            self._take(receipt)
        return [self.receipts[span.name] for span in self.ranges]

    def _tell(self, units: int) -> None:
        self.told += units
        self._report()

    def _take(self, receipt: Receipt) -> None:
        self.receipts[receipt.name] = receipt
        self._report()

    def _finished(self) -> int:
        return sum(one.range[1] - one.range[0] for one in self.receipts.values())

    def _report(self) -> None:
        if self.progress is None:
            return
        done = list(self.receipts.values())
        self.progress(
            Progress(
                done=max(self._finished(), self.told),  # an engine may tell of whole shards only
                total=self.ranges[-1].stop,
                shards=len(done),
                reused=self.reused,
                rows=sum(one.counts.rows for one in done),
                tokens=sum(one.counts.tokens for one in done),
                skipped=sum(len(one.skipped) for one in done),
            )
        )
