"""What is written is read back, bit for bit, in both profiles; what does not fit is refused."""

from __future__ import annotations

import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from store_rows import dataset, full_row, rows, same, sample, trace

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.store.manifest import verify
from tracemask.store.reader import open_dataset
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.store.schema import METADATA_KEY, SCALARS, TOKEN_COLUMNS, Profile, cast, make_metadata
from tracemask.store.shard import SHARD_NAMES, OpenShard
from tracemask.store.writer import ShardWriter

PROFILES = list(Profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_column_and_scalar_comes_back_as_it_was(tmp_path: Path, profile: Profile) -> None:
    made = [*rows(9, groups=3), full_row()]
    for found, given_row in zip(dataset(tmp_path, made, profile=profile), made, strict=True):
        same(found, given_row)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_row_that_lacks_an_optional_column_does_not_get_zeros(tmp_path: Path, profile: Profile) -> None:
    found = dataset(tmp_path, [*rows(2), full_row()], profile=profile)
    assert "temperature" in found.token_columns
    assert found.row(0).get("temperature") is None
    assert found.row(0).get("policy_version") is None
    assert found.row(2).get("temperature") is not None


def test_missing_reward_and_advantage_stay_none(tmp_path: Path) -> None:
    row = dataset(tmp_path, rows(1)).row(0)
    assert row.scalars["reward"] is None
    assert row.scalars["advantage"] is None
    assert row.scalars["rewards"] is None


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    per_shard=st.integers(1, 5),
    profile=st.sampled_from(PROFILES),
)
def test_any_lengths_and_shard_sizes_round_trip(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], per_shard: int, profile: Profile
) -> None:
    made = [of_sample(sample(f"t{i}", n, seed=i), trace(f"t{i}"), index=i) for i, n in enumerate(lengths)]
    found = dataset(tmp_path_factory.mktemp("ds"), made, rows_per_shard=per_shard, profile=profile)
    assert len(found) == len(lengths)
    for i in range(len(made)):
        same(found.row(i), made[i])


@pytest.mark.parametrize("profile", PROFILES)
def test_several_record_batches_read_like_one(
    tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracemask.store.writer.BATCH_TOKENS", 20)
    made = rows(12)
    found = dataset(tmp_path, made, rows_per_shard=12, profile=profile)
    for i in (11, 0, 5, 6, 3):
        same(found.row(i), made[i])
    assert found.scalars(["n_tokens"])["n_tokens"] == [len(row) for row in made]


def test_rows_of_one_trace_are_never_split_over_shards(tmp_path: Path) -> None:
    made = [of_sample(sample(f"t{i // 3}", 5, branch=i % 3), trace(f"t{i // 3}")) for i in range(9)]
    found = dataset(tmp_path, made, rows_per_shard=2)
    assert [shard.rows for shard in found.shards] == [3, 3, 3]


def test_codes_in_the_metadata_are_those_of_the_vocabulary(tmp_path: Path) -> None:
    enums = dataset(tmp_path, rows(1)).metadata["enums"]
    assert enums["author"] == {member.label: int(member) for member in Author}
    for name, code in (("role", Role), ("part", Part), ("origin", Origin)):
        assert enums[name] == {member.label: int(member) for member in code}


def test_all_per_token_columns_are_large_lists(tmp_path: Path) -> None:
    dataset(tmp_path, [full_row()])
    shard = next(tmp_path.glob("*.arrow"))
    schema = pa.ipc.open_file(str(shard)).schema
    for name in (*TOKEN_COLUMNS, "temperature", "routed_experts", "policy_version"):
        assert pa.types.is_large_list(schema.field(name).type), name
    assert METADATA_KEY in schema.metadata
    assert not set(SCALARS) & set(TOKEN_COLUMNS)


def test_an_advantage_of_the_rollout_and_one_of_each_token_can_stand_side_by_side(tmp_path: Path) -> None:
    row = full_row()
    row.columns["advantage"] = np.linspace(-1, 1, len(row)).astype(np.float32)
    found = dataset(tmp_path, [row]).row(0)
    assert found.scalars["advantage"] == -1.5
    np.testing.assert_array_equal(found["advantage"], row["advantage"])


def test_policy_versions_that_are_names_come_back_as_names(tmp_path: Path) -> None:
    row = full_row(6)
    row.columns["policy_version"] = np.array(["", "", "step-7", "step-7", "007", "007"])
    found = dataset(tmp_path, [row]).row(0)
    assert found["policy_version"].tolist() == ["", "", "step-7", "step-7", "007", "007"]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("token_ids", np.array([2**31])),
        ("token_ids", np.array([1.0])),
        ("author", np.array([256])),
        ("author", np.array([-1])),
        ("sampled", np.array([2])),
        ("logprob", np.array([-1e39])),
        ("message", np.array([[1]])),
        ("other", np.array(["text"])),
    ],
)
def test_a_cast_that_would_change_a_value_is_refused(column: str, values: np.ndarray) -> None:
    with pytest.raises(StoreError) as error:
        cast(column, values, where="row 3")
    assert error.value.code == "TM501"
    assert column in error.value.what


def test_columns_of_unequal_length_are_refused_with_the_row_named(tmp_path: Path) -> None:
    row = rows(1)[0]
    row.columns["logprob"] = row["logprob"][:-1]
    with (
        ShardWriter(str(tmp_path), "s.arrow", metadata=make_metadata()) as writer,
        pytest.raises(StoreError, match=r"t0000/0: TM101 column 'logprob' has \d+ entries"),
    ):
        writer.add(row)
    assert list(tmp_path.iterdir()) == []


def test_a_row_without_a_fixed_column_is_refused(tmp_path: Path) -> None:
    row = Row(0, {"token_ids": np.zeros(2, dtype=np.int32)}, {"id": "x"})
    with ShardWriter(str(tmp_path), "s.arrow", metadata=make_metadata()) as writer, pytest.raises(StoreError) as error:
        writer.add(row)
    assert error.value.code == "TM501"


def test_numpy_views_share_the_files_memory_and_are_read_only(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(3))
    ids = found.row(1)["token_ids"]
    assert np.shares_memory(ids, found.row(1)["token_ids"])
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_torch_views_are_zero_copy_and_writing_one_never_reaches_the_file(tmp_path: Path) -> None:
    import torch

    from tracemask.store.torch_view import tensors

    found = dataset(tmp_path, rows(3))
    before = [path.read_bytes() for path in sorted(tmp_path.glob("*.arrow"))]
    first = tensors(found, 1)
    assert first["token_ids"].dtype == torch.int32
    assert first["token_ids"].data_ptr() == found.row(1)["token_ids"].ctypes.data
    first["token_ids"].fill_(7)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*.arrow"))] == before
    assert open_dataset(tmp_path).row(1)["token_ids"].tolist() == rows(3)[1]["token_ids"].tolist()


def test_scalars_are_read_without_touching_token_columns(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(6, groups=2))
    scalars = found.scalars(["id", "reward", "group_id", "no_such"])
    assert set(scalars) == {"id", "reward", "group_id"}
    assert scalars["id"] == [f"t{i:04d}/0" for i in range(6)]
    assert scalars["reward"] == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]


def test_only_the_columns_asked_for_are_in_a_row(tmp_path: Path) -> None:
    dataset(tmp_path, rows(2), profile="compact")
    assert set(open_dataset(tmp_path, columns=["logprob"]).row(0).columns) == {"token_ids", "logprob"}


def test_a_dataset_travels_to_another_process_as_its_path(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(5))
    again = pickle.loads(pickle.dumps(found))  # noqa: S301
    assert len(pickle.dumps(found)) < 1000
    same(again.row(3), found.row(3))
    same(pickle.loads(pickle.dumps(found.row(3))), found.row(3))  # noqa: S301


def test_a_dataset_that_was_replaced_is_not_opened_by_a_worker_that_expects_the_old_one(tmp_path: Path) -> None:
    stored = pickle.dumps(dataset(tmp_path, rows(5)))
    from tracemask.store.commit import write_dataset

    write_dataset(str(tmp_path), rows(4), metadata=make_metadata(), force=True)
    with pytest.raises(StoreError) as error:
        pickle.loads(stored)  # noqa: S301
    assert error.value.code == "TM935"


def test_rows_are_addressed_from_both_ends_and_located_in_their_file(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(6))
    assert found.row(-1).index == 5
    assert found.locate(5) == (f"{tmp_path}/{found.shards[1].name}", 1)
    assert [row.index for row in found] == list(range(6))
    for outside in (6, -7):
        with pytest.raises(IndexError):
            found.row(outside)


def test_two_datasets_of_one_tokenizer_open_as_one(tmp_path: Path) -> None:
    dataset(tmp_path / "a", rows(3))
    dataset(tmp_path / "b", rows(2, seed=50))
    both = open_dataset([tmp_path / "a", tmp_path / "b"])
    assert len(both) == 5
    same(both.row(3), Row(3, rows(2, seed=50)[0].columns, rows(2, seed=50)[0].scalars))


@pytest.mark.parametrize("what", ["tokenizer", "template"])
def test_shards_of_different_renderers_are_refused_with_both_named(tmp_path: Path, what: str) -> None:
    dataset(tmp_path / "a", rows(2))
    dataset(tmp_path / "b", rows(2), **{f"{what}_sha256": "b" * 64})
    with pytest.raises(StoreError) as error:
        open_dataset([tmp_path / "a", tmp_path / "b"])
    assert error.value.code == "TM506"
    assert f"different {what}s" in error.value.what
    assert "b" * 12 in error.value.what
    assert "a/shard" in error.value.where
    assert "b/shard" in error.value.where


def test_one_shard_of_a_dataset_opens_alone(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(6))
    single = open_dataset(tmp_path / found.shards[1].name)
    assert single.kind == "tracemask"
    assert len(single) == found.shards[1].rows
    np.testing.assert_array_equal(single.row(0)["token_ids"], found.row(4)["token_ids"])


def test_another_major_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracemask.store.schema.FORMAT_VERSION", "3.0")
    dataset_path = tmp_path / "new"
    with ShardWriter(str(tmp_path), "s.arrow", metadata=make_metadata()) as writer:
        writer.add(rows(1)[0])
        writer.commit()
    monkeypatch.undo()
    with pytest.raises(TracemaskError) as error:
        open_dataset(tmp_path / "s.arrow")
    assert not dataset_path.exists()
    assert error.value.code == "TM501"


@pytest.mark.parametrize(
    ("path", "code"), [("nothing", "TM901"), ("empty", "TM931"), ("file.txt", "TM931"), ("rows", "TM904")]
)
def test_what_is_no_dataset_gives_a_coded_error(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    if path == "rows":
        dataset_of_none = tmp_path / "rows"
        from tracemask.store.commit import write_dataset

        write_dataset(str(dataset_of_none), [], metadata=make_metadata())
    with pytest.raises(TracemaskError) as error:
        open_dataset(tmp_path / path)
    assert error.value.code == code
    assert error.value.fix


def test_an_object_store_without_a_dataset_is_said() -> None:
    with pytest.raises(TracemaskError) as error:
        open_dataset("memory://nothing-here")
    assert error.value.code == "TM901"


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_writing_into_tensors_changes_neither_the_file_nor_the_next_reader(tmp_path: Path, profile: str) -> None:
    from tracemask.store.torch_view import tensors

    path = tmp_path / "shards"
    found = dataset(path, rows(3), profile=profile)
    expected = [row["token_ids"].tolist() for row in found]
    for i in range(3):
        for _ in range(2):
            found.row(i)
            taken = tensors(found, i)
            if profile == "compact":
                assert taken["token_ids"].tolist() == expected[i]
            taken["token_ids"].zero_()
    assert [row["token_ids"].tolist() for row in open_dataset(path)] == expected
    assert verify(str(path)) == []


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_columns_of_a_row_are_read_only_unless_asked(tmp_path: Path, profile: str) -> None:
    found = dataset(tmp_path, [*rows(2), full_row()], profile=profile)
    for i in range(3):
        for name, values in found.row(i).columns.items():
            if name not in ("sampled", "policy_version"):  # unpacked into memory of their own
                assert not values.flags.writeable, name
        assert all(values.flags.writeable for values in found.row(i, writable=True).columns.values())


def test_short_rows_share_a_compressed_batch_and_long_ones_stand_alone(tmp_path: Path) -> None:
    made = [*rows(40, length=500), *rows(2, length=9000), *rows(3, length=500), full_row()]
    found = dataset(tmp_path, made, rows_per_shard=100, profile="compact")
    reader = pa.ipc.open_file(f"{tmp_path}/{found.shards[0].name}")
    batches = [reader.get_batch(k) for k in range(reader.num_record_batches)]
    held = [sum(len(ids) for ids in batch.column("token_ids")) for batch in batches]
    assert all(tokens <= 8192 or batch.num_rows == 1 for tokens, batch in zip(held, batches, strict=True))
    assert max(batch.num_rows for batch in batches) > 10
    order = np.random.default_rng(0).permutation(len(made)).tolist()
    for i in [*range(len(made)), *order]:
        same(found.row(i), made[i])
        same(found.row(i, writable=True), made[i])


def test_short_rows_take_little_more_than_their_tokens(tmp_path: Path) -> None:
    """A batch costs some kilobytes whatever it holds: 400 rows of 50 tokens must not pay that 400 times."""
    dataset(tmp_path, rows(400, length=50), rows_per_shard=400, profile="compact")
    assert sum(path.stat().st_size for path in tmp_path.glob("*.arrow")) < 400 * 50 * 12


def test_a_compact_shard_of_format_1_has_one_row_a_batch_and_is_read(tmp_path: Path) -> None:
    made = [*rows(5), full_row()]
    found = dataset(tmp_path / "new", made, rows_per_shard=6, profile="compact")
    path = tmp_path / "old.arrow"
    table = pa.ipc.open_file(f"{tmp_path}/new/{found.shards[0].name}").read_all()
    facts = table.schema.metadata[METADATA_KEY].replace(b'"format_version": "2.0"', b'"format_version": "1.0"')
    schema = table.schema.with_metadata({METADATA_KEY: facts})
    with pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for i in range(6):
            writer.write_table(table.slice(i, 1).cast(schema), max_chunksize=1)
    for row, expected in zip(open_dataset(path), made, strict=True):
        same(row, expected)


def test_a_column_that_no_shard_has_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    dataset(path, [*rows(3), full_row()], rows_per_shard=1)
    assert open_dataset(path, columns=["temperature", "policy_version"]).token_columns == (
        "token_ids", "temperature", "policy_version"
    )  # fmt: skip
    with pytest.raises(TracemaskError, match="TM902 no per-token column 'log_prob'") as error:
        open_dataset(path, columns=["logprob", "log_prob"])
    assert "logprob, routed_experts, temperature, policy_version" in error.value.fix


@pytest.mark.parametrize("profile", ["fast", "compact"])
@pytest.mark.parametrize("lengths", [[0], [1], [0, 0, 0], [0, 3, 0], [600_000, 0, 1]])
def test_rows_of_any_length_come_back(tmp_path: Path, profile: str, lengths: list[int]) -> None:
    made = [of_sample(sample(f"t{i}", n), trace(f"t{i}"), index=i) for i, n in enumerate(lengths)]
    found = dataset(tmp_path, made, rows_per_shard=10, profile=profile)
    for row, expected in zip(found, made, strict=True):
        same(row, expected)
    assert found.scalars(["n_tokens"])["n_tokens"] == lengths


def test_a_damaged_batch_is_said_when_it_is_read(tmp_path: Path) -> None:
    """A length that was changed asks for more memory than there is."""
    found = dataset(tmp_path, rows(1, length=500), profile="compact")
    path = tmp_path / found.shards[0].name
    whole = path.read_bytes()
    said = set()
    for length in ((500 * 4).to_bytes(8, "little"), (16).to_bytes(8, "little")):
        at = whole.find(length)
        while at >= 0:
            path.write_bytes(whole[: at + 6] + b"\x7f" + whole[at + 7 :])
            try:
                dict(open_dataset(tmp_path).row(0).scalars)
            except TracemaskError as error:
                said.add(error.code)
            at = whole.find(length, at + 1)
    assert said == {"TM508"}


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_threads_may_read_one_dataset(tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracemask.store.writer.COMPACT_TOKENS", 50)
    made = rows(40, length=30)
    found = dataset(tmp_path, made, rows_per_shard=40, profile=profile)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            order = np.random.default_rng(0).integers(0, 40, 4000).tolist()
            read = pool.map(lambda i: (i, found.row(i, writable=i % 3 == 0), found.row(i).scalars["id"]), order)
            for i, row, name in read:
                np.testing.assert_array_equal(row["token_ids"], made[i]["token_ids"])
                assert name == made[i].scalars["id"]
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(("n", "length"), [(1, 900), (40, 3), (9, 5000), (300, 0)])
def test_a_compact_scalar_is_what_arrow_reads(tmp_path: Path, n: int, length: int) -> None:
    """Numbers, texts and booleans are unpacked without Arrow's reader: of rows alone in their batch and of many."""
    rng = random.Random(n)
    choices: dict[str, list[Any]] = {
        **{key: [None, "", "é😀", "x" * 300] for key in ("task_id", "group_id", "stop")},
        **{key: [None, 0, -1, 2**31 - 1] for key in ("attempt", "fork_row", "fork_position")},
        **{key: [None, 1.5, -0.0, float("inf")] for key in ("reward", "advantage")},
        **{key: [None, True, False] for key in ("truncated", "approximate", "trainable")},
        "language": [None, "de"],
    }
    made = []
    for row in rows(n, length=length):
        told = {name: rng.choice(values) for name, values in choices.items()}
        made.append(Row(row.index, row.columns, {**dict(row.scalars), **told}))
    facts = make_metadata(profile="compact")
    with ShardWriter(str(tmp_path), "x.arrow", metadata=facts, scalars={"language": pa.string()}) as writer:
        for row in made:
            writer.add(row)
        writer.commit()
    shard = OpenShard(str(tmp_path / "x.arrow"), where="x")
    whole = pa.ipc.open_file(str(tmp_path / "x.arrow")).read_all()
    for name in choices:
        stored = whole.column(SHARD_NAMES.get(name, name)).to_pylist()
        found = [shard.row(i, index=i).scalars[name] for i in range(n)]
        assert found == stored == [row.scalars[name] for row in made], name
