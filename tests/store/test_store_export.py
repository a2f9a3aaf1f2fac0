"""What goes out to another trainer comes back as the same ids, loss mask, log-probs and rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_rows import dataset, files, full_row, rows, same, sample, trace

from tracemask.core.errors import TracemaskError
from tracemask.store.derive import add_columns
from tracemask.store.export import export
from tracemask.store.export_forms import FORMS
from tracemask.store.folder import open_folder
from tracemask.store.reader import Dataset, open_dataset
from tracemask.store.row import Row
from tracemask.store.rows import of_sample


@pytest.fixture
def source(tmp_path: Path) -> Dataset:
    """A few rewarded rows with a log-prob on every sampled token."""
    return dataset(tmp_path / "source", rows(7, groups=2), rows_per_shard=3)


def test_the_forms_are_those_that_the_command_promises() -> None:
    assert set(FORMS) == {"parquet", "hf", "trl", "verl", "prime-rl", "jsonl"}


@pytest.mark.parametrize("to", ["parquet", "hf", "jsonl"])
def test_our_own_columns_all_come_back(tmp_path: Path, to: str) -> None:
    made = [*rows(5, groups=2), full_row()]
    found = dataset(tmp_path / "source", made)
    done = export(found, str(tmp_path / to), to=to)
    assert (done.rows, done.tokens, done.lost) == (6, sum(map(len, made)), ())
    back = open_dataset(tmp_path / to)
    assert back.kind == "foreign"
    for row, expected in zip(back, found, strict=True):
        same(row, expected, dtypes=False)


def trained(row: Row) -> np.ndarray:
    if (mask := row.get("mask")) is not None:
        return mask.astype(bool)
    return row["labels"] != -100


@pytest.mark.parametrize("to", ["trl", "verl", "prime-rl"])
def test_ids_and_loss_mask_come_back_from_each_trainers_form(tmp_path: Path, source: Dataset, to: str) -> None:
    done = export(source, str(tmp_path / to), to=to)
    assert done.mask == "sampled"
    assert done.trained == sum(int(row["sampled"].sum()) for row in source)
    back = open_dataset(tmp_path / to)
    for row, expected in zip(back, source, strict=True):
        assert row["token_ids"].tolist() == expected["token_ids"].tolist()
        assert trained(row).tolist() == expected["sampled"].tolist()
        if to == "trl":
            assert (row["labels"] != -100).tolist() == expected["sampled"].tolist()
        else:
            at = expected["sampled"]
            np.testing.assert_array_equal(row["logprob"][at], expected["logprob"][at])
        if to == "verl":
            assert row.scalars["reward"] == expected.scalars["reward"]
            assert row.scalars["group_id"] == expected.scalars["group_id"]


def test_trl_files_open_with_datasets_under_the_names_that_trl_reads(tmp_path: Path, source: Dataset) -> None:
    import datasets

    datasets.disable_progress_bars()
    export(source, str(tmp_path / "trl"), to="trl")
    found = datasets.Dataset.from_parquet(
        str(tmp_path / "trl" / "part-00000.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert set(found.column_names) == {"input_ids", "labels", "completion_mask", "attention_mask"}
    assert found[1]["input_ids"] == source.row(1)["token_ids"].tolist()


def test_a_hugging_face_folder_loads_from_disk(tmp_path: Path, source: Dataset) -> None:
    import datasets

    export(source, str(tmp_path / "hf"), to="hf")
    found = datasets.load_from_disk(str(tmp_path / "hf"))
    assert found.num_rows == 7
    assert found[2]["token_ids"] == source.row(2)["token_ids"].tolist()
    assert found[2]["reward"] == source.row(2).scalars["reward"]


def test_a_rollout_that_is_not_trainable_has_nothing_in_the_loss(tmp_path: Path) -> None:
    found = dataset(tmp_path / "source", [of_sample(sample("a", 9), trace("a", trainable=False))])
    assert export(found, str(tmp_path / "out"), to="trl").trained == 0
    assert set(open_dataset(tmp_path / "out").row(0)["labels"].tolist()) == {-100}


def test_weights_of_a_component_replace_the_mask(tmp_path: Path, source: Dataset) -> None:
    def weights(row: Row) -> dict[str, np.ndarray]:
        return {"weight.rl": np.where(np.arange(len(row)) % 2, 0.5, 0).astype(np.float32)}

    add_columns(source, str(tmp_path / "weighted"), weights, config={"what": "test"})
    weighted = open_dataset(tmp_path / "weighted")
    done = export(weighted, str(tmp_path / "out"), to="trl", component="rl")
    assert done.mask == "weight.rl"
    for row in open_dataset(tmp_path / "out"):
        assert trained(row).tolist() == (np.arange(len(row)) % 2 == 1).tolist()
    with pytest.raises(TracemaskError, match=r"no column weight\.rl"):
        export(source, str(tmp_path / "none"), to="trl", component="rl")


@pytest.mark.parametrize("to", ["parquet", "jsonl"])
def test_forms_that_keep_all_columns_count_what_a_component_trains(tmp_path: Path, source: Dataset, to: str) -> None:
    add_columns(source, str(tmp_path / "weighted"), lambda row: {"weight.rl": np.ones(len(row), np.float32)}, config={})
    done = export(open_dataset(tmp_path / "weighted"), str(tmp_path / "out"), to=to, component="rl")
    assert (done.trained, done.mask) == (done.tokens, "weight.rl")
    with pytest.raises(TracemaskError, match=r"no column weight\.rl"):
        export(source, str(tmp_path / "none"), to=to, component="rl")


@pytest.mark.parametrize("to", ["verl", "prime-rl"])
def test_a_missing_log_prob_is_never_exported_as_zero(tmp_path: Path, to: str) -> None:
    made = sample("a", 9)
    made.logprob[np.flatnonzero(made.sampled)[1]] = np.nan
    found = dataset(tmp_path / "source", [of_sample(made, trace("a"))])
    with pytest.raises(TracemaskError, match="TM603 token"):
        export(found, str(tmp_path / "out"), to=to)
    assert list((tmp_path / "out").iterdir()) == []
    export(found, str(tmp_path / "trl"), to="trl")


def test_some_tokens_with_an_advantage_and_some_without_are_refused(tmp_path: Path, source: Dataset) -> None:
    def some(row: Row) -> dict[str, np.ndarray]:
        return {"advantage": np.where(np.cumsum(row["sampled"]) > 1, 0.5, np.nan).astype(np.float32)}

    add_columns(source, str(tmp_path / "some"), some, config={})
    for to in ("verl", "prime-rl"):
        with pytest.raises(TracemaskError, match="TM501 token .* without an advantage"):
            export(open_dataset(tmp_path / "some"), str(tmp_path / to), to=to)


# The fields of prime-rl's TrainingSample that need no tensor of images or experts, in its order.
TRAINING_SAMPLE = [
    "token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "rl_weights", "ce_weights",
    "ref_kl_weights", "advantages", "trace_id", "branch_index",
]  # fmt: skip


def training_samples(found: Dataset, out: Path, **options: Any) -> list[dict[str, Any]]:
    export(found, str(out), to="prime-rl", **options)
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    for line in lines:
        assert list(line) == TRAINING_SAMPLE
        per_token = [value for value in line.values() if isinstance(value, list)]
        assert {len(value) for value in per_token} == {len(line["token_ids"])}
        assert not any(item is None for value in per_token for item in value)
    return lines


def weigh(tmp_path: Path, source: Dataset, **columns: Any) -> Dataset:
    """The dataset with columns; a function makes one from a row."""
    out = str(tmp_path / f"weighed-{len(list(tmp_path.iterdir()))}")
    named = {name.replace("__", "."): make for name, make in columns.items()}
    add_columns(
        source, out, lambda row: {name: make(row).astype(np.float32) for name, make in named.items()}, config={}
    )
    return open_dataset(out)


def test_prime_rl_gets_its_training_samples(tmp_path: Path, source: Dataset) -> None:
    one = weigh(tmp_path, source, advantage=lambda row: np.where(row["sampled"], np.arange(len(row)), np.nan))
    for line, row in zip(training_samples(one, tmp_path / "out"), one, strict=True):
        at = row["sampled"]
        assert line["mask"] == at.tolist()
        assert line["advantages"] == np.where(at, np.arange(len(row)), 0).tolist()
        assert line["logprobs"] == np.where(at, row["logprob"], 0).tolist()
        assert line["temperatures"] == [1.0] * len(row)
        assert [line[name] for name in ("rl_weights", "ce_weights", "ref_kl_weights", "ref_logprobs")] == [None] * 4
        assert (line["trace_id"], line["branch_index"]) == (row.scalars["trace_id"], row.scalars["branch"])


def test_prime_rl_refuses_credit_that_nobody_gave_so_none_is_written(tmp_path: Path, source: Dataset) -> None:
    assert {line["advantages"] for line in training_samples(source, tmp_path / "out")} == {None}


def test_weights_of_every_component_become_prime_rl_s_streams(tmp_path: Path, source: Dataset) -> None:
    weighed = weigh(
        tmp_path,
        source,
        advantage=lambda row: np.where(row["sampled"], 1, np.nan),
        weight__rl=lambda row: np.where(row["sampled"], 0.5, 0),
        weight__ce=lambda row: np.where(row["sampled"], 0, 0.1),
    )
    lines = training_samples(weighed, tmp_path / "all")
    for line, row in zip(lines, weighed, strict=True):
        assert line["mask"] == row["sampled"].tolist()
        assert line["rl_weights"] == row["weight.rl"].tolist()
        assert line["ce_weights"] == pytest.approx(row["weight.ce"].tolist())
    for row, expected in zip(open_dataset(tmp_path / "all"), weighed, strict=True):
        np.testing.assert_array_equal(row["weight.ce"], expected["weight.ce"])
    done = export(weighed, str(tmp_path / "kept"), to="prime-rl")
    assert not {"weight.rl", "weight.ce", "advantage"} & set(done.lost)
    assert (done.trained, done.mask) == (done.tokens, "weight.rl, weight.ce")
    done = export(weighed, str(tmp_path / "verl"), to="verl", component="rl")
    assert set(done.lost) & {"weight.rl", "weight.ce"} == {"weight.ce"}
    assert (done.trained, done.mask) == (sum(int(row["sampled"].sum()) for row in weighed), "weight.rl")


def test_a_component_without_policy_gradient_switches_prime_rl_s_off(tmp_path: Path, source: Dataset) -> None:
    """Absent rl weights would mean 1 on the mask, and prime-rl would ask for an advantage."""
    weighed = weigh(tmp_path, source, weight__ce=lambda row: np.where(row["sampled"], 0, 0.1))
    for options in ({}, {"component": "ce"}):
        for line, row in zip(training_samples(weighed, tmp_path / str(options), **options), weighed, strict=True):
            assert line["rl_weights"] == [0.0] * len(row)
            assert np.count_nonzero(line["ce_weights"]) == int((~row["sampled"]).sum())
            assert line["advantages"] is None


def test_prime_rl_s_reference_log_probs_stand_where_they_are_distilled(tmp_path: Path, source: Dataset) -> None:
    distilled = {"weight__ref_kl": lambda row: row["sampled"]}
    scored = weigh(tmp_path, source, **distilled, ref_logprob=lambda row: np.where(row["sampled"], -2, np.nan))
    for line, row in zip(training_samples(scored, tmp_path / "out"), scored, strict=True):
        if row["sampled"].any():
            assert line["ref_logprobs"] == np.where(row["sampled"], -2.0, 0).tolist()
    with pytest.raises(TracemaskError, match="TM603 .* reference log-prob"):
        export(weigh(tmp_path, source, **distilled), str(tmp_path / "none"), to="prime-rl")


def test_verl_s_batch_has_its_types_its_reward_at_the_last_token_and_its_weights(
    tmp_path: Path, source: Dataset
) -> None:
    import pyarrow.parquet as pq

    weighed = weigh(
        tmp_path,
        source,
        advantage=lambda row: np.where(row["sampled"], 2, np.nan),
        weight__rl=lambda row: np.where(row["sampled"], 0.5, 0),
    )
    export(weighed, str(tmp_path / "out"), to="verl", component="rl")
    table = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    ids = ["prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask"]
    assert {str(table.schema.field(name).type.value_type) for name in ids} == {"int64"}
    for record, row in zip(table.to_pylist(), weighed, strict=True):
        count, mask = len(record["responses"]), np.array(record["response_mask"])
        assert record["prompts"] + record["responses"] == record["input_ids"] == row["token_ids"].tolist()
        assert record["position_ids"] == list(range(len(row)))
        assert record["rm_scores"] == ([0.0] * (count - 1) + [row.scalars["reward"]] if count else [])
        assert record["rollout_is_weights"] == (mask * 0.5).tolist()
        assert record["advantages"] == (mask * 2.0).tolist()


@pytest.mark.peers
def test_trl_s_own_collator_makes_our_labels_its_labels(tmp_path: Path, source: Dataset) -> None:
    pytest.importorskip("trl")
    import datasets
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    datasets.disable_progress_bars()
    export(source, str(tmp_path / "trl"), to="trl")
    found = datasets.Dataset.from_parquet(
        str(tmp_path / "trl" / "part-00000.parquet"), cache_dir=str(tmp_path / "cache")
    )
    batch = DataCollatorForLanguageModeling(pad_token_id=0)([found[i] for i in range(len(source))])
    for k, row in enumerate(source):
        wanted = np.where(row["sampled"], row["token_ids"], -100)
        assert batch["labels"][k][: len(row)].tolist() == wanted.tolist()
        assert set(batch["labels"][k][len(row) :].tolist()) <= {-100}
        assert int(batch["attention_mask"][k].sum()) == len(row)


def test_a_foreign_dataset_can_be_exported_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}) + "\n")
    export(open_dataset(path), str(tmp_path / "trl"), to="trl")
    row = open_dataset(tmp_path / "trl").row(0)
    assert row["token_ids"].tolist() == [1, 2, 3]
    assert trained(row).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("options", "code"),
    [({"to": "tlr"}, "TM902"), ({"out": "nothing://x", "to": "trl"}, "TM901"), ({"to": "trl"}, "TM933")],
)
def test_a_bad_request_is_refused(tmp_path: Path, source: Dataset, options: dict[str, Any], code: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note").write_text("mine")
    with pytest.raises(TracemaskError) as error:
        export(source, **{"out": str(tmp_path / "out"), **options})
    assert error.value.code == code
    assert (tmp_path / "out" / "note").read_text() == "mine"


@pytest.mark.parametrize("to", sorted(FORMS))
def test_an_export_into_a_bucket_has_the_bytes_of_a_local_one(tmp_path: Path, source: Dataset, to: str) -> None:
    done = export(source, f"memory://export-{to}", to=to)
    export(source, str(tmp_path / to), to=to)
    folder = open_folder(f"memory://export-{to}")
    assert set(folder.names()) == set(done.files)
    assert {name: folder.read(name) for name in folder.names()} == files(tmp_path / to)
    assert len(open_dataset(f"memory://export-{to}")) == 7


def test_a_forced_export_replaces_an_earlier_one_of_another_form(tmp_path: Path, source: Dataset) -> None:
    """Both in one folder would be read as one dataset, or the old one alone."""
    out = tmp_path / "out"
    for to in ("hf", "trl", "prime-rl", "parquet", "hf", "jsonl", "verl"):
        (out / "notes.md").parent.mkdir(exist_ok=True)
        (out / "notes.md").write_text("mine")
        done = export(source, str(out), to=to, force=True)
        assert {path.name for path in out.iterdir()} == {"notes.md", *done.files}
        assert [row["token_ids"].tolist() for row in open_dataset(out)] == [row["token_ids"].tolist() for row in source]


@pytest.mark.parametrize("to", ["trl", "verl", "prime-rl", "jsonl"])
@pytest.mark.parametrize("was", ["hf", "trl", "jsonl"])
def test_a_forced_export_that_fails_leaves_the_earlier_one(tmp_path: Path, source: Dataset, was: str, to: str) -> None:
    export(source, str(tmp_path / "out"), to=was)
    before = files(tmp_path / "out")

    class Broken(Dataset):
        def __iter__(self) -> Any:
            yield source.row(0)
            raise OSError("the disk is gone")

    broken = Broken(
        source.sources, kind=source.kind, paths=source.paths, names=["x"] * len(source.sources), identity=""
    )
    with pytest.raises((OSError, TracemaskError)):
        export(broken, str(tmp_path / "out"), to=to, force=True)
    assert files(tmp_path / "out") == before


def test_a_forced_export_leaves_another_tools_hugging_face_folder_alone(tmp_path: Path, source: Dataset) -> None:
    (tmp_path / "state.json").write_text('{"_fingerprint": "theirs"}')
    export(source, str(tmp_path), to="trl", force=True)
    assert (tmp_path / "state.json").read_text() == '{"_fingerprint": "theirs"}'


@pytest.mark.parametrize("path", ["", "part-00000.parquet"])
def test_an_export_is_never_written_over_what_it_reads(tmp_path: Path, source: Dataset, path: str) -> None:
    export(source, str(tmp_path / "a"), to="parquet")
    before = files(tmp_path / "a")
    with pytest.raises(TracemaskError, match="TM900 reading and writing the same folder"):
        export(open_dataset(tmp_path / "a" / path), f"{tmp_path}/a/", to="parquet", force=True)
    assert files(tmp_path / "a") == before
