"""The audit page's data: rows, runs, counts and findings packed small enough for one offline file. Knows no markup."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracemask.core.errors import RenderError
from tracemask.core.finding import Finding
from tracemask.core.vocab import AUTHOR_LETTER, Author, Part, Role
from tracemask.report.glyphs import Speller, TokenTable, plain, visible
from tracemask.report.lanes import codes, misfits, runs, stored_weights, whole
from tracemask.store.row import Row

MISSING = 65535  # a log-prob that is not there
STEP = 2000  # log-probs are kept as −lp · 2000 in 16 bits: to 0.0005 nats, down to −32.7
Weigher = Callable[[Row], dict[str, np.ndarray]]


@dataclass(slots=True)
class Page:
    """Everything the page shows.

    scales: per normalizer, each row's weight of one token of weight 1 (float64[rows]). findings: the examples to link.
    found: (code, cause) to the number of findings and rows in all, where `findings` holds only examples.
    """

    title: str
    tokenizer: TokenTable | None
    weigh: Weigher = stored_weights
    scales: Mapping[str, np.ndarray] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    checked: bool = False
    rule_names: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    most_rows: int = 50
    _vocab: dict[int, int] = field(default_factory=dict)
    _counts: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    _totals: dict[str, dict[str, float]] = field(default_factory=dict)

    def data(self, rows: Iterable[Row], *, facts: Sequence[str] = ()) -> dict[str, Any]:
        """The page's JSON: every row counted; rows with findings, then the first ones, shown, `most_rows` in all."""
        by_row: dict[int, list[Finding]] = {}
        for finding in self.findings:
            if finding.place.row is not None:
                by_row.setdefault(finding.place.row, []).append(finding)
        wanted = set(sorted(by_row)[: self.most_rows])
        spare = self.most_rows - len(wanted)
        shown: list[dict[str, Any]] = []
        components: list[str] = []
        for seen, row in enumerate(rows):
            weights = self.weigh(row)
            odd, row = misfits(row), whole(row)
            components += [name for name in weights if name not in components]
            self._count(row, weights, seen)
            if row.index in wanted or spare > 0:
                spare -= row.index not in wanted
                shown.append(self._row(row, weights, by_row.get(row.index, []), seen, odd))
        for entry in shown:
            entry["runs"] = [[*run[:6], *(run[6].get(name, 0) for name in components)] for run in entry["runs"]]
        position = {entry["index"]: number for number, entry in enumerate(shown)}
        return {
            "title": plain(self.title),
            "facts": [*map(plain, facts), *([f"{len(shown)} rows shown"] if shown else [])],
            "authors": [[AUTHOR_LETTER[author], author.label] for author in Author],
            "roles": [role.label for role in Role],
            "parts": [part.label for part in Part],
            "components": [plain(name) for name in components],
            "normalizers": list(self.scales),
            "counts": [[*key, int(n), int(on)] for key, (n, on) in sorted(self._counts.items())],
            "totals": self._totals,
            "rows": shown,
            "findings": self._groups(position),
            "checked": self.checked,
            "vocab": self._vocabulary(),
        }

    def _count(self, row: Row, weights: dict[str, np.ndarray], seen: int) -> None:
        total, live = np.zeros(len(row)), np.zeros(len(row), bool)
        for stream in weights.values():
            live |= stream != 0
            total += np.where(np.isfinite(stream), np.abs(stream, dtype=np.float64), 0.0)
        key = (codes(row, "author") + 1) * 64 + codes(row, "role") + 1
        for code in np.unique(key):
            here = key == code
            pair = (int(code) // 64 - 1, int(code) % 64 - 1)
            entry = self._counts.setdefault(pair, [0, 0])
            entry[0] += int(here.sum())
            entry[1] += int(live[here].sum())
            for name, scale in self.scales.items():
                sums = self._totals.setdefault(name, {})
                label = f"{pair[0]}/{pair[1]}"
                sums[label] = sums.get(label, 0.0) + float(total[here].sum() * scale[seen])

    def _row(
        self, row: Row, weights: dict[str, np.ndarray], findings: list[Finding], seen: int, odd: Mapping[str, int]
    ) -> dict[str, Any]:
        ids = np.asarray(row["token_ids"])
        unique, inverse = np.unique(ids, return_inverse=True)
        local = np.array([self._vocab.setdefault(int(token), len(self._vocab)) for token in unique], np.uint32)
        indices = local[inverse] if len(ids) else np.zeros(0, np.uint32)
        wide = bool(len(indices)) and int(indices.max()) > 65535
        scalars = row.scalars
        return {
            "index": row.index,
            "id": "" if scalars.get("id") is None else visible(str(scalars["id"])),
            "n": len(ids),
            "ids": _base64(indices.astype("<u4" if wide else "<u2")),
            "wide": wide,
            "runs": [
                [
                    run.start,
                    run.end,
                    _code(run.author),
                    _code(run.role),
                    _code(run.part),
                    run.message,
                    {name: weight if np.isfinite(weight) else None for name, weight in run.weights},
                ]
                for run in runs(row, weights, by_part=True)
            ],
            "pieces": self._pieces(ids),
            **_logprobs(row),
            "norm": {name: float(scale[seen]) for name, scale in self.scales.items()},
            "facts": [
                *(f"{name} {visible(str(scalars[name]))}" for name in _FACTS if _said(scalars.get(name))),
                *(f"TM101 {plain(name)} has {count} values: left out" for name, count in odd.items()),
            ],
            "findings": [self._finding(finding) for finding in findings],
        }

    def _pieces(self, ids: np.ndarray) -> dict[int, str]:
        """Tokens whose spelling depends on their neighbours: characters split over several tokens."""
        if self.tokenizer is None:
            return {}
        speller, alone = Speller(self.tokenizer), self._spelled()
        together = speller.spell(ids)
        return {k: text for k, text in enumerate(together) if text != alone(int(ids[k]))}

    def _spelled(self) -> Callable[[int], str]:
        speller = Speller(self.tokenizer)
        known: dict[int, str] = {}

        def alone(token_id: int) -> str:
            if token_id not in known:
                known[token_id] = speller.spell([token_id])[0]
            return known[token_id]

        return alone

    def _vocabulary(self) -> list[list[Any]]:
        alone = self._spelled()
        out = []
        for token_id in self._vocab:
            data = ""
            if self.tokenizer is not None and token_id not in self.tokenizer.added:
                try:
                    data = _hex(self.tokenizer.id_bytes(token_id))
                except (KeyError, IndexError, RenderError):
                    data = "unknown to this tokenizer"
            out.append([token_id, alone(token_id), data])
        return out

    def _finding(self, finding: Finding) -> dict[str, Any]:
        out: dict[str, Any] = {"code": finding.code, "message": plain(finding.message), "token": finding.place.token}
        out["severity"] = "" if finding.severity is None else finding.severity.value
        expected = finding.data.get("expected_ids")
        if isinstance(expected, (list, tuple)) and expected:
            out["expected"] = Speller(self.tokenizer).text([int(token) for token in expected[:16]])
        return out

    def _groups(self, position: Mapping[int, int]) -> list[dict[str, Any]]:
        groups: dict[tuple[str, str], list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.code, finding.cause or ""), []).append(finding)
        return [
            {
                "code": code,
                "severity": "" if found[0].severity is None else found[0].severity.value,
                "name": self.rule_names.get(code, ""),
                "cause": plain(cause),
                "count": self.found.get((code, cause), (len(found),))[0],
                "rows": self.found.get((code, cause), (0, len({finding.place.row for finding in found})))[1],
                "examples": [
                    [position.get(-1 if f.place.row is None else f.place.row, -1), self._finding(f)] for f in found[:20]
                ],
            }
            for (code, cause), found in sorted(groups.items(), key=_worst_first)
        ]


MOST_BYTES = 64  # of one token, shown in hexadecimal
_FACTS = ("trace_id", "branch", "fidelity", "reward", "stop", "truncated", "approximate", "drift")


def _worst_first(group: tuple[tuple[str, str], list[Finding]]) -> tuple[int, tuple[str, str]]:
    key, found = group
    return (9 if found[0].severity is None else found[0].severity.rank), key


def _hex(raw: bytes) -> str:
    """The bytes of a token, the first of them where there are very many."""
    return raw.hex(" ") if len(raw) <= MOST_BYTES else f"{raw[:MOST_BYTES].hex(' ')} … {len(raw):,} bytes"


def _code(member: Author | Role | Part | None) -> int:
    return -1 if member is None else int(member)


def _said(value: Any) -> bool:
    """A fact worth a word: 0 is one, a missing value and False are not."""
    return value is not None and value is not False


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _logprobs(row: Row) -> dict[str, Any]:
    """Log-probs where there are any, as ranges [start, end, offset] over 16-bit values."""
    column = row.get("logprob")
    if column is None:
        return {"lp": "", "lpRuns": []}
    held = ~np.isnan(column)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], held.view(np.int8), [0]))))
    starts, ends = edges[::2], edges[1::2]
    offsets = np.concatenate(([0], np.cumsum(ends - starts)))[:-1]
    values = np.clip(np.rint(-np.nan_to_num(column[held], neginf=-40.0, posinf=0.0) * STEP), 0, MISSING - 1).astype(
        "<u2"
    )
    spans = [[int(a), int(b), int(o)] for a, b, o in zip(starts, ends, offsets, strict=True)]
    return {"lp": _base64(values), "lpRuns": spans}
