"""Failures that other projects' users reported, on our store."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from store_rows import dataset, full_row, rows, sample, trace

from tracemask.core.errors import StoreError
from tracemask.render.renderer import Renderer
from tracemask.store.commit import write_dataset
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.pack import pack
from tracemask.store.reader import open_dataset
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.store.schema import make_metadata, token_type
from tracemask.store.stream import State, Stream
from tracemask.store.values import Values
from tracemask.trace import Trace

SMALL = Path(__file__).resolve().parents[2] / "fixtures" / "tokenizers" / "small"
CASES: dict[str, Any] = json.loads((Path(__file__).resolve().parents[1] / "cases" / "store" / "cases.json").read_text())


def test_three_billion_tokens_in_one_column_concatenate() -> None:
    """Null values take no memory; a 32-bit list of the same lengths fails, so the test could."""
    case = CASES["offsets"]
    assert case["total"] == sum(case["lengths"]) > case["limit"]
    assert pa.types.is_large_list(token_type(np.dtype("int32")))
    narrow = [pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), pa.nulls(n)) for n in case["lengths"]]
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        pa.chunked_array(narrow).combine_chunks()
    wide = [pa.LargeListArray.from_arrays(pa.array([0, n], pa.int64()), pa.nulls(n)) for n in case["lengths"]]
    whole = pa.concat_arrays(wide)
    assert whole.offsets[-1].as_py() == case["total"]
    assert len(whole[2]) == case["lengths"][2]


def test_offsets_beyond_two_to_the_31_address_the_right_bytes() -> None:
    """A sparse column of 2^31 + 8 one-byte values: only the pages at its end exist."""
    import mmap

    n = (1 << 31) + 8
    memory = mmap.mmap(-1, n)
    memory[n - 8 :] = bytes(range(8))
    values = pa.Array.from_buffers(pa.uint8(), n, [None, pa.py_buffer(memory)])
    column = pa.LargeListArray.from_arrays(pa.array([0, n - 8, n - 3, n], pa.int64()), values)
    found = Values.of(column, np.dtype(np.uint8), None)
    assert found.row(1).tolist() == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    assert found.row(2).tolist() == [5, 6, 7]  # type: ignore[union-attr]


def test_ids_keep_32_bits_and_log_probs_float32(tmp_path: Path) -> None:
    case = CASES["narrow"]
    assert np.array(case["token_id"]).astype(np.uint16) == case["as_uint16"]
    row = full_row(6)
    row.columns["token_ids"] = np.full(6, case["token_id"])
    row.columns["logprob"] = np.array(case["logprobs"] * 2)
    found = dataset(tmp_path, [row]).row(0)
    assert found["token_ids"].tolist() == [case["token_id"]] * 6
    np.testing.assert_array_equal(found["logprob"], np.array(case["logprobs"] * 2, dtype=np.float32))
    assert np.isfinite(found["logprob"]).all()
    assert (found["logprob"] < 0).all()


def test_a_slice_of_a_column_gives_its_own_tokens_only() -> None:
    case = CASES["sliced"]
    column = pa.array(case["column"], type=token_type(np.dtype("int32"))).slice(case["start"], case["length"])
    found = Values.of(column, np.dtype(np.int32), None)
    assert [found.row(i).tolist() for i in range(2)] == case["rows"]  # type: ignore[union-attr]
    assert found.all().tolist() == case["flat"]
    booleans = pa.array([[True] * 5, [], [True, False, True] * 5], type=pa.large_list(pa.bool_())).slice(2, 1)
    assert Values.of(booleans, np.dtype(np.bool_), None).row(0).tolist() == [True, False, True] * 5  # type: ignore[union-attr]


@pytest.mark.parametrize("run", CASES["resume_reader"]["runs"])
def test_a_reader_stopped_twice_gives_every_record_once_and_in_order(tmp_path: Path, run: dict[str, Any]) -> None:
    case = CASES["resume_reader"]
    found = dataset(tmp_path, rows(case["records"]), rows_per_shard=case["records"] // case["shards"])
    state = Stream(found, order="stored").state()
    parts = []
    for stop in [*run["stops"], case["records"]]:
        stream = Stream(found, order="stored")
        stream.resume(State.from_json(json.loads(json.dumps(state.to_json()))))
        parts.append([unit[0] for unit in islice(stream, stop)])
        state = stream.state()
    assert parts == run["parts"]


def test_a_writer_that_died_in_its_second_shard_starts_that_shard_again(tmp_path: Path) -> None:
    case = CASES["resume_writer"]
    made = [of_sample(sample(name, 5, seed=ord(name)), trace(name)) for name in case["ids"]]

    def dying() -> Any:
        yield from made[: case["killed_after"]]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(str(tmp_path), dying(), metadata=make_metadata(), rows_per_shard=case["shard_size"])
    with pytest.raises(StoreError, match="TM508"):
        open_dataset(tmp_path)
    write_dataset(str(tmp_path), made, metadata=make_metadata(), rows_per_shard=case["shard_size"])
    found = open_dataset(tmp_path)
    shards = [[row.scalars["trace_id"] for row in found.rows_of_shard(k)] for k in range(len(found.shards))]
    assert shards == case["shards"]


@pytest.mark.real
def test_shards_of_two_real_tokenizers_are_refused_before_anything_is_read(
    tmp_path: Path, real_tokenizer: Callable[[str], Path]
) -> None:
    case = CASES["tokenizers"]
    from tracemask.render.tokenizer import Tokenizer

    digests = []
    for name in ("qwen3", "deepseek_v3"):
        tokenizer = Tokenizer.load(real_tokenizer(name))
        assert tokenizer.encode(case["text"]) == case[name]
        digests.append(tokenizer.sha256)
        dataset(tmp_path / name, rows(1), tokenizer_sha256=tokenizer.sha256)
    with pytest.raises(StoreError) as error:
        open_dataset([tmp_path / "qwen3", tmp_path / "deepseek_v3"])
    assert error.value.code == "TM506"
    assert all(digest[:12] in error.value.what for digest in digests)
    assert "shard" in error.value.where
    assert "tokenizer" in error.value.what


@pytest.mark.real
def test_arguments_of_mixed_types_come_back_as_they_were(tmp_path: Path, real_tokenizer: Callable[[str], Path]) -> None:
    case = CASES["arguments"]
    log = tmp_path / "log.jsonl"
    lines = []
    for value in case["values"]:
        call = '{"type": "function", "function": {"name": "at", "arguments": ' + value + "}}"
        user, reply = '{"role": "user", "content": "At?"}', '{"role": "assistant", "content": "", "tool_calls": ['
        lines.append('{"messages": [' + user + ", " + reply + call + "]}]}")
    log.write_text("\n".join(lines) + "\n")
    folder = real_tokenizer(case["tokenizer"])
    convert(str(log), str(tmp_path / "out"), render=RenderConfig(str(folder)))
    from tracemask.render.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    texts = [tokenizer.decode_bytes(row["token_ids"].tolist()).decode() for row in open_dataset(tmp_path / "out")]
    assert texts == [case["text"].replace("ARGUMENTS", value) for value in case["values"]]


def test_a_document_longer_than_a_pack_is_refused_cut_or_skipped_but_never_continued() -> None:
    case = CASES["overlong"]
    first = pack(case["lengths"][:3], case["budget"])
    assert len(first.bins) == case["packs_without_split"]
    assert int(first.lengths.sum()) == case["tokens_of_the_first_three"]
    with pytest.raises(StoreError, match=f"sample {case['overlong']}: TM602"):
        pack(case["lengths"], case["budget"])
    for policy, kept in (("truncate", 6), ("skip", 0)):
        found = pack(case["lengths"], case["budget"], overlong=policy)
        assert [finding.place.row for finding in found.findings] == [case["overlong"]]
        assert found.findings[0].code == "TM602"
        assert int(found.lengths[case["overlong"]]) == kept
        assert found.lost_tokens == 7 - kept
        assert all(len(bin_) == 1 for bin_ in found.bins)


def test_packed_documents_do_not_see_each_other() -> None:
    """cu_seqlens and positions of a pack make each document's log-probs those it has alone; a causal row does not."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tracemask.store.pack import join

    documents = CASES["leak"]["documents"]
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    config = Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager")
    model = Qwen3ForCausalLM(config).double().eval()
    packed = join([Row(i, {"token_ids": np.array(ids, dtype=np.int64)}) for i, ids in enumerate(documents)])
    ids, positions = torch.from_numpy(packed.columns["token_ids"]), torch.from_numpy(packed.positions).long()
    document = torch.bucketize(torch.arange(len(ids)), torch.from_numpy(packed.cu_seqlens)[1:].long(), right=True)
    blocks = (document[:, None] == document[None, :]) & torch.ones(len(ids), len(ids)).tril().bool()
    causal = torch.ones(len(ids), len(ids)).tril().bool()

    def logits(ids: Any, positions: Any, mask: Any) -> Any:
        bias = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)
        with torch.no_grad():
            return model(input_ids=ids[None], position_ids=positions[None], attention_mask=bias[None, None]).logits[0]

    second = torch.tensor(documents[1])
    n = len(second)
    alone = logits(second, torch.arange(n), torch.ones(n, n).tril().bool())
    assert (logits(ids, positions, blocks)[-n:] - alone).abs().max() < 1e-9
    assert (logits(ids, positions, causal)[-n:] - alone).abs().max() > 1e-3
    assert (logits(ids, torch.arange(len(ids)), causal)[-n:] - alone).abs().max() > 1e-3


def test_whether_a_rollout_was_cut_follows_its_finish_reason_and_all_stops() -> None:
    case = CASES["ended"]
    front = Renderer(SMALL, stop=["<|endoftext|>"])
    prompt = [{"role": "user", "content": "q"}]
    found = []
    for (text, reason), stop in zip(case["replies"], case["stops"], strict=True):
        ids = [*front.tokenizer.encode(text), *([front.tokenizer.id_of(stop)] if stop else [])]
        reply = {"role": "assistant", "content": text, "token_ids": ids, "finish_reason": reason}
        run = Trace.from_messages([*prompt, reply | {"prompt_token_ids": front.prompt_ids(prompt)}])
        (row,) = front.render(run)
        assert row.sampled.sum() == len(ids)
        found.append(of_sample(row, run).scalars["truncated"])
    assert found == case["truncated"]
