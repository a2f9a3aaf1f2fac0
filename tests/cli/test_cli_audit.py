"""The auditing verbs on odd requests and other tools' data: coded lines, plain text, the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "fixtures" / "tokenizers" / "small"
HARBOUR = ROOT / "fixtures" / "rollouts" / "harbour.jsonl"
COMMAND = [sys.executable, "-m", "tracemask_cli.main"]


def tracemask(*arguments: object, **more) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, **more)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def refused(code: str, *arguments: object) -> str:
    done = tracemask(*arguments)
    assert done.returncode == 2, done.stderr
    assert code in done.stderr
    assert "fix:" in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """Ids and a mask, nothing else; the last row is empty."""
    file = tmp_path_factory.mktemp("plain") / "rows.jsonl"
    file.write_text('{"input_ids":[1,2,3],"mask":[0,1,1]}\n{"input_ids":[1],"mask":[0]}\n{"input_ids":[],"mask":[]}\n')
    return file


def test_data_without_any_scalar_is_weighed_explained_and_reported(plain, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[ce]\nterm = "ce"\n')
    assert "in loss 2" in tracemask("show", plain, "--weights", recipe).stdout
    assert "2 tokens in 1 rollout" in tracemask("explain", plain, "--recipe", recipe).stdout
    assert tracemask("report", plain, "--recipe", recipe, "-o", tmp_path / "r.html", "--no-check").returncode == 0
    assert "for an advantage of 1" in tracemask("explain", plain).stdout
    refused("TM603", "show", plain, "--weights", "grpo")
    refused("TM501", "materialize", plain, "--recipe", "grpo", "-o", tmp_path / "out")


@pytest.mark.parametrize("row", ["²", "--5", "9" * 5000, "-49", "48", "", "NaN"])
def test_a_row_that_is_none_is_refused(shards, row):
    refused("TM900", "show", shards, f"--row={row}")


@pytest.mark.parametrize("at", ["0:²", "nonsense", ":", "0:-1", "0:", "99:0", "0:99999", "0:" + "9" * 5000])
def test_a_place_that_is_none_is_refused(shards, at):
    refused("TM900", "show", shards, f"--at={at}")


def test_a_file_that_cannot_be_written_is_refused(shards, tmp_path):
    for target in (tmp_path, tmp_path / "no" / "such.html"):
        assert str(target) in refused("TM932", "report", shards, "--no-check", "-o", target)
        assert str(target) in refused("TM932", "show", shards, "--svg", target)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_coded_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "recipe", "grpo"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "TM932" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["show", "SHARDS", "--tokens"], ["recipe", "grpo"], ["explain", "SHARDS", "--json"]]
)
def test_a_closed_pipe_is_silent_and_no_finding(shards, arguments):
    words = [str(shards) if word == "SHARDS" else word for word in arguments]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_recipe_as_toml_is_the_recipe_itself(tmp_path):
    file = tmp_path / "odd.toml"
    text = (
        'summary = ":warning: \\u001b[31m \\u007f \\u0085 \\u202e \\t \\n quoted \\" \\\\ 🚢"\n'
        '[advantage]\nestimator = "reward"\n'
        '["é"]\nterm = "ppo"\nrows = { "source.format" = ["openai"], "a b" = [":x:"] }\n'
        'drop = ["^\\u202e:smile:\\\\d$"]\n'
    )
    file.write_text(text, encoding="utf-8")
    done = tracemask("recipe", file, "--toml")
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout) & {"\x1b", "\x7f", "\x85", "\u202e"}
    given, found = tomllib.loads(text), tomllib.loads(done.stdout)
    assert found["summary"] == given["summary"]
    assert found["é"]["rows"] == given["é"]["rows"]
    assert found["é"]["drop"] == given["é"]["drop"]


def hostile(folder: Path) -> Path:
    file = folder / "hostile.jsonl"
    records = [
        {"id": ":smile:\u001b[31m\u202e", "input_ids": [1, 2, 3], "mask": [0, 1, 1], "reward": 1},
        {"id": "b\nforged", "input_ids": [1, -1, 99999999999], "mask": [0, 1, 1], "reward": "0"},
        {"id": "\ud800", "input_ids": [1, 2], "mask": [0, 1], "reward": None, "logprobs": [None, float("-inf")]},
        {"id": 10**30, "input_ids": [1, 2], "mask": [0, 1], "reward": 0.5},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def test_ids_of_any_kind_pass_every_view_as_text(tmp_path):
    file = hostile(tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text().replace("[1, 2", "[1, 3"))
    for arguments in (
        *(["show", file, "--row", row, "--tokenizer", SMALL] for row in range(4)),
        ["show", file, "--row", 2, "--tokens", "--logprobs"],
        ["explain", file, "--recipe", "reinforce"],
        ["diff", file, other],
        ["diff", file, other, "--json"],
        ["report", file, "--tokenizer", SMALL, "-o", tmp_path / "r.html"],
    ):
        done = tracemask(*arguments)
        assert done.returncode == (arguments[0] == "diff"), done.stderr
        assert not set(done.stdout + done.stderr) & {"\x1b", "\u202e", "\ud800"}
        assert "\nforged" not in done.stdout
        assert "😄" not in done.stdout
    assert (tmp_path / "r.html").read_text(encoding="utf-8")
    found = json.loads(tracemask("diff", file, other, "--json").stdout)
    assert [row["row"] for row in found["rows_that_differ"]] == [":smile:\x1b[31m\u202e", "\\ud800", str(10**30)]
    assert json.loads(tracemask("explain", file, "--recipe", "reinforce", "--json").stdout)["rollouts"] == 4


def test_a_group_that_is_a_list_is_a_coded_error(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"input_ids":[1,2],"mask":[0,1],"reward":1,"group_id":["a"]}\n')
    assert "group_id" in refused("TM603", "explain", file, "--recipe", "grpo")
    assert "group_id" in refused("TM603", "report", file, "--no-check", "-o", tmp_path / "r.html")


def test_rows_with_one_id_are_compared_one_by_one(tmp_path):
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text('{"id":"x","input_ids":[1,2]}\n{"id":"x","input_ids":[1,3]}\n')
    b.write_text('{"id":"x","input_ids":[9,9]}\n{"id":"x","input_ids":[1,3]}\n')
    done = tracemask("diff", a, b, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["rows_compared"] == 2
    assert len(json.loads(done.stdout)["rows_that_differ"]) == 1
    assert "2 rows compared, 0 differ" in tracemask("diff", a, a).stdout


def test_rows_without_ids_are_compared_by_place(tmp_path):
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text('{"id":"x","input_ids":[1,2]}\n{"id":"y","input_ids":[1,3]}\n')
    b.write_text('{"input_ids":[1,2]}\n{"input_ids":[1,4]}\n')
    for first, second in ((a, b), (b, a)):
        done = tracemask("diff", first, second)
        assert done.returncode == 1
        assert "2 rows compared, 1 differ" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "orchestrator = 3",
        "algo = 'grpo'",
        "[orchestrator]\nalgo = 1",
        "[orchestrator]\ntrain = 1\n[orchestrator.algo]\ntype = 'grpo'",
        "[trainer]\nloss = 5\n[orchestrator.algo]\ntype = 'grpo'",
        "trainer = 2\n[orchestrator.algo]\ntype = 'grpo'",
        "[orchestrator.algo]\ntype = ['grpo']",
        "[orchestrator.algo]\ntype = 'echo'\nroles = 5",
        "[orchestrator]\ngroup_size = 'x'\n[orchestrator.algo]\ntype = 'grpo'",
        "components = 5",
        "[components]\nrl = 1",
        "extends = ['grpo']",
        "extends = 'nope'",
        "extends = 'grpo'\nrl = 1",
        "extends = 'grpo'\nadvantage = 1",
        "extends = 'grpo'\n[rl]\nterm = 3",
        "extends = 'grpo'\n[rl]\noptions = 3",
        "extends = 'grpo'\n[rl]\nnormalizer = 3",
        "extends = 'grpo'\n[rl]\nnormalizer = ['sum']",
        "extends = 'grpo'\n[rl.normalizer]\nname = ['sum']",
        "extends = 'grpo'\n[rl]\nmismatch = 3",
        "extends = 'grpo'\n[rl.mismatch]\nkind = ['tis']",
        "extends = 'grpo'\n[rl]\ncoef = nan",
        "extends = 'grpo'\n[rl]\nselect = [{ weight = 1e39 }]",
        "extends = 'grpo'\n[rl]\nselect = [{ weight = 1e-46 }]",
        "extends = 'echo'\n[ce.roles.tool]\nalpha = 1e-46",
        "extends = 'grpo'\n[rl]\ndrop = ['(']",
        "[advantage]\nestimator = 'reward'\n[rl]\nterm = 'nope:'",
        "[reward]\nterm = 'ce'",
        "[components.reward]\nterm = 'ce'",
        "[ce]\nterm = 'ce'\n[ce.x]\ny = 1",
        "a = [",
        "name = 3\n[ce]\nterm = 'ce'",
        "[ce]\nterm = 1979-05-27",
        "date = 1979-05-27",
    ],
)
def test_a_broken_recipe_is_named(tmp_path, text):
    from tracemask.core.errors import TracemaskError
    from tracemask.recipe import Recipe

    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(TracemaskError) as caught:
        Recipe.load(file)
    assert caught.value.code in ("TM940", "TM902")


def test_a_recipe_that_is_no_text_is_named(tmp_path):
    (tmp_path / "r.toml").write_bytes(b'name = "\xff"')
    refused("TM940", "recipe", tmp_path / "r.toml")
    (tmp_path / "folder.toml").mkdir()
    refused("TM901", "recipe", tmp_path / "folder.toml")


@pytest.mark.parametrize("columns", [1, 20, 40])
def test_a_narrow_terminal_loses_nothing(shards, columns):
    env = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    done = tracemask("show", shards, "--tokenizer", SMALL, "--full", "--ids", env=env)
    ids = [word for line in done.stdout.split("\n") if "#│" in line for word in line.split("#│")[1].split()]
    first = done.stdout.split("\n", 1)[0]
    assert f"{len(ids):,} tokens" in first


@pytest.mark.parametrize("verb", ["report", "materialize"])
def test_the_same_bytes_whatever_the_hash_seed(shards, tmp_path, verb):
    found = []
    for seed in ("0", "1", "7"):
        out = tmp_path / seed
        if verb == "report":
            arguments = ["report", shards, "--tokenizer", SMALL, "--recipe", "echo", "-o", out]
        else:
            arguments = ["materialize", shards, "--recipe", "echo", "-o", out]
        assert tracemask(*arguments, env={**os.environ, "PYTHONHASHSEED": seed}).returncode == 0
        files = [out] if out.is_file() else sorted(file for file in out.rglob("*") if file.is_file())
        found.append([(file.name if out.is_dir() else "", file.read_bytes()) for file in files])
    assert found[0] == found[1] == found[2]


def test_the_folder_one_stands_in_gives_the_page_its_title(shards):
    assert tracemask("report", ".", "--no-check", "-o", "../r.html", cwd=shards).returncode == 0
    assert "<title>shards — tracemask</title>" in (shards.parent / "r.html").read_text(encoding="utf-8")


def rows_named(folder: Path, name: str, **columns: list[int]) -> Path:
    file = folder / name
    file.write_text(json.dumps({**columns, "reward": 1.0}) + "\n")
    return file


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["report", "--no-check", "-o", "{}/r.html"],
        ["check"],
        ["stats"],
        ["explain"],
        ["fix", "--diff"],
        ["export", "--to", "jsonl", "-o", "{}/out"],
        ["train", "--model", ROOT / "fixtures/models/tiny", "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_column_names_that_would_change_nothing_are_refused(shards, tmp_path, words):
    verb, *rest = [str(word).format(tmp_path) for word in words]
    said = refused("TM900", verb, shards, *rest, "--columns", "ids=toks")
    assert "shards of ours" in said and "--columns" in said


def test_column_names_are_read_with_spaces_and_once_each(tmp_path):
    rows = rows_named(tmp_path, "rows.jsonl", toks=[1, 2, 3], mask=[0, 1, 1])
    assert tracemask("stats", rows, "--columns", " ids = toks , mask=mask ").returncode == 0
    for text in ("ids=toks,ids=mask", "ids", "ids=", "=toks", ",", " = "):
        assert "each name once" in refused("TM900", "stats", rows, "--columns", text)


def test_options_for_datasets_are_refused_with_a_log(tmp_path):
    assert "--columns" in refused("TM900", "check", HARBOUR, "--columns", "mask=m")
    assert "--traces" in refused("TM900", "check", HARBOUR, "--traces", HARBOUR)
    rows = rows_named(tmp_path, "rows.jsonl", toks=[1, 2, 3], mask=[0, 1, 1])
    done = tracemask("check", rows, "--columns", "ids=toks")
    assert "1 rows" in done.stdout or "1 row" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["show", "stats", "report", "explain", "check", "fix", "export", "train"])
def test_several_datasets_are_read_as_one(tmp_path, verb):
    a = rows_named(tmp_path, "a.jsonl", input_ids=[1, 2, 3], mask=[0, 1, 1])
    b = rows_named(tmp_path, "b.jsonl", input_ids=[4, 5, 6, 7], mask=[0, 1, 1, 1])
    more, shown = {
        "show": (["--row", 1], "4 tokens"),
        "stats": (["--json"], '"rows": 2'),
        "report": (["--no-check", "-o", tmp_path / "r.html"], "2 rows"),
        "explain": (["--recipe", "reinforce"], "5 tokens in 2 rollouts"),
        "check": (["--json"], '"rows": 2'),
        "fix": (["--diff"], "2 rows"),
        "export": (["--to", "jsonl", "-o", tmp_path / "out"], "2 rows, 7 tokens"),
        "train": (["--init-tiny", "--recipe", "reinforce", "--dry-run", "--json"], '"rows": 2'),
    }[verb]
    done = tracemask(verb, a, b, *more)
    assert done.returncode in (0, 1), done.stderr
    assert shown in done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["show", "stats", "check", "explain", "fix", "report", "export"])
def test_token_rows_come_through_a_pipe(tmp_path, verb):
    rows = rows_named(tmp_path, "rows.jsonl", input_ids=[1, 2, 3], mask=[0, 1, 1])
    more = {
        "explain": ["--recipe", "reinforce"],
        "fix": ["--diff"],
        "report": ["--no-check", "-o", "OUT.html"],
        "export": ["--to", "jsonl", "-o", "OUT"],
    }.get(verb, [])
    piped, named = (
        tracemask(verb, name, *(str(word).replace("OUT", str(tmp_path / kind)) for word in more), input=text)
        for kind, name, text in (("piped", "-", rows.read_text()), ("named", rows, None))
    )
    assert piped.returncode == named.returncode < 2, piped.stderr
    said = piped.stdout.replace("piped", "named") + piped.stderr.replace("piped", "named")
    assert "/tracemask-" not in said  # no place of our own
    if verb != "report":  # which has its title from the name
        assert said == (named.stdout + named.stderr).replace(str(rows), "-")


def test_a_log_comes_through_a_pipe_to_check_and_trace(tmp_path):
    log = tmp_path / "stdin.jsonl"
    log.write_bytes(HARBOUR.read_bytes())
    for verb, more in (("trace", ["--max-skipped", 1]), ("check", []), ("check", ["-t", SMALL, "--json"])):
        piped, named = (
            tracemask(verb, name, *more, input=text) for name, text in (("-", HARBOUR.read_text()), (log, None))
        )
        assert piped.returncode == named.returncode
        assert piped.stdout + piped.stderr == (named.stdout + named.stderr).replace(str(log), "-")


def test_a_pipe_that_gives_nothing_or_is_not_alone_is_refused(tmp_path, shards):
    rows = rows_named(tmp_path, "rows.jsonl", input_ids=[1, 2, 3], mask=[0, 1, 1])
    for arguments, text, code in (
        (["stats", "-"], "", "TM904"),
        (["check", "-"], "", "TM904"),
        (["stats", "-", rows], rows.read_text(), "TM900"),
        (["stats", "-", "-"], rows.read_text(), "TM900 a pipe is given twice"),
        (["check", "-", "-"], HARBOUR.read_text(), "TM900 a pipe is given twice"),
        (["trace", "-", "-"], HARBOUR.read_text(), "TM900 a pipe is given twice"),
        (["train", "-", "--model", ROOT / "fixtures/models/tiny"], rows.read_text(), "TM900"),
        (["materialize", "-", "--recipe", "sft", "-o", tmp_path / "out"], rows.read_text(), "TM501"),
    ):
        done = tracemask(*arguments, input=text)
        assert done.returncode == 2 and code in done.stderr and "fix:" in done.stderr, done.stderr
