"""What a newcomer meets first: misspelled options, odd terminals, Ctrl-C, a run that is already done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "fixtures" / "tokenizers" / "small"
HARBOUR = ROOT / "fixtures" / "rollouts" / "harbour.jsonl"
WORDS = [sys.executable, "-m", "tracemask_cli.main"]


def tracemask(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **environment}
    done = subprocess.run([*WORDS, *map(str, arguments)], capture_output=True, timeout=120, env=env)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize(
    ("arguments", "where", "what"),
    [
        (["check"], "tracemask check", "missing argument 'DATASET'"),
        (["show", "--bogus", "x"], "tracemask show", "no such option: --bogus"),
        (["check", "x", "--max-tokens", "many"], "tracemask check", "invalid value for '--max-tokens'"),
        (["chekc"], "tracemask", "no such command 'chekc'. Did you mean 'check'?"),
        (["tarin"], "tracemask", "no such command 'tarin'. Did you mean 'train'?"),
        (["train"], "tracemask train", "no shards to train on"),
        (["rule"], "tracemask rule", "missing argument 'code'"),
    ],
)
def test_a_command_line_that_is_not_understood_is_one_coded_line_and_a_remedy(arguments, where, what):
    done = tracemask(*arguments, NO_COLOR="1")
    line, fix = done.stderr.decode().strip().split("\n")
    assert done.returncode == 2 and not done.stdout
    assert line.startswith(f"{where}: TM900 {what}")
    assert fix.startswith("  fix: ") and "tracemask" in fix


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "{}", "-t", SMALL],
        ["explain", "{}"],
        ["check", "{}", "-t", SMALL],
        ["trace", HARBOUR],
        ["recipe", "grpo"],
    ],
    ids=lambda each: str(each[0]),
)
def test_a_terminal_without_unicode_gets_escapes_and_no_traceback(shards, arguments):
    words = [str(word).format(shards) for word in arguments]
    odd = tracemask(*words, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    plain = tracemask(*words, PYTHONIOENCODING="utf-8")
    assert odd.returncode == plain.returncode
    assert odd.stdout.isascii() or words[0] == "check"  # which writes UTF-8 bytes itself
    assert b"\\u" in odd.stdout or words[0] == "check"


def test_an_interrupt_is_one_word_and_its_own_exit_code(shards, tmp_path):
    code = "import sys, time, tracemask.check.runner as r; from tracemask_cli import main\n"
    code += "def slow(*a, **k): print('ready', flush=True); time.sleep(60)\n"
    code += "r.Session.start = slow; sys.argv = ['tracemask', 'check', sys.argv[1]]; main.main()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(shards)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, "interrupted\n")


def test_rules_that_could_not_run_are_one_short_clause_until_one_asks(shards):
    short = tracemask("check", shards, "-t", SMALL).stdout.decode()
    assert re.search(r"rules ran, [0-9]+ could not \(--skipped lists them\)\n\Z", short) and "not run" not in short
    long = tracemask("check", shards, "-t", SMALL, "--skipped").stdout.decode()
    assert "not run, missing an evaluation set (--eval PATH): TM503\n" in long
    required = tracemask("check", shards, "-t", SMALL, "--require", "TM402")
    assert required.returncode == 1
    assert "required but not run: TM402, missing log-probs of a model" in required.stdout.decode()


def test_a_run_that_is_already_done_says_so(shards, tmp_path):
    run = ["train", shards, "--init-tiny", "--recipe", "sft", "--steps", 1, "-o", tmp_path / "run", "--no-export"]
    assert b"1 steps" in tracemask(*run).stdout
    again = tracemask(*run)
    assert again.returncode == 0
    assert b"nothing to do: 1 steps are done already" in again.stdout


def test_a_model_that_is_no_folder_is_refused_without_asking_a_hub(shards, tmp_path):
    started = time.monotonic()
    done = tracemask("train", shards, "--model", "qwen3-8b", "-o", tmp_path / "run", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2 and b"qwen3-8b: TM901" in done.stderr
    assert time.monotonic() - started < 60


def test_command_functions_are_short():
    import ast

    for file in sorted((ROOT / "cli" / "tracemask_cli").glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and file.stem != "convert":
                assert node.end_lineno is not None and node.end_lineno - node.lineno < 60, f"{file.name}:{node.name}"


def test_convert_and_trace_say_what_of_a_folder_they_did_not_read(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}], "mood": 1}\n')
    (logs / "config.json").write_text('{"lr": 1}')
    (logs / "rollouts.pkl").write_bytes(b"")
    done = tracemask("convert", logs, "-t", SMALL, "-o", tmp_path / "out", COLUMNS="200")
    said = done.stdout.decode()
    assert "files that no format fits (1): config.json; --format NAME" in said
    assert "files with a name that no log has (1): .pkl 1; name one itself" in said
    assert "unknown fields  mood (1); --strict refuses" in said
    said = tracemask("trace", logs).stdout.decode()
    assert "left out: files that no format fits (1): config.json" in said


def test_a_huge_folder_is_answered_at_once(tmp_path):
    for k in range(110):
        (tmp_path / str(k)).mkdir()
        for name in range(100):
            (tmp_path / str(k) / f"{name}.py").touch()
    for words in (["show"], ["check"], ["trace"], ["convert", "-t", SMALL, "-o", tmp_path / "out"]):
        done = tracemask(*words, tmp_path)
        assert done.returncode == 2
        assert b"TM905 0 of the first 10,1" in done.stderr and b"fix: name the folder" in done.stderr


def test_text_only_rows_are_said_at_once_and_the_refusal_says_where_the_switch_is(tmp_path):
    log = tmp_path / "log.jsonl"
    talk = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "reward": 1.0}\n'
    log.write_text(talk * 2)
    said = tracemask("convert", log, "-t", SMALL, "-o", tmp_path / "out", COLUMNS="200").stdout.decode()
    assert "2 rows have ids encoded from text, which nobody sampled: policy terms refuse them" in said
    done = tracemask("train", tmp_path / "out", "--init-tiny", "--dry-run")
    assert b"TM940" in done.stderr and b"`tracemask recipe NAME --toml`" in done.stderr
    recipe = tmp_path / "mine.toml"
    recipe.write_bytes(b"allow_messages = true\n" + tracemask("recipe", "grpo", "--toml").stdout)
    assert tracemask("train", tmp_path / "out", "--init-tiny", "--recipe", recipe, "--dry-run").returncode == 0


def test_a_log_where_token_rows_are_meant_is_answered_with_the_commands(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"input": "a", "output": "b", "score": 1.0, "step": 1}\n')
    for verb in ("show", "stats", "report", "explain"):
        done = tracemask(verb, log)
        assert done.returncode == 2
        assert b"TM501" in done.stderr and b"`tracemask convert LOG -t TOKENIZER -o SHARDS`" in done.stderr


def test_the_help_says_what_comes_first():
    said = tracemask("--help").stdout.decode()
    assert "tracemask trace LOG" in said and "convert LOG -t TOKENIZER -o SHARDS" in " ".join(said.split())


@pytest.mark.parametrize("verb", ["trace", "convert"])
def test_shards_where_a_log_is_meant_are_answered_with_the_verbs_that_read_them(shards, tmp_path, verb):
    more = ["-t", SMALL, "-o", tmp_path / "out"] if verb == "convert" else []
    shard = next(shards.glob("*.arrow"))
    for path in (shards, shards / "manifest.json", shard.with_suffix(".receipt.json"), shard):
        done = tracemask(verb, path, *more)
        said = done.stderr.decode()
        assert done.returncode == 2 and "TM912" in said
        assert "check, show, stats, report and train read" in said


def test_the_words_of_sharegpt_are_answered_with_ours(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"conversations": [{"from": "human", "value": "a"}]}\n')
    assert b"write from and value as role and content" in tracemask("trace", log).stderr


def test_an_id_that_no_trace_has_is_said(tmp_path):
    done = tracemask("trace", HARBOUR, "--id", "nobody", "--max-skipped", 1)
    assert done.returncode == 2 and b"--id nobody: TM900 no trace has this id" in done.stderr
    assert tracemask("trace", HARBOUR, "--id", "harbour-0-0", "--max-skipped", 1).returncode == 0


def test_two_swapped_letters_find_their_recipe(shards):
    done = tracemask("explain", shards, "--recipe", "gpro")
    assert b"did you mean 'grpo'?" in done.stderr


@pytest.mark.parametrize("at", ["5", "5:", ":5", "5:x", "5:-1"])
def test_a_place_that_is_no_row_and_token_is_said(shards, at):
    done = tracemask("show", shards, "--at", at)
    assert done.returncode == 2 and f"--at {at}: TM900 expected ROW:TOKEN".encode() in done.stderr


def test_a_recipe_is_named_alike_by_every_verb(shards, tmp_path):
    for words in (["show"], ["report", "-o", tmp_path / "r.html"], ["explain"], ["materialize", "-o", tmp_path / "m"]):
        assert tracemask(words[0], shards, *words[1:], "-r", "grpo").returncode == 0


def test_a_recipe_that_reads_text_says_which_option_brings_it(shards, tmp_path):
    recipe = tmp_path / "drop.toml"
    recipe.write_text('extends = "echo"\n[ce]\ndrop = ["WARNING"]\n')
    done = tracemask("train", shards, "--init-tiny", "-r", recipe, "--dry-run")
    assert done.returncode == 2 and b"TM603" in done.stderr and b"fix: --tokenizer" in done.stderr
    assert tracemask("train", shards, "--init-tiny", "-r", recipe, "--dry-run", "-t", SMALL).returncode == 0


def test_what_was_written_and_the_verdict_are_said(shards, tmp_path):
    done = tracemask("check", shards, "-t", SMALL, "-f", "sarif", "--out", tmp_path / "check.sarif")
    assert not done.stdout
    assert f"{tmp_path}/check.sarif: 9 warnings, 11 notes in 48 rows".encode() in done.stderr
    done = tracemask("check", shards, "-t", SMALL, "--write-baseline", tmp_path / "known.json")
    assert f"{tmp_path}/known.json: 20 findings".encode() in done.stderr


def test_no_line_ends_in_blanks(shards, tmp_path):
    for words in (["stats", shards], ["convert", HARBOUR, "-t", SMALL, "-o", tmp_path / "out", "--max-skipped", 1]):
        said = tracemask(*words).stdout.decode()
        assert len(said.splitlines()) > 8
        assert all(line == line.rstrip() for line in said.splitlines())


def on_terminal(*arguments: object, **environment: str) -> str:
    """What the verb shows on a terminal of 80 columns."""
    import pty

    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", **environment}
    child = subprocess.Popen([*WORDS, *map(str, arguments)], stdout=follower, stderr=follower, env=env)
    os.close(follower)
    said = b""
    while True:
        try:
            said += os.read(leader, 1 << 16)
        except OSError:  # the other end is closed
            break
    os.close(leader)
    assert child.wait(timeout=60) == 0, said.decode()
    return said.decode()


def test_a_line_that_a_terminal_cuts_says_so_and_facts_are_never_cut():
    log = ROOT / "fixtures" / "traces" / "formats" / "codex" / "rollout.jsonl"
    said = on_terminal("trace", log, NO_COLOR="1", TERM="dumb")
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert "stop aborted: interrupted · truncated" in " ".join(" ".join(lines[:2]).split())
    assert [line[-1] for line in lines if "→ shell(" in line] == ["…"]


def test_a_terminal_that_cannot_redraw_gets_a_line_a_step(shards, tmp_path):
    run = ["train", shards, "--init-tiny", "--recipe", "sft", "--steps", 2, "-o", tmp_path / "run", "--no-export"]
    said = on_terminal(*run, TERM="dumb")
    assert "step 1/2  " in said and "step 2/2  " in said and "━" not in said


def test_lists_are_one_line_each_for_a_pipe_and_wrapped_for_a_terminal():
    for words in (["formats"], ["rules"], ["recipe"]):
        assert max(map(len, tracemask(*words).stdout.decode().splitlines())) > 80
        assert max(map(len, on_terminal(*words).splitlines())) <= 80


def test_the_help_of_train_tells_the_defaults_that_the_run_has():
    from tracemask.train.config import TrainConfig

    said = " ".join(tracemask("train", "--help", COLUMNS="200").stdout.decode().split())
    for name in ("recipe", "out", "groups_per_step", "tokens_per_batch", "follow_timeout", "overlong", "packing", "lr",
                 "attention", "dtype", "parallel", "device", "weight_decay", "schedule", "warmup_steps", "clip_norm",
                 "updates_per_batch", "old", "seed", "resume"):  # fmt: skip
        default = TrainConfig.model_fields[name].default
        default = getattr(default, "value", default)
        words = {str(default), f"{default:g}".replace("e-0", "e-")} if isinstance(default, float) else {str(default)}
        option = said.split(f"--{name.replace('_', '-')} <")[1].split(" --")[0]
        assert any(f"default {word}" in option for word in words), option
