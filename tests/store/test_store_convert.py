"""Logs become datasets: the same bytes whoever does it, nothing lost, nothing twice, every skip with its reason."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rows import ROLLOUTS, TOKENIZER, files

from tracemask.core.errors import TracemaskError
from tracemask.core.vocab import Author
from tracemask.store.convert import Progress, RenderConfig, convert
from tracemask.store.manifest import verify
from tracemask.store.reader import open_dataset

HERE = Path(__file__).parent
RENDER = RenderConfig(str(TOKENIZER))
EVERY = 6  # traces a shard, so that there are seven


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture rollouts converted once, in this process."""
    out = tmp_path_factory.mktemp("convert") / "undisturbed"
    convert(str(ROLLOUTS), str(out), render=RENDER, rows_per_shard=EVERY)
    return out


def log(path: Path, n: int, **more: Any) -> Path:
    """A small chat log of `n` traces."""
    lines = [
        {
            "id": f"t{i}",
            "messages": [{"role": "user", "content": f"Say {i}."}, {"role": "assistant", "content": "Yes."}],
        }
        for i in range(n)
    ]
    path.write_text("".join(json.dumps({**line, **more}) + "\n" for line in lines), encoding="utf-8")
    return path


def test_the_bundled_rollouts_become_rows_in_their_order(undisturbed: Path) -> None:
    found = open_dataset(undisturbed)
    traces = [json.loads(line)["id"] for line in ROLLOUTS.read_text().splitlines() if line.endswith("}")]
    seen = list(dict.fromkeys(found.scalars(["trace_id"])["trace_id"]))
    assert seen == [trace for trace in traces if trace in seen]
    assert len(seen) == 40
    assert len(found.shards) == 7
    assert verify(found) == []


def test_sampled_ids_and_log_probs_of_the_log_are_in_the_rows_bit_for_bit(undisturbed: Path) -> None:
    rows: dict[str, list[tuple[int, float]]] = {}
    for row in open_dataset(undisturbed):
        at = row["sampled"]
        pairs = zip(row["token_ids"][at].tolist(), row["logprob"][at].tolist(), strict=True)
        rows.setdefault(row.scalars["trace_id"], []).extend(pairs)
    checked = 0
    for line in ROLLOUTS.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        wanted = []
        for message in record["messages"]:
            for token, logprob in zip(message.get("token_ids") or (), message.get("logprobs") or (), strict=True):
                wanted.append((token, pytest.approx(logprob, rel=1e-6)))
        if wanted and sorted(wanted, key=lambda p: p[0])[0]:
            assert sorted(p[0] for p in rows[record["id"]]) == sorted(p[0] for p in wanted)
            checked += 1
    assert checked > 30


def test_a_rerun_does_nothing_and_leaves_the_bytes(undisturbed: Path) -> None:
    before = files(undisturbed)
    times = {path.name: path.stat().st_mtime_ns for path in undisturbed.glob("*.arrow")}
    summary = convert(str(ROLLOUTS), str(undisturbed), render=RENDER, rows_per_shard=EVERY)
    assert summary.reused == summary.shards == 7
    assert files(undisturbed) == before
    assert {path.name: path.stat().st_mtime_ns for path in undisturbed.glob("*.arrow")} == times


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_bytes(undisturbed: Path, tmp_path: Path, workers: int) -> None:
    convert(str(ROLLOUTS), str(tmp_path / "out"), render=RENDER, rows_per_shard=EVERY, workers=workers)
    assert files(tmp_path / "out") == files(undisturbed)


def test_hash_seed_environment_and_place_do_not_change_the_bytes(undisturbed: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "logs"
    elsewhere.mkdir(parents=True)
    shutil.copy(ROLLOUTS, elsewhere / ROLLOUTS.name)
    script = (
        "import sys\nfrom tracemask.store.convert import RenderConfig, convert\n"
        "convert(sys.argv[1], 'out', render=RenderConfig(sys.argv[2]), rows_per_shard=int(sys.argv[3]))\n"
    )
    extra = {"PYTHONHASHSEED": "4711", "TZ": "Pacific/Chatham", "LC_ALL": "C", "COLUMNS": "20", "HOME": str(tmp_path)}
    environment = {**os.environ, **extra, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-c", script, str(elsewhere / ROLLOUTS.name), str(TOKENIZER), str(EVERY)]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, timeout=120)
    assert files(tmp_path / "out") == files(undisturbed)


def killed(tmp_path: Path, kills: int, seed: int) -> dict[str, int]:
    """What store_kill saw."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, str(HERE / "store_kill.py"), str(tmp_path), str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_conversion_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    seen = killed(tmp_path, kills=3, seed=2)
    assert seen["different"] == 0
    assert seen["partial"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_hundred_killed_conversions_end_with_the_same_bytes(tmp_path: Path) -> None:
    seen = killed(tmp_path, kills=100, seed=3)
    assert seen["different"] == 0
    assert seen["killed"] >= 100
    assert seen["partial"] > 0
    assert seen["temporaries"] > 0


def test_a_pool_whose_parent_is_killed_leaves_no_worker_behind(undisturbed: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom tracemask.store.convert import RenderConfig, convert\n"
        "if __name__ == '__main__':\n"
        "    show = lambda progress: print(progress.done, flush=True)\n"
        "    options = {'rows_per_shard': 1, 'workers': 2, 'progress': show}\n"
        "    convert(sys.argv[1], sys.argv[2], render=RenderConfig(sys.argv[3]), **options)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(script)
    out = tmp_path / "out"
    command = [sys.executable, str(program), str(ROLLOUTS), str(out), str(TOKENIZER)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert running.stdout is not None
    running.stdout.readline()  # one shard is there, both workers are at work
    running.kill()
    running.wait()
    rest = running.stdout.read()  # ends when the last worker, which shares the pipe, is gone
    assert rest.count(b"\n") < 40
    running.stdout.close()
    convert(str(ROLLOUTS), str(out), render=RENDER, rows_per_shard=1)
    convert(str(ROLLOUTS), str(tmp_path / "one"), render=RENDER, rows_per_shard=1)
    assert files(out) == files(tmp_path / "one")


@pytest.mark.parametrize("attempt", [2**31, -(2**40)])
def test_a_number_that_no_shard_can_hold_costs_its_record_and_not_the_run(tmp_path: Path, attempt: int) -> None:
    lines = [json.loads(line) for line in ROLLOUTS.read_text(encoding="utf-8").splitlines()[:3]]
    lines[1]["attempt"] = attempt
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = convert(str(tmp_path / "in.jsonl"), str(tmp_path / "out"), render=RENDER)
    assert [(skip.code, skip.where.split(":")[:2]) for skip in summary.skipped] == [("TM501", ["in.jsonl", "2"])]
    assert summary.traces == 2


def test_who_opens_a_dataset_while_it_is_written_or_replaced_sees_all_of_it_or_an_error(tmp_path: Path) -> None:
    import multiprocessing

    out = tmp_path / "out"

    def write(times: int) -> None:
        for _ in range(times):
            convert(str(ROLLOUTS), str(out), render=RENDER, rows_per_shard=3, force=True)

    writer = multiprocessing.get_context("fork").Process(target=write, args=(4,))
    seen: set[object] = set()
    writer.start()
    while writer.is_alive():
        try:
            found = open_dataset(out)
            seen.add(len(found))
            assert len([dict(row.scalars) for row in found]) == 48  # also when it is replaced while it is read
        except TracemaskError as error:
            seen.add(error.code)
    writer.join()
    assert writer.exitcode == 0
    assert len(open_dataset(out)) == 48
    assert seen <= {48, "TM901", "TM931", "TM508"}
    assert {48, "TM508"} <= seen


@pytest.mark.parametrize("source", ["-", "/dev/stdin", "/dev/fd/0"])
def test_a_log_comes_through_a_pipe(undisturbed: Path, tmp_path: Path, source: str) -> None:
    script = (
        "import sys\nfrom tracemask.store.convert import RenderConfig, convert\n"
        "convert(sys.argv[1], sys.argv[2], render=RenderConfig(sys.argv[3]))\n"
    )
    command = [sys.executable, "-c", script, source, str(tmp_path / "out"), str(TOKENIZER)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    subprocess.run(command, input=ROLLOUTS.read_bytes(), env=environment, check=True, timeout=60)
    found, expected = open_dataset(tmp_path / "out"), open_dataset(undisturbed)
    assert [row["token_ids"].tolist() for row in found] == [row["token_ids"].tolist() for row in expected]
    name = "stream-0.jsonl" if source == "/dev/fd/0" else "stdin.jsonl"
    assert {one["path"] for one in found.scalars(["source"])["source"]} == {name}


def test_an_output_without_a_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TracemaskError, match="TM900 a folder without a name"):
        convert(str(ROLLOUTS), "", render=RENDER)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_shard_is_made_again_and_only_that_one(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    first, second = sorted(out.glob("*.arrow"))[:2]
    first.write_bytes(first.read_bytes()[:-8])
    second.with_name(second.name.replace(".arrow", ".receipt.json")).write_text("{}")
    (out / "manifest.json").unlink()
    summary = convert(str(ROLLOUTS), str(out), render=RENDER, rows_per_shard=EVERY)
    assert summary.reused == 5
    assert files(out) == files(undisturbed)


def test_the_profile_is_in_the_plan_and_both_hold_the_same_rows(undisturbed: Path, tmp_path: Path) -> None:
    convert(str(ROLLOUTS), str(tmp_path), render=RENDER, rows_per_shard=EVERY, profile="compact")
    fast, compact = open_dataset(undisturbed), open_dataset(tmp_path)
    for left, right in zip(fast, compact, strict=True):
        assert left["token_ids"].tolist() == right["token_ids"].tolist()
        assert dict(left.scalars) == dict(right.scalars)
    assert sum(p.stat().st_size for p in tmp_path.glob("*.arrow")) < sum(
        p.stat().st_size for p in undisturbed.glob("*.arrow")
    )


def test_other_options_in_the_same_folder_need_force(tmp_path: Path) -> None:
    source, out = log(tmp_path / "a.jsonl", 3), str(tmp_path / "out")
    convert(str(source), out, render=RENDER)
    with pytest.raises(TracemaskError) as error:
        convert(str(source), out, render=RENDER, profile="compact")
    assert error.value.code == "TM933"
    assert "--force" in error.value.fix
    convert(str(source), out, render=RENDER, profile="compact", force=True)
    assert open_dataset(out).metadata["profile"] == "compact"


def test_a_skipped_record_is_counted_with_place_and_reason(tmp_path: Path) -> None:
    source = log(tmp_path / "a.jsonl", 3)
    source.write_text(source.read_text() + '{"messages": [{"role": "wizard", "content": "x"}]}\n{broken\n')
    summary = convert(str(source), str(tmp_path / "out"), render=RENDER, max_skipped=1)
    assert summary.traces == 3
    assert [skip.where.split(":")[:2] for skip in summary.skipped] == [["a.jsonl", "4"], ["a.jsonl", "5"]]
    assert all(skip.code.startswith("TM") and skip.what for skip in summary.skipped)
    assert summary.too_many_skipped
    assert summary.to_json()["skipped"][1]["code"] == "TM910"
    again = convert(str(source), str(tmp_path / "out"), render=RENDER, max_skipped=2)
    assert again.skipped == summary.skipped
    assert not again.too_many_skipped


PICKY = (
    "{% for m in messages %}{% if 'never' in m['content'] | string %}{{ raise_exception('not this one') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_trace_that_cannot_be_rendered_is_skipped_and_the_others_are_not(tmp_path: Path) -> None:
    source = log(tmp_path / "a.jsonl", 3)
    bad = {"id": "b", "messages": [{"role": "user", "content": "never"}, {"role": "assistant", "content": "Yes."}]}
    lines = source.read_text().splitlines()
    source.write_text("\n".join([lines[0], json.dumps(bad), *lines[1:]]) + "\n")
    summary = convert(str(source), str(tmp_path / "out"), render=RenderConfig(str(TOKENIZER), template=PICKY))
    assert summary.traces == 3
    assert [skip.where.split(":")[:2] for skip in summary.skipped] == [["a.jsonl", "2"]]
    assert "not this one" in summary.skipped[0].what
    assert open_dataset(tmp_path / "out").scalars(["trace_id"])["trace_id"] == ["t0", "t1", "t2"]


@pytest.mark.parametrize("workers", [1, 2])
def test_on_error_fail_stops_at_the_first_bad_record(tmp_path: Path, workers: int) -> None:
    source = log(tmp_path / "a.jsonl", 3)
    source.write_text(source.read_text() + "{broken\n" + source.read_text())
    with pytest.raises(TracemaskError) as error:
        convert(str(source), str(tmp_path / "out"), render=RENDER, on_error="fail", workers=workers, rows_per_shard=2)
    assert error.value.code == "TM910"
    assert "a.jsonl:4" in error.value.where
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_unknown_fields_are_counted_and_refused_under_strict(tmp_path: Path) -> None:
    source = log(tmp_path / "a.jsonl", 3, mystery=1)
    summary = convert(str(source), str(tmp_path / "out"), render=RENDER)
    assert summary.unknown_fields == {"mystery": 3}
    with pytest.raises(TracemaskError) as error:
        convert(str(source), str(tmp_path / "strict"), render=RENDER, strict=True)
    assert error.value.code == "TM904"
    assert "mystery" in error.value.what
    assert list((tmp_path / "strict").iterdir()) == []


def test_a_lone_surrogate_is_replaced_and_said_with_line_and_field(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(
        '{"messages": [{"role": "user", "content": "Go."}, {"role": "tool", "content": "lone \\ud83d half"},'
        ' {"role": "assistant", "content": "Done."}]}\n'
    )
    convert(str(source), str(tmp_path / "out"), render=RENDER)
    findings = [json.loads(one) for one in open_dataset(tmp_path / "out").row(0).scalars["findings"]]
    (found,) = [one for one in findings if "surrogate" in one["message"]]
    assert "messages[1].content" in found["message"]
    assert found["place"] == {"path": "a.jsonl", "line": 1}


def test_many_small_files_share_shards_and_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(7):
        log(tmp_path / "in" / f"{k}.jsonl", 2)
    summary = convert(str(tmp_path / "in"), str(tmp_path / "out"), render=RENDER, rows_per_shard=5)
    found = open_dataset(tmp_path / "out")
    assert summary.shards == 4
    assert [shard.rows for shard in found.shards] == [4, 4, 4, 2]
    paths = [source["path"] for source in found.scalars(["source"])["source"]]
    assert paths == [f"{k}.jsonl" for k in range(7) for _ in range(2)]


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_moves_within_a_shard(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards of 160 records: who shows a bar must not wait for half of the work."""
    monkeypatch.setattr("tracemask.store.engines._LOOK", 0.005)  # all of it takes less than a look at a usual pace
    source = tmp_path / "many.jsonl"
    lines = ROLLOUTS.read_bytes().splitlines(keepends=True)[:8]
    source.write_bytes(b"".join(lines * 40))
    seen: list[Progress] = []
    convert(
        str(source), str(tmp_path / "out"), render=RENDER, rows_per_shard=160, workers=workers, progress=seen.append
    )
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert (done[-1], seen[-1].total, seen[-1].shards) == (320, 320, 2)
    assert any(progress.shards == 0 and progress.done > 0 for progress in seen)
    assert len(set(done)) >= 4


def test_progress_reaches_the_total_and_tells_what_was_reused(tmp_path: Path) -> None:
    source, seen = log(tmp_path / "a.jsonl", 6), []
    convert(str(source), str(tmp_path / "out"), render=RENDER, rows_per_shard=2, progress=seen.append)
    assert [progress.done for progress in seen] == [2, 2, 4, 4, 6, 6]  # rows of a shard, then the shard
    assert [progress.shards for progress in seen] == [0, 1, 1, 2, 2, 3]
    assert seen[-1] == Progress(done=6, total=6, shards=3, reused=0, rows=6, tokens=seen[-1].tokens, skipped=0)
    convert(str(source), str(tmp_path / "out"), render=RENDER, rows_per_shard=2, progress=seen.append)
    assert seen[-1].reused == 3


def test_a_bucket_holds_the_same_bytes_as_a_folder(undisturbed: Path) -> None:
    from tracemask.store.folder import open_folder

    convert(str(ROLLOUTS), "memory://convert-same", render=RENDER, rows_per_shard=EVERY)
    folder = open_folder("memory://convert-same")
    assert {name: folder.read(name) for name in folder.names()} == files(undisturbed)


def test_logs_in_a_bucket_give_the_same_bytes_as_local_ones(tmp_path: Path) -> None:
    import fsspec

    (tmp_path / "in" / "sub").mkdir(parents=True)
    log(tmp_path / "in" / "a.jsonl", 2)
    log(tmp_path / "in" / "sub" / "b.jsonl", 3)
    fs = fsspec.filesystem("memory")
    fs.put(str(tmp_path / "in") + "/", "/convert-in/", recursive=True)
    for source, name in ((tmp_path / "in", "folder"), (tmp_path / "in" / "a.jsonl", "file")):
        convert(str(source), str(tmp_path / name), render=RENDER)
    convert("memory://convert-in", str(tmp_path / "bucket-folder"), render=RENDER)
    convert("memory://convert-in/a.jsonl", str(tmp_path / "bucket-file"), render=RENDER)
    assert files(tmp_path / "folder") == files(tmp_path / "bucket-folder")
    assert files(tmp_path / "file") == files(tmp_path / "bucket-file")
    with pytest.raises(TracemaskError, match="TM901"):
        convert("memory://convert-in/none.jsonl", str(tmp_path / "none"), render=RENDER)


def test_ids_beyond_the_vocabulary_say_that_the_tokenizer_is_another_one(tmp_path: Path) -> None:
    source = log(tmp_path / "a.jsonl", 1)
    reply = {"role": "assistant", "content": "Yes", "token_ids": [151_000, 151_668], "logprobs": [-0.1, -0.2]}
    bad = json.dumps({"id": "bad", "messages": [{"role": "user", "content": "Hi"}, reply]})
    (tmp_path / "bad.jsonl").write_text(bad + "\n")
    with pytest.raises(TracemaskError, match=r"TM904 .*bad.jsonl:1: TM205 token id 151668"):
        convert(str(tmp_path / "bad.jsonl"), str(tmp_path / "none"), render=RENDER)
    source.write_text(source.read_text() + bad + "\n")
    summary = convert(str(source), str(tmp_path / "out"), render=RENDER)
    assert [skip.code for skip in summary.skipped] == ["TM205"]
    assert summary.traces == 1


@pytest.mark.real
def test_a_log_converted_with_another_models_tokenizer_is_suspected(
    tmp_path: Path, real_tokenizer: Callable[[str], Path], undisturbed: Path
) -> None:
    summary = convert(str(ROLLOUTS), str(tmp_path), render=RenderConfig(str(real_tokenizer("qwen3"))))
    suspicion = summary.suspicion()
    assert suspicion is not None
    assert suspicion.code == "TM205"
    assert convert(str(ROLLOUTS), str(undisturbed), render=RENDER, rows_per_shard=EVERY).suspicion() is None


def test_author_rules_are_applied_and_part_of_the_plan(tmp_path: Path) -> None:
    source = log(tmp_path / "a.jsonl", 2)
    rules = {"authors": [{"role": "user", "author": "environment"}]}
    convert(str(source), str(tmp_path / "out"), render=RENDER, authors=rules)
    found = open_dataset(tmp_path / "out")
    assert int((found.row(0)["author"] == Author.ENVIRONMENT).sum()) > 0
    (tokens,) = convert(str(source), str(tmp_path / "out"), render=RENDER, authors=rules).author_rules.values()
    assert tokens == sum(int((row["message"] == 0).sum()) for row in found)
    with pytest.raises(TracemaskError, match="TM933"):
        convert(str(source), str(tmp_path / "out"), render=RENDER)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"workers": 0}, "TM900"),
        ({"rows_per_shard": 0}, "TM900"),
        ({"max_skipped": -1}, "TM900"),
        ({"on_error": "ignore"}, "TM900"),
        ({"engine": "lokal"}, "TM902"),
        ({"format": "opnai"}, "TM902"),
        ({"render": RenderConfig("no/such/folder")}, "TM901"),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], code: str
) -> None:
    source = log(tmp_path / "a.jsonl", 1)
    with pytest.raises(TracemaskError) as error:
        convert(str(source), str(tmp_path / "out"), **{"render": RENDER, **options})
    assert error.value.code == code
    assert not (tmp_path / "out").exists()


def test_an_empty_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(TracemaskError) as error:
        convert(str(tmp_path / "a.jsonl"), str(tmp_path / "out"), render=RENDER, format="openai")
    assert error.value.code == "TM904"


def test_what_lies_in_the_folder_and_is_no_log_is_in_the_summary_and_changes_no_byte(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log(tmp_path / "logs" / "a.jsonl", 2)
    plain = convert(str(tmp_path / "logs"), str(tmp_path / "plain"), render=RENDER)
    assert plain.to_json()["left_out"] == {"unfit": [], "other_names": {}}
    (tmp_path / "logs" / "config.json").write_text('{"lr": 1}')
    (tmp_path / "logs" / "rollouts.pkl").write_bytes(b"")
    summary = convert(str(tmp_path / "logs"), str(tmp_path / "out"), render=RENDER)
    assert summary.to_json()["left_out"] == {"unfit": ["config.json"], "other_names": {".pkl": 1}}
    assert files(tmp_path / "out") == files(tmp_path / "plain")
    again = convert(str(tmp_path / "logs"), str(tmp_path / "out"), render=RENDER)
    assert again.left_out == summary.left_out


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts children as Linux lists them")
def test_an_interrupt_of_a_pool_is_one_word_whenever_it_comes(tmp_path: Path) -> None:
    """Workers that start, wait or work are interrupted with their parent, as a terminal does it."""
    import os
    import signal
    import subprocess
    import sys
    import time

    log(tmp_path / "a.jsonl", 400)
    words = [sys.executable, "-m", "tracemask_cli.main", "convert", tmp_path / "a.jsonl", "-t", TOKENIZER, "-w", 2]
    words += ["--rows-per-shard", 20, "-o", tmp_path / "out"]
    for turn, wait in enumerate((0.0, 0.0, 0.02, 0.4, 1.0, 1.6)):
        words[-1] = tmp_path / f"out{turn}"
        child = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)  # fmt: skip
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        while child.poll() is None and len(children.read_text().split()) < 2:
            time.sleep(0.01)
        time.sleep(wait)
        with contextlib.suppress(ProcessLookupError):  # done already
            os.killpg(child.pid, signal.SIGINT)
        said, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (130, "interrupted\n") or (child.returncode == 0 and "written" in said)
