"""One defect per rule, planted by a program in clean rollouts: what is changed, and exactly what must be found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from check_make import Foreign, Rows, changed, foreign
from check_rollouts import Clean

from tracemask.check.config import Settings
from tracemask.check.context import Options
from tracemask.core.vocab import Author, Origin
from tracemask.store.row import Row

Key = tuple[str, int | None, int | None]


@dataclass
class Planted:
    """The data with the defect and the same data without it; every finding that is in the first only is `expected`."""

    good: Any
    bad: Any
    expected: set[Key]
    settings: Settings = field(default_factory=Settings)
    template: Any = None  # checked with another template than the rows were made with
    gone: set[Key] = field(default_factory=set)


PLANTERS: dict[str, Callable[[Clean], Planted | None]] = {}


def plants(code: str) -> Callable[[Callable[[Clean], Planted | None]], Callable[[Clean], Planted | None]]:
    def register(function: Callable[[Clean], Planted | None]) -> Callable[[Clean], Planted | None]:
        PLANTERS[code] = function
        return function

    return register


# ---------------------------------------------------------------------------------------------- tools

R = 7  # the row that most defects are planted in: three turns, complete


def starts(row: Row) -> np.ndarray:
    flags = row["sampled"]
    return np.flatnonzero(flags & ~np.concatenate([[False], flags[:-1]]))


def ends(row: Row) -> np.ndarray:
    """The last token of each sampled span: its stop."""
    flags = row["sampled"]
    return np.flatnonzero(flags & ~np.concatenate([flags[1:], [False]]))


def tool(row: Row) -> np.ndarray:
    return np.flatnonzero(row["author"] == Author.ENVIRONMENT)


def with_row(clean: Clean, row: Row, *, kind: type = Rows, base: list[Row] | None = None) -> Any:
    rows = list(base if base is not None else clean.rows)
    rows[row.index] = row
    return kind(rows)


def others(clean: Clean, **options: Any) -> list[Row]:
    """The clean rows as another tool's."""
    return [foreign(row, **options) for row in clean.rows]


def edited(row: Row, **columns: np.ndarray) -> Row:
    return changed(row, **columns)


def spliced(row: Row, start: int, end: int, ids: list[int], **values: Any) -> Row:
    """Tokens [start, end) replaced by `ids`; other columns repeat what stood at `start`, or `values`."""
    columns = {}
    for name, column in row.columns.items():
        new = np.asarray(ids, column.dtype) if name == "token_ids" else np.repeat(column[start : start + 1], len(ids))
        if name in values:
            new = np.full(len(ids), values[name], dtype=column.dtype)
        columns[name] = np.concatenate([column[:start], new, column[end:]])
    scalars = {**dict(row.scalars), "n_tokens": len(columns["token_ids"])}
    return Row(row.index, columns, scalars)


def cut(row: Row, n: int, **scalars: Any) -> Row:
    columns = {name: column[:n] for name, column in row.columns.items()}
    return Row(row.index, columns, {**dict(row.scalars), "n_tokens": n, **scalars})


def told(row: Row, **scalars: Any) -> Row:
    return Row(row.index, row.columns, {**dict(row.scalars), **scalars})


def numbered(rows: list[Row]) -> list[Row]:
    return [Row(i, row.columns, row.scalars) for i, row in enumerate(rows)]


def text_run(clean: Clean, row: Row, inside: int) -> tuple[int, int]:
    """The run of ordinary tokens of one author side around token `inside`."""
    added, policy = set(clean.renderer.tokenizer.added), row["author"] == Author.POLICY
    start = end = inside
    plain = lambda t: int(row["token_ids"][t]) not in added and policy[t] == policy[inside]  # noqa: E731
    while start > 0 and plain(start - 1):
        start -= 1
    while end < len(row) and plain(end):
        end += 1
    return start, end


def retold(clean: Clean, row: Row, inside: int, change: Callable[[str], str]) -> Row:
    """The run around `inside` with its text changed, encoded as the tokenizer does; authors follow by position."""
    start, end = text_run(clean, row, inside)
    tokenizer = clean.renderer.tokenizer
    text = tokenizer.decode_bytes(row["token_ids"][start:end]).decode()
    ids = tokenizer.plain_batch([change(text)])[0]
    same = 0
    old = row["token_ids"][start:end].tolist()
    while same < min(len(ids), len(old)) and ids[same] == old[same]:
        same += 1
    back = 0
    while back < min(len(ids), len(old)) - same and ids[-1 - back] == old[-1 - back]:
        back += 1
    return spliced(row, start + same, end - back, ids[same : len(ids) - back])


def odd_split(clean: Clean, row: Row, places: np.ndarray) -> tuple[int, list[int]]:
    """A token among `places` and two ids that spell it, so that re-encoding changes them."""
    tokenizer = clean.renderer.tokenizer
    spelled: dict[bytes, int] = {}
    for token, raw in enumerate(tokenizer.id_table):
        if token not in tokenizer.added:
            spelled.setdefault(raw, token)
    for t in places.tolist():
        raw = tokenizer.id_table[int(row["token_ids"][t])]
        for k in range(2, len(raw) - 1):
            if raw.isascii() and raw[:k] in spelled and raw[k:] in spelled:
                return t, [spelled[raw[:k]], spelled[raw[k:]]]
    raise AssertionError("no token can be split")


def digit(clean: Clean, row: Row, places: np.ndarray) -> tuple[int, int]:
    """A token among `places` that is a number, and the id of another number of as many digits."""
    tokenizer = clean.renderer.tokenizer
    for t in places.tolist():
        raw = tokenizer.id_table[int(row["token_ids"][t])]
        if raw.isdigit():
            other = tokenizer.plain_batch([str((int(raw) + 1) % 10 ** len(raw)).zfill(len(raw))])[0]
            if len(other) == 1:
                return t, other[0]
    raise AssertionError("no digit")


def moved(flags: np.ndarray, d: int, fill: Any = False) -> np.ndarray:
    out = np.full_like(flags, fill)
    if d > 0:
        out[d:] = flags[:-d]
    else:
        out[:d] = flags[-d:]
    return out


def row_of(clean: Clean, i: int = R) -> Row:
    return clean.rows[i]


# ---------------------------------------------------------------------------------------------- TM1


@plants("TM101")
def length_mismatch(clean: Clean) -> Planted:
    good = others(clean)
    bad = edited(good[R], mask=good[R]["mask"][:-1])
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), {("TM101", R, len(good[R]) - 1)})


def forked(clean: Clean) -> tuple[list[Row], Row]:
    """The rows up to one that a second branch of the same trace follows, and that branch."""
    base = clean.rows[:49]
    first = base[48]
    at = int(starts(first)[-1])
    sampled = first["sampled"].copy()
    sampled[:at] = False
    logprob = np.where(sampled, first["logprob"], np.nan).astype(np.float32)
    t, other = digit(clean, first, np.flatnonzero(sampled))
    ids = first["token_ids"].copy()
    ids[t] = other
    branch = told(
        edited(first, token_ids=ids, sampled=sampled, logprob=logprob), branch=1, fork_row=0, fork_position=at
    )
    return base, Row(49, branch.columns, {**dict(branch.scalars), "id": "run-048/1"})


@plants("TM102")
def prefix_break(clean: Clean) -> Planted:
    base, branch = forked(clean)
    user = np.flatnonzero(branch["author"] == Author.TASKSET)
    t, other = digit(clean, branch, user)
    ids = branch["token_ids"].copy()
    ids[t] = other
    return Planted(Rows([*base, branch]), Rows([*base, edited(branch, token_ids=ids)]), {("TM102", 49, t)})


@plants("TM106")
def prefill_sampled(clean: Clean) -> Planted:
    tokenizer, source = clean.renderer.tokenizer, clean.renderer.template.source
    word = "<think>\n" if "<think>" in source else "The"
    template = source + "{%- if add_generation_prompt %}{{- " + repr(word) + " }}{%- endif %}"
    ids = tokenizer.encode(word)
    expected: set[Key] = set()
    for row in clean.rows:
        hits = [int(s) for s in starts(row) if row["token_ids"][s : s + len(ids)].tolist() == ids]
        if hits:
            expected.add(("TM106", row.index, hits[0]))
    assert expected
    return Planted(Rows(clean.rows), Rows(clean.rows), expected, template=template)


@plants("TM107")
def truncated(clean: Clean) -> Planted:
    row = row_of(clean)
    n = int(ends(row)[-1]) - 12
    while not _whole(clean, row, n):
        n -= 1
    return Planted(Rows(clean.rows), with_row(clean, cut(row, n, truncated=True, stop="length")), {("TM107", R, n - 1)})


def _whole(clean: Clean, row: Row, n: int) -> bool:
    try:
        clean.renderer.tokenizer.decode_bytes(row["token_ids"][:n]).decode()
    except UnicodeDecodeError:
        return False
    return True


@plants("TM109")
def fragmentation(clean: Clean) -> Planted:
    base, branch = forked(clean)
    return Planted(Rows(base), Rows([*base, branch]), {("TM109", None, None)})


# ---------------------------------------------------------------------------------------------- TM2


@plants("TM201")
def out_of_range(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(starts(row)[0]) + 3
    ids = row["token_ids"].copy()
    ids[t] = clean.renderer.tokenizer.size + 10
    return Planted(Rows(clean.rows), with_row(clean, edited(row, token_ids=ids)), {("TM201", R, t)})


@plants("TM202")
def sampled_differs(clean: Clean) -> Planted:
    def both(row: Row) -> Row:
        made = foreign(row)
        made.columns["sampled_ids"] = row["token_ids"][row["sampled"]]
        return made

    good = [both(row) for row in clean.rows]
    row = row_of(clean)
    places = np.flatnonzero(row["sampled"])
    t, pair = odd_split(clean, row, places)
    where = int(np.searchsorted(places, t))
    engine = good[R].columns["sampled_ids"]
    engine = np.concatenate([engine[:where], pair, engine[where + 1 :]])
    bad = edited(good[R], sampled_ids=engine)
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), {("TM202", R, t)})


@plants("TM203")
def odd_context(clean: Clean) -> Planted:
    row = row_of(clean)
    t, pair = odd_split(clean, row, np.flatnonzero(row["author"] == Author.HARNESS))
    return Planted(Rows(clean.rows), with_row(clean, spliced(row, t, t + 1, pair)), {("TM203", R, t)})


@plants("TM204")
def suspiciously_canonical(clean: Clean) -> Planted:
    many = numbered([row for row in clean.rows for _ in range(3)])
    row = many[R]
    t, pair = odd_split(clean, row, np.flatnonzero(row["sampled"]))
    good = list(many)
    good[R] = spliced(row, t, t + 1, pair)
    return Planted(Rows(good), Rows(many), {("TM204", None, None)}, settings=Settings(select=("TM204",)))


@plants("TM205")
def wrong_tokenizer(clean: Clean) -> Planted:
    row = row_of(clean)
    order = np.random.default_rng(3).permutation(min(clean.renderer.tokenizer.vocab_size, 100_000)).astype(np.int32)
    ids = order[row["token_ids"] % len(order)]
    return Planted(Rows(clean.rows), with_row(clean, edited(row, token_ids=ids)), {("TM205", R, 0)})


@plants("TM206")
def double_bos(clean: Clean) -> Planted | None:
    row = row_of(clean)
    bos = clean.renderer.tokenizer.bos_id
    if bos is None or row["token_ids"][0] != bos:
        return None
    return Planted(Rows(clean.rows), with_row(clean, spliced(row, 0, 1, [bos, bos])), {("TM206", R, 1)})


@plants("TM207")
def special_in_content(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(tool(row)[2])
    stop = int(row["token_ids"][ends(row)[0]])
    bad = spliced(row, t, t + 1, [int(row["token_ids"][t]), stop, int(row["token_ids"][t])])
    bad.columns["origin"][t : t + 3] = Origin.CONTENT
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM207", R, t + 1)})


@plants("TM208")
def special_as_text(clean: Clean) -> Planted:
    row = row_of(clean)
    tokenizer = clean.renderer.tokenizer
    stop = tokenizer.added[int(row["token_ids"][ends(row)[0]])].content
    bad = retold(clean, row, int(tool(row)[3]), lambda text: text.replace(" ", f" {stop} ", 1))
    raw = [tokenizer.id_table[int(token)] for token in bad["token_ids"]]
    ends_at = np.cumsum([len(piece) for piece in raw])
    spelled = b"".join(raw).index(f" {stop} ".encode(), int(ends_at[int(tool(row)[0])])) + 1
    t = int(np.searchsorted(ends_at, spelled, side="right"))
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM208", R, t)})


@plants("TM209")
def replacement(clean: Clean) -> Planted:
    row = row_of(clean)
    bad = retold(clean, row, int(ends(row)[-1]) - 14, lambda text: text.replace(" leaves", " \ufffd leaves", 1))
    raw = clean.renderer.tokenizer.id_table
    t = next(t for t in range(len(bad)) if b"\xef" in raw[int(bad["token_ids"][t])] and bad["sampled"][t])
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM209", R, t)})


@plants("TM210")
def header_missing(clean: Clean) -> Planted:
    good = others(clean)
    start = int(starts(row_of(clean))[-1])
    columns = {name: column[start:].copy() for name, column in good[R].columns.items()}
    columns["mask"][0] = 0
    bad = Row(R, columns, {})
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), {("TM210", R, 1)})


@plants("TM211")
def glued(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(starts(row)[-1]) - 1
    raw = clean.renderer.tokenizer.id_table[int(row["token_ids"][t])]
    merged = clean.renderer.tokenizer.plain_batch([raw.decode() + "\n"])[0]
    assert len(merged) == 1
    ids = row["token_ids"].copy()
    ids[t] = merged[0]
    return Planted(Rows(clean.rows), with_row(clean, edited(row, token_ids=ids)), {("TM211", R, t)})


@plants("TM212")
def dated(clean: Clean) -> Planted | None:
    row = clean.rows[5]
    tokenizer = clean.renderer.tokenizer
    text = tokenizer.decode_bytes(row["token_ids"]).decode()
    if "strftime_now" not in clean.renderer.template.source or "Today Date: " not in text:
        return None
    rows = list(clean.rows)
    before = len(tokenizer.encode(text[: text.index("Today Date: ")]))
    for i in range(5, 10):
        inside = before + 3
        rows[i] = retold(clean, rows[i], inside, lambda text: text.replace("01 Jan 2026", "02 Jan 2026"))
    start = rows[5]["token_ids"].tolist().index(tokenizer.plain_batch(["\nToday"])[0][-1])
    return Planted(Rows(clean.rows), Rows(rows), {("TM212", 5, start)})


@plants("TM213")
def half_character(clean: Clean) -> Planted:
    row = row_of(clean)
    tokenizer = clean.renderer.tokenizer
    half = next(token for token, raw in enumerate(tokenizer.id_table) if raw == b"\xe7")
    t = int(starts(row)[-1]) + 4
    bad = spliced(row, t, t + 1, [int(row["token_ids"][t]), half])
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM213", R, t + 1)})


# ---------------------------------------------------------------------------------------------- TM3


def masked(
    clean: Clean, change: Callable[[Row, np.ndarray], None], expected: set[Key], *, ours: bool = False
) -> Planted:
    """A planted mask, in rows of another tool or (with `sampled`) in ours."""
    row = row_of(clean)
    flags = row["sampled"].copy()
    change(row, flags)
    if ours:
        return Planted(Rows(clean.rows), with_row(clean, edited(row, sampled=flags)), expected)
    good = others(clean)
    bad = edited(good[R], mask=flags.astype(np.int64))
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), expected)


@plants("TM301")
def all_masked(clean: Clean) -> Planted:
    return masked(clean, lambda row, flags: flags.fill(False), {("TM301", R, 0)})


@plants("TM302")
def shifted(clean: Clean) -> Planted:
    row = row_of(clean)
    good = others(clean)
    bad = edited(good[R], mask=moved(row["sampled"], -1).astype(np.int64))
    expected = {("TM302", R, int(starts(row)[0]) - 1)}
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), expected)


@plants("TM303")
def pre_shifted(clean: Clean) -> Planted:
    good = others(clean, labels=True)
    labels = moved(good[R]["labels"], -1, -100)
    bad = edited(good[R], labels=labels)
    expected = {("TM303", R, int(starts(row_of(clean))[0]) - 1)}
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), expected)


@plants("TM304")
def wrong_label(clean: Clean) -> Planted:
    good = others(clean, labels=True)
    labels = good[R]["labels"].copy()
    t = int(starts(row_of(clean))[0]) + 5
    labels[t] += 1
    bad = edited(good[R], labels=labels)
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), {("TM304", R, t)})


@plants("TM305")
def stop_untrained(clean: Clean) -> Planted:
    stop = int(ends(row_of(clean))[0])

    def change(row: Row, flags: np.ndarray) -> None:
        flags[stop] = False

    return masked(clean, change, {("TM305", R, stop)}, ours=True)


@plants("TM306")
def environment_trained(clean: Clean) -> Planted:
    def change(row: Row, flags: np.ndarray) -> None:
        flags[tool(row)] = True

    return masked(clean, change, {("TM306", R, int(tool(row_of(clean))[0]))})


@plants("TM307")
def header_trained(clean: Clean) -> Planted:
    first = int(starts(row_of(clean))[0])

    def change(row: Row, flags: np.ndarray) -> None:
        flags[first - 3 : first] = True

    return masked(clean, change, {("TM307", R, first - 3)}, ours=True)


@plants("TM308")
def inverted(clean: Clean) -> Planted:
    def change(row: Row, flags: np.ndarray) -> None:
        flags[:] = ~flags

    return masked(clean, change, {("TM308", R, 0)})


@plants("TM309")
def first_dropped(clean: Clean) -> Planted:
    first = int(starts(row_of(clean))[1])

    def change(row: Row, flags: np.ndarray) -> None:
        flags[first] = False

    return masked(clean, change, {("TM309", R, first)})


@plants("TM310")
def tail_trained(clean: Clean) -> Planted | None:
    row = row_of(clean)
    t = int(ends(row)[0]) + 1
    if clean.renderer.tokenizer.id_table[int(row["token_ids"][t])].strip():
        return None  # this template writes nothing behind a stop

    def change(row: Row, flags: np.ndarray) -> None:
        flags[t] = True

    return masked(clean, change, {("TM310", R, t)})


@plants("TM311")
def turn_untrained(clean: Clean) -> Planted:
    row = row_of(clean)
    first, last = int(starts(row)[0]), int(ends(row)[0])

    def change(row: Row, flags: np.ndarray) -> None:
        flags[first : last + 1] = False

    return masked(clean, change, {("TM311", R, first)})


@plants("TM312")
def padding_trained(clean: Clean) -> Planted | None:
    tokenizer = clean.renderer.tokenizer
    pad = tokenizer.id_of(tokenizer.token_strings.get("pad_token", ""))
    if pad is None:
        return None  # this tokenizer does not say which token pads
    good = others(clean)
    n = len(good[R])
    columns = {
        "token_ids": np.concatenate([good[R]["token_ids"], [pad] * 4]),
        "mask": np.concatenate([good[R]["mask"], [0] * 4]),
    }
    good[R] = Row(R, columns, {})
    mask = columns["mask"].copy()
    mask[n:] = 1
    bad = edited(good[R], mask=mask)
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), {("TM312", R, n)})


@plants("TM313")
def runs_to_end(clean: Clean) -> Planted:
    row = row_of(clean)
    first = int(starts(row)[0])

    def change(row: Row, flags: np.ndarray) -> None:
        flags[first:] = True

    return masked(clean, change, {("TM313", R, int(ends(row)[0]) + 1)})


@plants("TM314")
def no_attention(clean: Clean) -> Planted:
    good = [edited(row, attention_mask=np.ones(len(row), np.int64)) for row in others(clean)]
    attention = good[R]["attention_mask"].copy()
    t = int(starts(row_of(clean))[0])
    attention[t : t + 2] = 0
    bad = edited(good[R], attention_mask=attention)
    return Planted(Foreign(good), with_row(clean, bad, kind=Foreign, base=good), {("TM314", R, t)})


@plants("TM315")
def another_stop(clean: Clean) -> Planted:
    tokenizer, row = clean.renderer.tokenizer, row_of(clean)
    other = next(i for i, token in tokenizer.added.items() if token.content in ("<|endoftext|>", "<|end_of_text|>"))
    t = int(ends(row)[-1])
    ids = row["token_ids"].copy()
    ids[t] = other
    cut_here = cut(edited(row, token_ids=ids), t + 1)
    good = cut(row, t + 1)
    return Planted(with_row(clean, good), with_row(clean, cut_here), {("TM315", R, t)})


@plants("TM316")
def no_stop(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(ends(row)[0])
    bad = spliced(row, t, t + 1, [])
    last = t
    after = clean.renderer.tokenizer.id_table[int(bad["token_ids"][t])]
    if not after.strip():
        last = t + 1
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM316", R, last - 1)})


@plants("TM317")
def after_stop(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(ends(row)[0])
    words = clean.renderer.tokenizer.plain_batch(["Also, the fog."])[0]
    stop = int(row["token_ids"][t])
    bad = spliced(row, t, t + 1, [stop, *words, stop])
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM317", R, t + 1)})


@plants("TM318")
def unclosed(clean: Clean) -> Planted | None:
    tokenizer, row = clean.renderer.tokenizer, row_of(clean)
    closer, opener = tokenizer.id_of("</think>"), tokenizer.id_of("<think>")
    if closer is None or not (row["token_ids"] == closer).any():
        return None
    first = int(starts(row)[0])
    t = first + int(np.argmax(row["token_ids"][first:] == closer))
    opened = first + int(np.argmax(row["token_ids"][first:] == opener))
    word = clean.renderer.tokenizer.plain_batch(["So"])[0]
    return Planted(Rows(clean.rows), with_row(clean, spliced(row, t, t + 1, word)), {("TM318", R, opened)})


@plants("TM319")
def separator_missing(clean: Clean) -> Planted | None:
    row = row_of(clean)
    t = int(ends(row)[0]) + 1
    if clean.renderer.tokenizer.id_table[int(row["token_ids"][t])].strip():
        return None
    return Planted(Rows(clean.rows), with_row(clean, spliced(row, t, t + 1, [])), {("TM319", R, t)})


# ---------------------------------------------------------------------------------------------- TM4


@plants("TM401")
def stray_logprob(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(tool(row)[0])
    values = row["logprob"].copy()
    values[t] = -1.5
    return Planted(Rows(clean.rows), with_row(clean, edited(row, logprob=values)), {("TM401", R, t)})


def scored(clean: Clean, *, noise: float = 0.004) -> list[Row]:
    """The rows with a model's log-probs that agree with the stored ones."""
    rng = np.random.default_rng(5)
    return [
        edited(row, score_logprob=(row["logprob"] + rng.normal(0, noise, len(row))).astype(np.float32))
        for row in clean.rows
    ]


@plants("TM402")
def shifted_logprobs(clean: Clean) -> Planted:
    good = scored(clean)
    row = good[R]
    places = np.flatnonzero(row["sampled"])
    values = row["logprob"].copy()
    values[places[1:]] = row["logprob"][places[:-1]]
    bad = edited(row, logprob=values)
    return Planted(Rows(good), with_row(clean, bad, base=good), {("TM402", R, int(places[0]))})


@plants("TM403")
def shifted_everywhere(clean: Clean) -> Planted:
    times = -(-11_000 // sum(int(row["sampled"].sum()) for row in clean.rows))
    many = numbered([row for row in clean.rows for _ in range(times)])
    bad = []
    for row in many:
        places = np.flatnonzero(row["sampled"])
        values = row["logprob"].copy()
        values[places[:-1]] = row["logprob"][places[1:]]
        bad.append(edited(row, logprob=values))
    return Planted(Rows(many), Rows(bad), {("TM403", None, None)})


@plants("TM404")
def missing_logprob(clean: Clean) -> Planted:
    row = row_of(clean)
    t = int(starts(row)[1]) + 2
    values = row["logprob"].copy()
    values[t] = np.nan
    return Planted(Rows(clean.rows), with_row(clean, edited(row, logprob=values)), {("TM404", R, t)})


@plants("TM405")
def colder(clean: Clean) -> Planted:
    good = scored(clean)
    bad = [edited(row, logprob=(row["logprob"] / 0.7 + 0.1).clip(max=-1e-4).astype(np.float32)) for row in good]
    return Planted(Rows(good), Rows(bad), {("TM405", None, None)})


def grouped(clean: Clean, group: int) -> list[Row]:
    return [row for row in clean.rows if row.scalars["group_id"] == f"task-{group}"]


@plants("TM406")
def flat_group(clean: Clean) -> Planted:
    bad = [told(row, reward=1.0) if row.scalars["group_id"] == "task-1" else row for row in clean.rows]
    return Planted(Rows(clean.rows), Rows(bad), {("TM406", 5, int(starts(clean.rows[5])[0]))})


@plants("TM407")
def mixed_group(clean: Clean) -> Planted:
    bad = [told(row, group_id="task-1") if row.index == 10 else row for row in clean.rows]
    short = {("TM605", 11, int(starts(clean.rows[11])[0]))}
    return Planted(Rows(clean.rows), Rows(bad), {("TM407", 10, int(starts(clean.rows[10])[0]))} | short)


def with_advantages(clean: Clean) -> list[Row]:
    mean = {f"task-{k}": np.mean([row.scalars["reward"] for row in grouped(clean, k)]) for k in range(10)}
    return [told(row, advantage=row.scalars["reward"] - mean[row.scalars["group_id"]]) for row in clean.rows]


@plants("TM408")
def wrong_advantage(clean: Clean) -> Planted:
    good = with_advantages(clean)
    bad = list(good)
    bad[R] = told(good[R], advantage=-good[R].scalars["advantage"])
    return Planted(Rows(good), Rows(bad), {("TM408", R, int(starts(good[R])[0]))})


@plants("TM409")
def twin(clean: Clean) -> Planted:
    other = clean.rows[R + 1]
    bad = Row(R + 1, row_of(clean).columns, {**dict(other.scalars), "n_tokens": len(row_of(clean))})
    return Planted(Rows(clean.rows), with_row(clean, bad), {("TM409", R + 1, int(starts(bad)[0]))})


@plants("TM410")
def length_bias(clean: Clean) -> Planted:
    good = [told(row, reward=None) for row in clean.rows]
    gone = {("TM406", row.index, int(starts(row)[0])) for row in clean.rows}
    return Planted(Rows(good), Rows(clean.rows), {("TM410", None, None)}, gone=gone)


@plants("TM411")
def wide_ratio(clean: Clean) -> Planted:
    good = scored(clean)
    values = good[R]["score_logprob"].copy()
    t = int(starts(good[R])[1]) + 4
    values[t] -= 15
    return Planted(Rows(good), with_row(clean, edited(good[R], score_logprob=values), base=good), {("TM411", R, t)})


@plants("TM412")
def renormalised(clean: Clean) -> Planted:
    good = scored(clean)
    rng = np.random.default_rng(9)
    bad = []
    for row in good:
        kept = -np.log(rng.uniform(0.85, 1.0, len(row)))
        bad.append(edited(row, logprob=np.minimum(row["logprob"] + kept, -1e-4).astype(np.float32)))
    return Planted(Rows(good), Rows(bad), {("TM412", None, None)})


@plants("TM413")
def rounded(clean: Clean) -> Planted:
    bad = []
    for row in clean.rows:
        bits = row["logprob"].view(np.uint32) & np.uint32(0xFFFF0000)
        bad.append(edited(row, logprob=bits.view(np.float32)))
    return Planted(Rows(clean.rows), Rows(bad), {("TM413", None, None)})


@plants("TM414")
def negative_entropy(clean: Clean) -> Planted:
    good = [edited(row, entropy=np.full(len(row), 0.7, np.float32)) for row in clean.rows]
    values = good[R]["entropy"].copy()
    t = int(starts(good[R])[0]) + 1
    values[t] = -1
    return Planted(Rows(good), with_row(clean, edited(good[R], entropy=values), base=good), {("TM414", R, t)})


# ---------------------------------------------------------------------------------------------- TM5


@plants("TM501")
def unknown_code(clean: Clean) -> Planted:
    row = row_of(clean)
    part = row["part"].copy()
    part[4] = 99
    return Planted(Rows(clean.rows), with_row(clean, edited(row, part=part)), {("TM501", R, 4)})


@plants("TM502")
def repeated_row(clean: Clean) -> Planted:
    copy = told(Row(50, row_of(clean).columns, row_of(clean).scalars), group_id=None, trace_id="copy", id="copy/0")
    return Planted(Rows(clean.rows), Rows([*clean.rows, copy]), {("TM502", 50, 0)})


@plants("TM504")
def jump(clean: Clean) -> Planted:
    good = [edited(row, position_ids=np.arange(len(row))) for row in others(clean)]
    positions = good[R]["position_ids"].copy()
    positions[60:] += 5
    return Planted(
        Foreign(good),
        with_row(clean, edited(good[R], position_ids=positions), kind=Foreign, base=good),
        {("TM504", R, 60)},
    )


@plants("TM505")
def cut_at_limit(clean: Clean) -> Planted:
    whole = [row for row in clean.rows if row.index not in clean.cut]
    limit = sorted(len(row) for row in whole)[-6] - 1
    good = numbered(
        [row for row in whole if int(ends(row)[-1]) < limit] + [row for row in whole if len(row) > limit][:2]
    )
    n = len(good)
    limit = min(int(ends(row)[-1]) for row in good[-2:])
    good = numbered([row for row in good[:-2] if len(row) < limit] + good[-2:])
    n = len(good)
    while not all(_whole(clean, row, limit) for row in good[-2:]):
        limit -= 1
    bad = [*good[:-2], *(cut(row, limit) for row in good[-2:])]
    expected: set[Key] = {("TM505", n - 2, limit - 1), ("TM107", n - 2, limit - 1), ("TM107", n - 1, limit - 1)}
    return Planted(Rows(good), Rows(bad), expected)


# ---------------------------------------------------------------------------------------------- TM6


def weighed(clean: Clean) -> list[Row]:
    """Weight and denominator columns as materialize writes them for a token mean."""
    total = sum(int(row["sampled"].sum()) for row in clean.rows)
    return [
        edited(row, **{
            "weight.rl": row["sampled"].astype(np.float32),
            "denominator.rl": np.where(row["sampled"], float(total), np.nan),
        })
        for row in clean.rows
    ]  # fmt: skip


@plants("TM601")
def no_weight(clean: Clean) -> Planted:
    good = weighed(clean)
    bad = [edited(row, **{"weight.rl": np.zeros(len(row), np.float32)}) for row in good]
    return Planted(Rows(good), Rows(bad), {("TM601", None, None)})


@plants("TM602")
def too_long(clean: Clean) -> Planted:
    lengths = [len(row) for row in clean.rows]
    longest = int(np.argmax(lengths))
    limit = sorted(set(lengths))[-2]
    expected: set[Key] = {("TM602", i, limit) for i, n in enumerate(lengths) if n > limit}
    assert longest in {row for _, row, _ in expected}
    settings = Settings(options=Options(max_tokens=limit))
    good = [row for row in clean.rows if len(row) <= limit]
    return Planted(Rows(good), Rows(clean.rows), expected, settings=settings)


@plants("TM603")
def no_reward(clean: Clean) -> Planted:
    good = weighed(clean)
    bad = told(good[R], reward=None)
    return Planted(Rows(good), with_row(clean, bad, base=good), {("TM603", R, int(starts(good[R])[0]))})


@plants("TM604")
def first_token(clean: Clean) -> Planted:
    good = weighed(clean)
    weight = good[R]["weight.rl"].copy()
    weight[0] = 1
    # a token of the template with policy weight is wrong in itself
    expected: set[Key] = {("TM604", R, 0), ("TM307", R, 0)}
    bad = edited(good[R], **{"weight.rl": weight})
    values = bad["logprob"].copy()
    return Planted(Rows(good), with_row(clean, edited(bad, logprob=values), base=good), expected | {("TM603", R, 0)})


@plants("TM605")
def lost_rollout(clean: Clean) -> Planted:
    bad = numbered([row for row in clean.rows if row.index != 10])
    good = numbered([row for row in clean.rows if row.scalars["group_id"] != "task-2"])
    _ = good
    return Planted(
        Rows(numbered(clean.rows)), Rows(bad), {("TM605", 10, int(starts(clean.rows[11])[0]))},
        settings=Settings(select=("TM605",)),
    )  # fmt: skip


@plants("TM606")
def per_micro_batch(clean: Clean) -> Planted:
    good = weighed(clean)
    bad = []
    for i in range(0, len(good), 4):  # not the groups, which are of five
        batch = good[i : i + 4]
        own = float(sum(int(row["sampled"].sum()) for row in batch))
        bad += [edited(row, **{"denominator.rl": np.where(row["sampled"], own, np.nan)}) for row in batch]
    return Planted(Rows(good), Rows(bad), {("TM606", 0, int(starts(good[0])[0]))})


# ---------------------------------------------------------------------------------------------- files


def as_json_line(row: Row) -> str:
    return json.dumps({"input_ids": row["token_ids"].tolist(), "loss_mask": row["mask"].tolist()})


__all__ = ["PLANTERS", "Planted", "replace"]
