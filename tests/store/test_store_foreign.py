"""Other tools' datasets open as rows under the names they use; what is odd stays, for the rules to report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracemask.core.errors import TracemaskError
from tracemask.store.manifest import verify
from tracemask.store.reader import open_dataset

ROWS: list[dict[str, Any]] = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1], "reward": 1.0, "uid": "a"},
    {"input_ids": [4, 5], "labels": [-100, 5], "attention_mask": [1, 1], "reward": None, "uid": "b"},
    {"input_ids": [], "labels": [], "attention_mask": [], "reward": 0.5, "uid": "b"},
]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write(path: Path, kind: str) -> Path:
    """ROWS in one of the kinds."""
    if kind == "jsonl":
        return jsonl(path / "rows.jsonl", ROWS)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path / "rows.parquet", row_group_size=2)
        return path / "rows.parquet"
    if kind == "folder":
        (path / "data").mkdir()
        for k in range(3):
            pq.write_table(
                pa.Table.from_pylist(ROWS[k : k + 1], pa.Table.from_pylist(ROWS).schema), path / "data" / f"{k}.parquet"
            )
        return path
    if kind == "arrow":
        table = pa.Table.from_pylist(ROWS)
        with pa.ipc.new_file(str(path / "rows.arrow"), table.schema) as writer:
            writer.write_table(table)
        return path / "rows.arrow"
    import datasets

    datasets.disable_progress_bars()
    made: Any = datasets.Dataset.from_list(ROWS)
    if kind == "splits":
        made = datasets.DatasetDict(train=made)
    made.save_to_disk(str(path / "hf"), **({"num_shards": 2} if kind == "hf" else {}))
    return path / "hf"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder", "arrow", "hf", "splits"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    found = open_dataset(write(tmp_path, kind))
    assert found.kind == "foreign"
    assert len(found) == 3
    assert found.token_columns == ("token_ids", "labels", "attention_mask")
    for row, expected in zip(found, ROWS, strict=True):
        assert row["token_ids"].tolist() == expected["input_ids"]
        assert row["labels"].tolist() == expected["labels"]
        assert row.scalars["reward"] == expected["reward"]
        assert row.scalars["group_id"] == expected["uid"]
    assert found.scalars(["reward", "group_id"]) == {"reward": [1.0, None, 0.5], "group_id": ["a", "b", "b"]}
    assert found.row(0)["token_ids"].dtype == np.int32
    assert found.metadata == {}
    assert verify(found) == []


@pytest.mark.parametrize(
    ("record", "columns"),
    [
        (  # TRL, GRPO
            {"prompt_ids": [1, 2], "completion_ids": [3, 4], "completion_mask": [1, 0],
             "sampling_per_token_logps": [-1.0, -2.0]},
            {"token_ids": [1, 2, 3, 4], "mask": [0, 0, 1, 0], "logprob": [None, None, -1.0, -2.0]},
        ),
        (  # TRL, GRPO with tools: what is real, and what of it the policy wrote
            {"prompt_ids": [1], "prompt_mask": [1], "completion_ids": [2, 3, 4, 0], "completion_mask": [1, 1, 1, 0],
             "tool_mask": [1, 0, 1, 1], "old_per_token_logps": [-1.0, -2.0, -3.0, 0.0]},
            {"token_ids": [1, 2, 3, 4, 0], "mask": [0, 1, 0, 1, 0], "old_logprob": [None, -1.0, -2.0, -3.0, 0.0]},
        ),
        (  # TRL, SFT with both masks
            {"input_ids": [1, 2, 3, 4], "completion_mask": [0, 1, 1, 1], "assistant_masks": [1, 1, 0, 1]},
            {"token_ids": [1, 2, 3, 4], "mask": [0, 1, 0, 1]},
        ),
        (  # a mask of another length is left for the rules
            {"input_ids": [1, 2], "completion_mask": [0, 1], "assistant_masks": [1]},
            {"token_ids": [1, 2], "mask": [1]},
        ),
        (  # TRL, SFT
            {"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1]},
            {"token_ids": [1, 2, 3], "mask": [0, 1, 1]},
        ),
        (  # axolotl, LLaMA-Factory
            {"input_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1], "position_ids": [0, 1]},
            {"token_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1], "position_ids": [0, 1]},
        ),
        (  # verl: responses beside whole rows
            {"input_ids": [1, 2, 3], "responses": [2, 3], "response_mask": [1, 0], "rollout_log_probs": [-1.0, 0.0],
             "old_log_probs": [-1.5, 0.0]},
            {"token_ids": [1, 2, 3], "mask": [0, 1, 0], "logprob": [None, -1.0, 0.0], "responses": [2, 3],
             "old_logprob": [None, -1.5, 0.0]},
        ),
        (  # verl, the trainer's pass
            {"prompts": [1], "responses": [2], "response_mask": [1], "old_log_probs": [-1.5], "entropys": [0.5]},
            {"token_ids": [1, 2], "mask": [0, 1], "old_logprob": [None, -1.5], "entropy": [None, 0.5]},
        ),
        (  # prime-rl, a training sample
            {"token_ids": [1, 2, 3], "mask": [False, False, True], "logprobs": [0.0, 0.0, -1.0],
             "temperatures": [1.0, 1.0, 1.0], "env_name": "e", "ref_logprobs": None, "rl_weights": [0.0, 0.0, 1.0],
             "ce_weights": [0.0, 0.5, 0.0], "ref_kl_weights": None, "advantages": [0.0, 0.0, 0.5]},
            {"token_ids": [1, 2, 3], "mask": [False, False, True], "logprob": [0.0, 0.0, -1.0],
             "temperature": [1.0, 1.0, 1.0], "weight.rl": [0.0, 0.0, 1.0], "weight.ce": [0.0, 0.5, 0.0],
             "advantage": [0.0, 0.0, 0.5]},
        ),
        (  # prime-rl, token export
            {"token_ids": [1, 2], "position_ids": [0, 1], "loss_mask": [False, True], "advantages": [0.0, 0.5],
             "inference_logprobs": [0.0, -1.0], "trainer_logprobs": [-2.0, -1.5], "entropy": [0.5, 0.25],
             "is_masked": [None, None], "env_name": "e", "step": 1},
            {"token_ids": [1, 2], "position_ids": [0, 1], "mask": [False, True], "advantage": [0.0, 0.5],
             "logprob": [0.0, -1.0], "trainer_logprob": [-2.0, -1.5], "entropy": [0.5, 0.25],
             "is_masked": [None, None]},
        ),
        (  # prime-rl, until the middle of 2026
            {"prompt_ids": [1], "prompt_mask": [False], "completion_ids": [2, 3], "completion_mask": [True, True],
             "completion_logprobs": [-1.0, -2.0]},
            {"token_ids": [1, 2, 3], "mask": [False, True, True], "logprob": [None, -1.0, -2.0]},
        ),
        (  # prime-rl, micro-batch
            {"input_ids": [1, 2], "loss_mask": [False, True], "inference_logprobs": [0.0, -1.0],
             "advantages": [0.5, 0.5]},
            {"token_ids": [1, 2], "mask": [False, True], "logprob": [0.0, -1.0], "advantage": [0.5, 0.5]},
        ),
        (  # slime: the mask covers the response only
            {"tokens": [1, 2, 3], "response_ids": [3], "loss_mask": [1], "teacher_log_probs": [-1.0]},
            {"token_ids": [1, 2, 3], "mask": [0, 0, 1], "response_ids": [3], "ref_logprob": [None, None, -1.0]},
        ),
        (  # no mask at all: the completion is what is trained
            {"prompt_ids": [1], "completion_ids": [2]},
            {"token_ids": [1, 2], "mask": [0, 1]},
        ),
    ],
)  # fmt: skip
def test_the_names_of_other_trainers_are_known(tmp_path: Path, record: dict[str, Any], columns: dict[str, Any]) -> None:
    row = open_dataset(jsonl(tmp_path / "a.jsonl", [record])).row(0)
    assert set(row.columns) == set(columns)
    for name, expected in columns.items():
        values = [None if value != value else value for value in row[name].tolist()]
        assert values == expected, name


def test_columns_of_any_name_can_be_mapped(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"x": [1, 2], "m": [0, 1], "lp": [None, -1.0], "who": "g"}])
    found = open_dataset(path, columns={"ids": "x", "mask": "m", "logprobs": "lp", "group": "who"})
    row = found.row(0)
    assert row["token_ids"].tolist() == [1, 2]
    assert row["mask"].tolist() == [0, 1]
    assert np.isnan(row["logprob"][0])
    assert row.scalars["group_id"] == "g"


def test_a_column_of_another_length_is_kept_for_the_rules(tmp_path: Path) -> None:
    row = open_dataset(jsonl(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3], "labels": [1, 2]}])).row(0)
    assert row["labels"].tolist() == [1, 2]


def test_ids_that_no_vocabulary_has_are_kept_for_the_rules(tmp_path: Path) -> None:
    row = open_dataset(jsonl(tmp_path / "a.jsonl", [{"input_ids": [1, 2**40, -5]}])).row(0)
    assert row["token_ids"].tolist() == [1, 2**40, -5]


def test_messages_and_other_fields_stay_in_the_scalars(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    found = open_dataset(jsonl(tmp_path / "a.jsonl", [{"input_ids": [1], "messages": messages, "note": "n"}]))
    assert found.row(0).scalars["messages"] == messages
    assert found.scalars(["note"]) == {"note": ["n"]}


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ('{"messages": []}\n', "TM501", "no column of token ids"),
        ('{"text": "x"}\n', "TM501", "no column of token ids"),
        ('{"input_ids": [1, "a"]}\n', "TM501", "no column of token ids"),
        ('{"input_ids": [1.5]}\n', "TM501", "whole-number"),
        ('{"input_ids": [[1]]}\n', "TM501", "no column of token ids"),
        ("[1]\n", "TM501", "not a JSON object"),
        ("{broken\n", "TM910", "invalid JSON"),
        ("", "TM904", "no rows"),
    ],
)
def test_a_file_that_holds_no_rows_of_tokens_is_an_error_with_a_remedy(
    tmp_path: Path, content: str, code: str, says: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(TracemaskError) as error:
        open_dataset(path).row(0)
    assert (error.value.code, says in error.value.what) == (code, True), error.value
    assert error.value.fix
    assert "a.jsonl" in error.value.where


def test_a_bad_row_in_the_middle_is_named_by_its_line(tmp_path: Path) -> None:
    lines = [json.dumps({"input_ids": [1]})] * 80
    lines[70] = '{"input_ids": "oops"}'
    lines[75] = "{"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    found = open_dataset(path)
    with pytest.raises(TracemaskError, match=r"a.jsonl:70: TM501"):
        found.row(70)
    with pytest.raises(TracemaskError, match=r"a.jsonl:76: TM910"):
        found.row(75)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_a_truncated_foreign_file_is_refused_at_open(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name.split(".")[1])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TracemaskError) as error:
        open_dataset(path)
    assert error.value.code == "TM508"


def test_several_splits_or_kinds_must_be_named(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    part = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=part, test=part).save_to_disk(str(tmp_path / "hf"))
    with pytest.raises(TracemaskError, match="TM900 splits: test, train"):
        open_dataset(tmp_path / "hf")
    assert len(open_dataset(tmp_path / "hf" / "train")) == 3
    (tmp_path / "mixed").mkdir()
    write(tmp_path / "mixed", "jsonl")
    write(tmp_path / "mixed", "parquet")
    with pytest.raises(TracemaskError, match="TM900 files of several kinds"):
        open_dataset(tmp_path / "mixed")


def test_a_mapped_column_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(TracemaskError) as error:
        open_dataset(path, columns={"ids": "tokens"})
    assert error.value.code == "TM902"
    assert "input_ids" in error.value.fix


def upload(path: Path, url: str) -> None:
    """Copies a file or a folder to an fsspec URL."""
    import fsspec

    fs, root = fsspec.core.url_to_fs(url)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        fs.pipe_file(f"{root}/{file.relative_to(path.parent).as_posix()}", file.read_bytes())


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder", "arrow", "hf", "splits"])
def test_every_kind_is_read_from_an_object_store_too(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).mkdir()
    path = write(tmp_path / kind, kind)
    url = f"memory://foreign-{kind}"
    upload(path, url)
    near, far = open_dataset(path), open_dataset(f"{url}/{path.name}")
    assert [shard.name for shard in near.shards] == [shard.name for shard in far.shards]
    assert far.kind == "foreign"
    for left, right in zip(near, far, strict=True):
        assert {name: values.tolist() for name, values in left.columns.items()} == {
            name: values.tolist() for name, values in right.columns.items()
        }
        assert left.scalars == right.scalars
    assert far.scalars(["uid"])["uid"] == ["a", "b", "b"]
    assert far.locate(2)[0].startswith(url)


def test_one_of_our_shards_is_read_from_an_object_store(tmp_path: Path) -> None:
    from store_rows import dataset, rows

    found = dataset(tmp_path / "shards", rows(3))
    upload(tmp_path / "shards", "memory://one-shard")
    far = open_dataset(f"memory://one-shard/shards/{found.shards[0].name}")
    assert (far.kind, len(far)) == ("tracemask", 3)
    assert far.row(1)["token_ids"].tolist() == found.row(1)["token_ids"].tolist()
    assert verify(far) == []


def test_a_manifest_of_another_tool_does_not_make_a_folder_ours(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    assert open_dataset(tmp_path).kind == "foreign"


@pytest.mark.parametrize("far", [False, True])
def test_hidden_files_are_no_part_of_a_foreign_folder(tmp_path: Path, far: bool) -> None:
    line = '{"input_ids": [1, 2], "mask": [0, 1]}\n'
    for name in ("a.jsonl", ".a.jsonl", ".ipynb_checkpoints/a.jsonl", "deep/.old/a.jsonl", "deep/._b.parquet"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(line)
    upload(tmp_path / "data", "memory://hidden")
    assert len(open_dataset("memory://hidden/data" if far else tmp_path / "data")) == 1


def test_a_missing_object_is_said() -> None:
    with pytest.raises(TracemaskError, match="TM901"):
        open_dataset("memory://nowhere/rows.parquet")


def test_forked_readers_of_json_lines_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A forked loader shares the open file: a cursor would be everybody's."""
    import multiprocessing

    found = open_dataset(jsonl(tmp_path / "rows.jsonl", [{"ids": [i] * (1 + i % 50)} for i in range(400)]))

    def read(seed: int, bad: Any) -> None:
        for i in np.random.default_rng(seed).permutation(400).tolist() * 5:
            try:
                good = found.row(i)["token_ids"].tolist() == [i] * (1 + i % 50)
            except TracemaskError:
                good = False
            if not good:
                with bad.get_lock():
                    bad.value += 1

    context = multiprocessing.get_context("fork")
    bad = context.Value("i", 0)
    readers = [context.Process(target=read, args=(seed, bad)) for seed in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0] * 4
    assert bad.value == 0


def test_a_column_map_for_shards_of_ours_is_refused_by_everything_that_takes_one(tmp_path: Path) -> None:
    from store_rows import dataset, rows

    import tracemask
    from tracemask.check.config import Settings

    shards = dataset(tmp_path / "shards", rows(3)).paths[0]
    for verb in (
        lambda: tracemask.open_dataset(shards, columns={"mask": "m"}),
        lambda: open_dataset(shards, columns={"mask": "m"}),
        lambda: tracemask.check_dataset(shards, settings=Settings(columns={"mask": "m"})),
        lambda: next(tracemask.prepare(shards, "grpo", columns={"mask": "m"})),
    ):
        with pytest.raises(TracemaskError, match=r"TM900 column names are for other tools' data"):
            verb()
    assert tracemask.open_dataset(shards, columns=["sampled"]).token_columns == ("token_ids", "sampled")


def test_columns_of_slime_s_reply_are_laid_over_the_whole_row(tmp_path: Path) -> None:
    sample = {"tokens": [1, 2, 3, 4, 5], "response_length": 2, "loss_mask": [1, 0], "rollout_log_probs": [-0.5, -1.0]}
    odd = {**sample, "response_length": 9, "loss_mask": [1]}
    first, last = open_dataset(jsonl(tmp_path / "rows.jsonl", [sample, odd]))
    assert first["mask"].tolist() == [0, 0, 0, 1, 0]
    assert np.isnan(first["logprob"][:3]).all() and first["logprob"][3:].tolist() == [-0.5, -1.0]
    assert last["mask"].tolist() == [1]  # a length that cannot be: left for the rules to report


def test_a_file_that_is_given_twice_is_refused_however_it_is_spelled(tmp_path: Path) -> None:
    from store_rows import dataset, rows

    ours = tmp_path / "shards"
    shard = ours / dataset(ours, rows(3)).shards[0].name
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    part = theirs / write(theirs, "parquet").name
    for one in (ours, theirs):
        (tmp_path / f"{one.name}-link").symlink_to(one)
    pairs = [(ours, ours), (ours, f"{ours}/"), (ours, shard), (ours, f"{ours}-link"), (f"file://{ours}", ours),
             (theirs, theirs), (part, theirs), (theirs, f"{theirs}-link")]  # fmt: skip
    upload(ours, "memory://twice")
    for pair in (*pairs, ("memory://twice/shards", "memory://twice/shards/")):
        with pytest.raises(TracemaskError, match=r"TM900 this file is given twice\. Fix: name it once"):
            open_dataset(list(map(str, pair)))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / part.name).write_bytes(part.read_bytes())
    assert len(open_dataset([str(part), str(copy)])) == 2 * len(open_dataset(str(part)))


def test_an_empty_part_adds_no_rows_and_empty_files_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    for path in (tmp_path, tmp_path / "a.jsonl"):
        with pytest.raises(TracemaskError, match="TM904 there are no rows"):
            open_dataset(str(path))
    (tmp_path / "b.jsonl").write_text('{"input_ids": [1, 2], "mask": [0, 1]}\n')
    (tmp_path / "c.jsonl").write_text("")
    assert len(open_dataset(str(tmp_path))) == 1
