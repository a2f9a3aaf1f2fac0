"""Datasets as files: ours and other tools', corrupt, mixed, split, overlapping, empty."""

from __future__ import annotations

import json

import numpy as np
import pytest
from check_make import SMALL, TALK, chat, foreign, ours

from tracemask.check.config import Settings
from tracemask.check.context import Options
from tracemask.check.runner import check_dataset
from tracemask.core.errors import TracemaskError
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.commit import write_dataset
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.schema import make_metadata


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(SMALL)


def rows(tokenizer, n=4, **scalars):
    made = []
    for i in range(n):
        talk = [TALK[0], ("user", f"When does the Orla leave Pier {i + 3}?"), *TALK[2:]]
        made.append(ours(tokenizer, chat(talk), index=i, **scalars))
    return made


def shards(folder, made, *, sha="a" * 64, per_shard=100):
    metadata = make_metadata(tokenizer_sha256=sha, vocab_size=2048)
    write_dataset(str(folder), made, metadata=metadata, rows_per_shard=per_shard)
    return str(folder)


def codes(path, tokenizer=None, **settings):
    return check_dataset(path, tokenizer=tokenizer, settings=Settings(**settings)).codes


def as_jsonl(path, made, **names):
    with open(path, "w") as file:
        for row in made:
            record = {name: row[column].tolist() for name, column in names.items()}
            file.write(
                json.dumps({**record, **{k: v for k, v in row.scalars.items() if isinstance(v, str | float)}}) + "\n"
            )
    return str(path)


def test_shards_are_checked_with_their_hashes(tmp_path, tokenizer):
    path = shards(tmp_path / "d", rows(tokenizer))
    report = check_dataset(path, tokenizer=tokenizer)
    assert report.codes == [] and "TM508" in report.ran and report.rows == 4


def test_a_changed_byte_is_a_corrupt_shard_named_by_its_file(tmp_path, tokenizer):
    path = shards(tmp_path / "d", rows(tokenizer))
    (shard,) = (tmp_path / "d").glob("*.arrow")
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    report = check_dataset(path, settings=Settings(select=("TM508",)))
    assert report.codes == ["TM508"] and report.findings[0].place.path.endswith(shard.name)


def test_a_cut_shard_is_one_finding_and_no_traceback(tmp_path, tokenizer):
    path = shards(tmp_path / "d", rows(tokenizer))
    (shard,) = (tmp_path / "d").glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:-100])
    report = check_dataset(path, tokenizer=tokenizer)
    assert report.codes == ["TM508"] and report.exit_code == 1


def test_shards_of_two_tokenizers_are_refused_by_name_before_anything_is_read(tmp_path, tokenizer):
    paths = [shards(tmp_path / "a", rows(tokenizer)), shards(tmp_path / "b", rows(tokenizer), sha="b" * 64)]
    report = check_dataset(paths, tokenizer=tokenizer)
    (finding,) = report.findings
    assert finding.code == "TM506"
    assert "tokenizer" in finding.message and "a" * 12 in finding.message and "b" * 12 in finding.message
    assert "a/" in finding.place.path and "b/" in finding.place.path


def test_a_group_over_two_shards_is_a_warning(tmp_path, tokenizer):
    path = shards(tmp_path / "d", rows(tokenizer, group_id="g", reward=1.0), per_shard=2)
    assert "TM507" in codes(path, select=("TM507",))


def test_a_training_row_in_the_evaluation_set_is_a_warning_at_that_row(tmp_path, tokenizer):
    made = rows(tokenizer)
    held = as_jsonl(tmp_path / "eval.jsonl", [foreign(made[2])], input_ids="token_ids", loss_mask="mask")
    data = as_jsonl(tmp_path / "train.jsonl", [foreign(row) for row in made], input_ids="token_ids", loss_mask="mask")
    settings = Settings(select=("TM503",), options=Options(eval_path=held))
    report = check_dataset(data, tokenizer=tokenizer, settings=settings)
    assert [(f.code, f.place.row, f.cause) for f in report.findings] == [("TM503", 2, "row")]


@pytest.mark.parametrize("name", ["loss_mask", "completion_mask", "assistant_masks", "response_mask", "labels"])
def test_columns_of_other_tools_are_known_by_name(tmp_path, tokenizer, name):
    made = [foreign(row, labels=name == "labels") for row in rows(tokenizer)]
    column = "labels" if name == "labels" else "mask"
    path = as_jsonl(tmp_path / "d.jsonl", made, input_ids="token_ids", **{name: column})
    report = check_dataset(path, tokenizer=tokenizer)
    assert report.codes == [] and {"TM302", "TM305", "TM306", "TM203"} <= set(report.ran)


def test_other_names_are_given_as_columns(tmp_path, tokenizer):
    made = [foreign(row) for row in rows(tokenizer)]
    path = as_jsonl(tmp_path / "d.jsonl", made, toks="token_ids", train="mask")
    report = check_dataset(path, tokenizer=tokenizer, settings=Settings(columns={"ids": "toks", "mask": "train"}))
    assert report.codes == [] and "TM302" in report.ran


@pytest.mark.parametrize("form", ["parquet", "hf"])
def test_parquet_and_hugging_face_folders_are_read(tmp_path, tokenizer, form):
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = rows(tokenizer)
    shifted = [np.roll(row["sampled"], 1).astype(np.int8).tolist() for row in made]
    table = pa.table({"input_ids": [row["token_ids"].tolist() for row in made], "loss_mask": shifted})
    path = tmp_path / "d.parquet"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        path = tmp_path / "hf"
        path.mkdir()
        with (
            pa.OSFile(str(path / "data-00000-of-00001.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as out,
        ):
            out.write_table(table)
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    report = check_dataset(str(path), tokenizer=tokenizer)
    assert report.codes == ["TM302"] and report.groups[0].rows == 4


def test_an_empty_dataset_could_not_be_checked(tmp_path):
    (tmp_path / "d.jsonl").write_text("")
    with pytest.raises(TracemaskError) as caught:
        check_dataset(str(tmp_path / "d.jsonl"))
    assert caught.value.code == "TM904"


def test_rules_without_their_inputs_are_skipped_and_named_never_passed(tmp_path, tokenizer):
    made = [foreign(row) for row in rows(tokenizer)]
    path = as_jsonl(tmp_path / "d.jsonl", made, input_ids="token_ids", loss_mask="mask")
    report = check_dataset(path, settings=Settings(require=("TM302",)))
    skipped = {skip.rule.code: skip for skip in report.skipped}
    assert "TM302" not in report.ran and skipped["TM302"].required
    assert "a tokenizer" in skipped["TM302"].missing and "--tokenizer" in skipped["TM302"].remedy
    assert report.exit_code == 1
    assert not set(skipped) & set(report.ran)


def test_memory_does_not_hold_blocks(tokenizer):
    """Rows are let go block by block: the runner keeps numbers only."""
    import gc
    import weakref

    alive = []

    def stream():
        for row in rows(tokenizer, n=12):
            alive.append(weakref.ref(row["token_ids"]))
            yield row

    check_dataset(stream(), tokenizer=tokenizer, settings=Settings(block_tokens=200))
    gc.collect()
    assert sum(reference() is not None for reference in alive) <= 3


def test_a_row_that_cannot_be_read_is_a_finding_and_the_others_are_checked(tmp_path, tokenizer):
    made = [foreign(row) for row in rows(tokenizer)]
    path = tmp_path / "d.jsonl"
    as_jsonl(path, made, input_ids="token_ids", loss_mask="mask")
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({"input_ids": [1.5, 2.5], "loss_mask": [1, 1]})
    path.write_text("\n".join(lines) + "\n")
    report = check_dataset(str(path), tokenizer=tokenizer)
    assert [(f.code, f.place.row) for f in report.findings] == [("TM501", 1)]
    assert report.rows == 4


@pytest.fixture(scope="module")
def harbour(tmp_path_factory):
    from pathlib import Path

    from tracemask.store.convert import RenderConfig, convert

    log = Path(__file__).parents[2] / "fixtures" / "rollouts" / "harbour.jsonl"
    out = tmp_path_factory.mktemp("harbour") / "shards"
    convert(str(log), str(out), render=RenderConfig(tokenizer=str(SMALL)), max_skipped=1)
    return out


def test_the_bundled_rollouts_have_no_error_and_only_warnings_that_are_there(harbour, tokenizer):
    report = check_dataset(str(harbour), tokenizer=tokenizer)
    assert {group.rule.code for group in report.groups if group.severity.value == "E"} == set()
    assert {group.rule.code for group in report.groups if group.severity.value == "W"} <= {
        "TM107",
        "TM203",
        "TM208",
        "TM409",
    }
    assert {"TM104", "TM105", "TM110"} <= set(report.ran)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "trl", "verl", "prime-rl"])
def test_what_we_export_is_clean_as_another_tool_s_dataset(harbour, tokenizer, tmp_path, form):
    from tracemask.store.export import export
    from tracemask.store.reader import open_dataset

    export(open_dataset(str(harbour)), str(tmp_path / "out"), to=form)
    report = check_dataset(str(tmp_path / "out"), tokenizer=tokenizer)
    assert report.kind == "foreign" and {"TM302", "TM305", "TM307"} <= set(report.ran)
    assert {group.rule.code for group in report.groups if group.severity.value == "E"} == set()


def test_steps_of_a_materialised_dataset_are_no_micro_batches(harbour, tokenizer, tmp_path):
    from tracemask.recipe.materialize import materialize
    from tracemask.store.reader import open_dataset

    materialize(open_dataset(str(harbour)), "dapo", str(tmp_path / "out"), groups_per_step=3)
    report = check_dataset(str(tmp_path / "out"), tokenizer=tokenizer, settings=Settings(select=("TM606",)))
    assert "TM606" in report.ran and not report.groups


@pytest.mark.parametrize("recipe", ["echo", "grpo", "sft"])
def test_materialised_weights_are_clean_and_echo_may_train_tool_output(harbour, tokenizer, tmp_path, recipe):
    from tracemask.recipe.materialize import materialize
    from tracemask.store.reader import open_dataset

    materialize(open_dataset(str(harbour)), recipe, str(tmp_path / "out"))
    report = check_dataset(str(tmp_path / "out"), tokenizer=tokenizer)
    assert {"TM601", "TM603", "TM606"} <= set(report.ran)
    assert {group.rule.code for group in report.groups if group.severity.value == "E"} == set()


def test_policy_weight_on_tool_output_is_an_error_and_cross_entropy_on_it_is_not(tokenizer):
    from check_make import Rows, changed

    from tracemask.core.vocab import Author

    class Weighed(Rows):
        metadata = {"recipe": {"components": {"rl": {"term": "dppo"}, "ce": {"term": "ce"}}}}

    made = []
    for row in rows(tokenizer, reward=1.0):
        tool = (row["author"] == Author.ENVIRONMENT).astype(np.float32)
        made.append(changed(row, **{"weight.rl": row["sampled"].astype(np.float32), "weight.ce": tool}))
    assert "TM306" not in codes(Weighed(made), tokenizer)
    bad = changed(made[1], **{"weight.rl": made[1]["weight.rl"] + made[1]["weight.ce"]})
    report = check_dataset(Weighed([made[0], bad, *made[2:]]), tokenizer=tokenizer)
    first = int(np.argmax(made[1]["weight.ce"]))
    assert ("TM306", 1, first) in {(f.code, f.place.row, f.place.token) for f in report.findings}


def test_shards_of_another_template_than_the_tokenizers_are_not_judged_by_it(tokenizer, tmp_path):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
    )
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in TALK[1:3]]}) + "\n")
    convert(str(log), tmp_path / "shards", render=RenderConfig(tokenizer=str(SMALL), template=template))
    path = str(tmp_path / "shards")
    judged = check_dataset(path, tokenizer=tokenizer, settings=Settings(select=("TM210", "TM212", "TM305")))
    assert not judged.findings and not judged.ran
    assert any("another template" in note for note in judged.notes)
    told = check_dataset(path, tokenizer=tokenizer, template=template, settings=Settings(select=("TM210",)))
    assert not told.findings and "TM210" in told.ran and not told.notes
