"""Runs rules over a dataset block by block and gathers a report. Knows no single rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tracemask.check.baseline import Baseline, content_hash, key
from tracemask.check.block import Block, blocks
from tracemask.check.config import Settings
from tracemask.check.context import Run
from tracemask.check.finding import Finding, Place
from tracemask.check.opening import load_template, load_tokenizer, open_given, path_of, rows_of
from tracemask.check.report import Collector, Report, Skip
from tracemask.check.rule import Need, Rule, Scope, all_rules, matching
from tracemask.check.view import View
from tracemask.core.errors import StoreError, TracemaskError, UsageError


def check_dataset(
    dataset: Any,
    *,
    tokenizer: Any = None,
    template: Any = None,
    settings: Settings | None = None,
    traces: Iterable[Any] = (),
    baseline_out: Counter[str] | None = None,
) -> Report:
    """Every selected rule over `dataset`: a path, an open Dataset, or an iterable of rows.

    tokenizer: a Tokenizer or a path to one; template: a Template or its source (default: the tokenizer's own).
    traces: the traces behind the rows, for rules about messages. baseline_out: gathers the keys of all findings.
    Raises UsageError and StoreError where the dataset cannot be read at all; TM904 where it has no rows.
    """
    settings = settings or Settings()
    session = Session(settings, tokenizer=tokenizer, template=template, baseline_out=baseline_out)
    opened = open_given(dataset, settings)
    if isinstance(opened, StoreError):
        return session.refused(opened, path=path_of(dataset))
    session.start(opened, path=path_of(dataset))
    session.paths = {file.rel: file.path for file in getattr(traces, "files", ())}
    for trace in traces:
        session.trace(trace)
    paths = getattr(opened, "paths", ())
    for block in blocks(
        rows_of(opened, session.bad_row), tokens=settings.block_tokens, path=paths[0] if len(paths) == 1 else None
    ):
        session.block(block)
    return session.report()


class Session:
    """One run in progress: feed traces and blocks, then ask for the report."""

    def __init__(
        self,
        settings: Settings,
        *,
        tokenizer: Any = None,
        template: Any = None,
        baseline_out: Counter[str] | None = None,
    ) -> None:
        self.settings = settings
        self.rules = chosen_rules(settings)
        self.collector = Collector(all_rules(), keep=settings.examples)
        self.baseline = Baseline.load(settings.baseline) if settings.baseline else Baseline()
        self.baseline_out = baseline_out
        self.ignored: Counter[str] = Counter()
        loaded = load_tokenizer(tokenizer)
        opened = load_template(template, loaded, settings.date)
        self.run = Run(tokenizer=loaded, template=opened, options=settings.options)
        self._own_template = template is None  # the tokenizer's, which may not be the rows'
        self.ran: set[str] = set()
        self.have: set[Need] = set()
        self.rows = self.tokens = self.traces = 0
        self.unreadable: list[str] = []
        self.remarks: list[str] = []
        self.notes: Counter[str] = Counter()  # operational codes that convert recorded with rows
        self.path = ""
        self.paths: dict[str, str] = {}  # of a log's files: the path below the input's root, and the one that was given
        self._ignores = {code: selector for selector in settings.ignore for code in matching([selector])}

    def start(self, dataset: Any, *, path: str = "") -> None:
        """Tell the rules which dataset they look at."""
        self.path = path
        self.run.dataset = dataset
        self.run.kind = getattr(dataset, "kind", "tracemask")
        self.run.metadata = dict(getattr(dataset, "metadata", {}) or {})
        if self._own_template and self.run.template is not None and not _made_with(self.run):
            self.run.template, self.run.other_template = None, True
            self.remarks.append("rendered with another template than the tokenizer's own: --template FILE names it")
        if self.settings.options.eval_path:
            self.have.add(Need.EVAL)
        if self.settings.options.max_tokens:
            self.have.add(Need.BUDGET)

    def trace(self, trace: Any, *, alone: bool = False) -> None:
        """Run the rules about messages on one trace. alone: no rows follow, so its other breaches are told too."""
        from tracemask.check.rules.traces import breaches, is_tree, prompt_breaks

        self.have.add(Need.MESSAGES)
        self.traces += 1
        if self.run.grammar is not None:
            self.have.add(Need.TEMPLATE)
        have = frozenset(self.have | ({Need.TOKENIZER} if self.run.lens else set()))
        sound = is_tree(trace, self.run)
        for rule in self._ready(Scope.TRACE, have):
            if sound or rule.code == "TM110":
                self._take(rule.check(trace, self.run), None)
        elsewhere = {rule.code for rule in self.rules if rule.scope is not Scope.TRACE}
        wanted = elsewhere if alone else elsewhere & {"TM101"}
        found = [finding for finding in breaches(trace, self.run) if finding.code in wanted]
        if sound and any(rule.code == "TM102" for rule in self.rules):
            found += prompt_breaks(trace)
        self.ran.update(finding.code for finding in found)
        self._take(found, None)

    def block(self, block: Block) -> None:
        """Run the rules about tokens on one block."""
        view = View(block, self.run)
        have = view.have | (self.have & _OF_THE_RUN)  # what earlier blocks had is not in this one
        self.have |= view.have
        self.rows += len(block.rows)
        self.tokens += len(block)
        hashes: dict[int, str] = {}
        for rule in self._ready(Scope.BLOCK, have):
            self._take(rule.check(view), (block, hashes))
        if Need.RENDERED in have:
            self._noted(view, (block, hashes))

    def _noted(self, view: View, where: tuple[Block, dict[int, str]]) -> None:
        """What convert noted with the rows: breaches of traces, and repairs that no rule is about."""
        from tracemask.check.rules.rendering import notes, recorded

        for rule in self.rules:
            if rule.code in _NOTED and Need.MESSAGES not in self.have:
                found = list(recorded(view, rule.code))
                if found or self.run.metadata.get("invariants"):
                    self.ran.add(rule.code)
                self._take(found, where)
        for row_notes in notes(view):
            for note in row_notes:
                if note.get("code") not in self.collector.rules:
                    self.notes[str(note.get("code"))] += 1

    def report(self) -> Report:
        """Run what needs the whole dataset and close the report. UsageError TM904: nothing was seen."""
        if not self.rows and not self.traces and not self.unreadable:
            raise UsageError("TM904", where=self.path, what="the dataset has no rows", fix="give a dataset with rows")
        for rule in self._ready(Scope.DATASET, frozenset(self.have)):
            self._take(rule.check(self.run), None)
        for rule in self.rules:
            if rule.finish is not None and rule.code in self.ran:
                self._take(rule.finish(self.run), None)
        return self._close()

    def refused(self, error: StoreError, *, path: str) -> Report:
        """The report of a dataset whose files are not what they should be: one finding."""
        self.path = path
        self._take([Finding(error.code, f"{error.what}. {error.fix}", Place(path=error.where or path))], None)
        self.ran.add(error.code)
        return self._close()

    def _noted_counts(self) -> list[str]:
        return [f"{code} noted when the log was read: {count} times" for code, count in sorted(self.notes.items())]

    def bad_row(self, error: StoreError, row: int) -> None:
        """A row that cannot be read: a finding where a rule is about it, else a line among the unreadable."""
        self.rows += 1
        if error.code in self.collector.rules:
            self.ran.add(error.code)
            self._take([Finding(error.code, error.what, Place(path=self.path or None, row=row))], None)
        else:
            self.unreadable.append(str(error))

    def unread(self, error: TracemaskError) -> None:
        """A record of a log that could not be read or rendered, under the path that was given."""
        parts = error.where.split(":")
        for k in range(len(parts), 0, -1):
            path = self.paths.get(":".join(parts[:k]))
            if path is not None:
                where = ":".join([path, *parts[k:]])
                error = type(error)(error.code, where=where, what=error.what, fix=error.fix)
                break
        self.unreadable.append(str(error))

    def placed(self, finding: Finding) -> Finding:
        """The finding under the path that was given."""
        path = self.paths.get(finding.place.path or "")
        return finding if path is None else replace(finding, place=replace(finding.place, path=path))

    def _close(self) -> Report:
        settings = self.settings
        groups = self.collector.ordered(settings.tolerance, total=self.rows)
        used = [selector for selector in settings.ignore if self.ignored[selector]]
        return Report(
            path=self.path,
            kind=self.run.kind,
            rows=self.rows,
            tokens=self.tokens,
            groups=groups,
            skipped=self._skipped(),
            ran=tuple(sorted(self.ran)),
            settings=settings,
            suppressed=self.baseline.used,
            ignored={selector: self.ignored[selector] for selector in used},
            unused_ignores=tuple(selector for selector in settings.ignore if selector not in used),
            stale_baseline=self.baseline.stale,
            traces=self.traces,
            notes=(*self.remarks, *self._noted_counts()),
            unreadable=tuple(self.unreadable),
        )

    def _skipped(self) -> list[Skip]:
        required = matching(self.settings.require) if self.settings.require else set()
        out = []
        for rule in self.rules:
            if rule.code in self.ran:
                continue
            missing = [need for need in rule.needs if need not in self.have]
            labels = tuple(need.label for need in missing) or ("rows that have all of its inputs together",)
            remedy = "; ".join(dict.fromkeys(need.remedy for need in missing))
            out.append(Skip(rule, labels, remedy, required=rule.code in required))
        return out

    def _ready(self, scope: Scope, have: frozenset[Need] | set[Need]) -> Iterator[Rule]:
        for rule in self.rules:
            if rule.scope is scope and all(need in have for need in rule.needs):
                self.ran.add(rule.code)
                yield rule

    def _take(self, findings: Iterable[Finding], where: tuple[Block, dict[int, str]] | None) -> None:
        for finding in findings:
            selector = self._ignores.get(finding.code)
            if selector is not None:
                self.ignored[selector] += 1
                continue
            if self.settings.baseline or self.baseline_out is not None:
                spelled = key(finding, self._content(finding, where))
                if self.baseline_out is not None:
                    self.baseline_out[spelled] += 1
                if self.baseline.excuses(spelled):
                    continue
            self.collector.add(self.placed(finding))

    def _content(self, finding: Finding, where: tuple[Block, dict[int, str]] | None) -> str | None:
        row = finding.place.row
        if row is None:
            return None
        if finding.code == "TM501" and where is None:
            return f"row {row}"
        block, hashes = where if where is not None else (None, {})
        if row not in hashes:
            source = next((each for each in block.rows if each.index == row), None) if block is not None else None
            if source is None and hasattr(self.run.dataset, "row"):
                source = self.run.dataset.row(row)  # told later than its block was read
            if source is None:
                return None
            hashes[row] = content_hash(source["token_ids"])
        return hashes[row]


def chosen_rules(settings: Settings) -> list[Rule]:
    """The rules that run: the selected ones. Ignored rules run too, so that an unused ignore can be told."""
    rules = all_rules()
    codes = matching(settings.select) if settings.select else set(rules)
    if settings.require:
        codes = codes | matching(settings.require)
    return [rule for code, rule in rules.items() if code in codes]


_OF_THE_RUN = frozenset({Need.EVAL, Need.BUDGET, Need.MESSAGES})
_NOTED = frozenset({"TM104", "TM105", "TM110"})  # rules about traces that convert applies to what it reads


def _made_with(run: Run) -> bool:
    """Whether the shards were rendered with the run's template, as far as their metadata say."""
    from hashlib import sha256

    made = run.metadata.get("template_sha256")
    return not made or run.template is None or made == sha256(run.template.source.encode()).hexdigest()
