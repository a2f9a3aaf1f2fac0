"""A bucket works where a folder does, against a server that speaks S3."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_rows import ROLLOUTS, TOKENIZER, files

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.folder import open_folder, put
from tracemask.store.lock import LOCK, locked
from tracemask.store.manifest import verify
from tracemask.store.reader import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore")
RENDER = RenderConfig(str(TOKENIZER))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An empty bucket of a moto server on this machine, named to fsspec by environment variables."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    before = dict(os.environ)
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": url,
                   "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket="rollouts")
    yield "s3://rollouts"
    os.environ.clear()
    os.environ |= before
    server.stop()


def test_a_dataset_in_a_bucket_has_the_bytes_of_a_local_one(bucket: str, tmp_path: Path) -> None:
    convert(str(ROLLOUTS), f"{bucket}/run", render=RENDER, rows_per_shard=20, workers=2)
    convert(str(ROLLOUTS), str(tmp_path / "out"), render=RENDER, rows_per_shard=20)
    folder = open_folder(f"{bucket}/run")
    assert {name: folder.read(name) for name in folder.names()} == files(tmp_path / "out")
    found = open_dataset(f"{bucket}/run")
    assert verify(found) == []
    assert len(found) == len(open_dataset(tmp_path / "out"))


def test_a_conversion_into_a_bucket_continues_where_it_was_killed(bucket: str, tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.shards == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(ROLLOUTS), f"{bucket}/killed", render=RENDER, rows_per_shard=10, progress=stop)
    folder = open_folder(f"{bucket}/killed")
    assert "manifest.json" not in folder.names()
    summary = convert(str(ROLLOUTS), f"{bucket}/killed", render=RENDER, rows_per_shard=10)
    assert summary.reused == 2
    convert(str(ROLLOUTS), str(tmp_path / "out"), render=RENDER, rows_per_shard=10)
    assert {name: folder.read(name) for name in folder.names()} == files(tmp_path / "out")


def test_the_age_of_a_lock_in_a_bucket_is_told_by_the_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(f"{bucket}/lock")
    put(folder, LOCK, b'{"host": "elsewhere", "pid": 1}')
    with pytest.raises(StoreError, match="process 1 on elsewhere") as error, locked(folder):
        pass
    assert "run again in" in error.value.fix
    monkeypatch.setattr("tracemask.store.lock.LAPSE", 0.5)
    time.sleep(2)
    with locked(folder):
        assert b"elsewhere" not in folder.read(LOCK)
    assert folder.names() == []


def test_a_truncated_object_is_refused(bucket: str) -> None:
    convert(str(ROLLOUTS), f"{bucket}/cut", render=RENDER, rows_per_shard=20)
    folder = open_folder(f"{bucket}/cut")
    name = next(name for name in folder.names() if name.endswith(".arrow"))
    whole = folder.read(name)
    sink = folder.sink(name)
    sink.write(whole[:-100])
    sink.commit()
    with pytest.raises(StoreError, match="TM508"):
        open_dataset(f"{bucket}/cut")
    assert LOCK not in folder.names()


def test_another_tools_parquet_in_a_bucket_is_read(bucket: str, tmp_path: Path) -> None:
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"input_ids": [[1, 2, 3], [4]], "labels": [[-100, 2, 3], [4]], "uid": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("a.parquet", "deep/b.parquet"):
        with fsspec.open(f"{bucket}/foreign/{name}", "wb") as file:
            file.write((tmp_path / "a.parquet").read_bytes())
    found = open_dataset(f"{bucket}/foreign")
    assert [row["labels"].tolist() for row in found] == [[-100, 2, 3], [4]] * 2
    assert found.shards[1].name == "deep/b.parquet"
    assert len(open_dataset(f"{bucket}/foreign/a.parquet")) == 2
    with pytest.raises(TracemaskError, match="TM901"):
        open_dataset(f"{bucket}/foreign/none.parquet")
