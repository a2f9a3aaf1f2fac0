"""What every room stands on: codes, errors, tables, fingerprints, harmful characters."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tracemask.core import errors
from tracemask.core.characters import HARMFUL
from tracemask.core.codes import OPERATIONAL
from tracemask.core.errors import MissingExtra, TracemaskError, UsageError
from tracemask.core.fingerprint import canonical_json, file_sha256, fingerprint
from tracemask.core.registry import Table
from tracemask.core.vocab import AUTHOR_LETTER, Author, Part

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("tracemask/**/*.py"), *ROOT.glob("cli/**/*.py")]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TracemaskError)]


def test_every_operational_code_that_is_raised_has_a_name_and_every_name_is_raised():
    raised = {
        code for path in SOURCES if path.name != "codes.py" for code in re.findall(r'"(TM9\d\d)"', path.read_text())
    }
    assert raised == set(OPERATIONAL)
    assert len(set(OPERATIONAL.values())) == len(OPERATIONAL)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_travel_between_processes_with_all_they_say(kind):
    error = kind("TM900", where="a.jsonl:3", what="it is blue", fix="paint it")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(back) is kind
    assert str(back) == str(error) == "a.jsonl:3: TM900 it is blue. Fix: paint it"


def test_a_missing_extra_says_how_to_install_it():
    assert str(MissingExtra.named("ray", "ray")).endswith("Fix: pip install 'tracemask[ray]'")


def test_a_table_imports_an_entry_on_first_use_and_names_the_nearest_of_an_unknown_one():
    table: Table = Table("shape", path="pathlib:PurePosixPath", plain=3)
    assert table["path"].__name__ == "PurePosixPath" and table["plain"] == 3
    assert list(table) == ["path", "plain"] and "path" in table and len(table) == 2
    with pytest.raises(
        UsageError, match=r"TM902 unknown shape 'plian'. Fix: did you mean 'plain'\? known: path, plain"
    ):
        table["plian"]


def test_a_fingerprint_depends_on_values_and_their_order_not_on_the_order_of_keys(tmp_path):
    assert fingerprint({"a": 1, "b": "é"}) == fingerprint({"b": "é", "a": 1}) != fingerprint({"a": 1}, {"b": "é"})
    assert canonical_json({"b": [1, 2], "a": "é"}) == b'{"a":"\\u00e9","b":[1,2]}'
    with pytest.raises(ValueError):
        fingerprint(float("nan"))
    file = tmp_path / "f"
    file.write_bytes(b"abc" * 1000)
    assert file_sha256(file, chunk=7) == file_sha256(file)


def test_codes_have_spellings_and_every_author_a_letter():
    assert Author.of("policy") is Author.POLICY and Author.POLICY.label == "policy"
    assert [Part.of(label) for label in Part.labels()] == list(Part)
    with pytest.raises(KeyError, match="'narrator' is not one of renderer, policy"):
        Author.of("narrator")
    assert len({AUTHOR_LETTER[author] for author in Author}) == len(Author)


def test_what_could_drive_a_terminal_or_hide_is_harmful_and_words_are_not():
    harmful = re.compile(f"[{HARMFUL}]")
    for character in "\x1b\x07\x9b\u202e\u2066\u200b\ufeff\ud800\U000e0041":
        assert harmful.fullmatch(character), ascii(character)
    assert not harmful.search("Größe 大きさ 👍 a\tb\nc")
