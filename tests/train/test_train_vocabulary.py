"""An id that a model does not know is refused by name: a CPU's index error says nothing, a GPU's ends the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from train_models import rollouts, tiny, write
from train_runs import config

from tracemask.core.errors import TrainError
from tracemask.train.score import score
from tracemask.train.trainer import dry_run, train

PLAIN = {"name": "plain", "ce": {"term": "ce"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small` knows 30 ids, `usual` 61, as many as the shards' tokenizer has."""
    folder = tmp_path_factory.mktemp("models")
    for name, vocab in (("small", 30), ("usual", 61)):
        tiny("llama", dtype=torch.float32, norms="own", vocab_size=vocab).save_pretrained(folder / name)
    return folder


def labelled(path: Path, *rows: list[int]) -> str:
    """Rows of another tool; the first two tokens and those below 0 are not trained."""
    lines = [{"input_ids": ids, "labels": [-100, -100, *[at if at >= 0 else -100 for at in ids[2:]]]} for ids in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def on(model: Path, data: str, out: Path, **changes: Any) -> Any:
    return config(data, out, **{"model": str(model), "init_tiny": False, "recipe": PLAIN, "steps": 1, **changes})


@pytest.mark.parametrize("bad", [30, 2_000_000_000, -1])
def test_an_id_that_the_model_does_not_know_is_named_with_its_place(models: Path, tmp_path: Path, bad: int) -> None:
    data = labelled(tmp_path / "rows.jsonl", [1, 2, 3, 4], [5, 6, bad, 7])
    said = f"row 1 token 2: TM506 token id {bad}, and the model knows 30 ids"
    for run in (dry_run, train):
        with pytest.raises(TrainError, match=said):
            run(on(models / "small", data, tmp_path / "run"))


def test_ids_after_the_last_trained_token_reach_no_model(models: Path, tmp_path: Path) -> None:
    data = labelled(tmp_path / "rows.jsonl", [1, 2, 3, 4, -1, -1], [5, 6, 7, 29])
    assert train(on(models / "small", data, tmp_path / "run")).metrics["selected/ce"] == 4


def test_shards_with_ids_beyond_their_own_tokenizer_are_named(models: Path, tmp_path: Path) -> None:
    rows = rollouts()
    rows[3].columns["token_ids"][2] = 61
    data = write(tmp_path / "shards", rows)
    with pytest.raises(TrainError, match=r"g0a2.* token 2: TM506 token id 61, and the model knows 61 ids"):
        train(on(models / "usual", data, tmp_path / "run"))
    with pytest.raises(TrainError, match=r"g0a2.* token 2: TM506"):
        score(data, model=str(models / "usual"), out=str(tmp_path / "scored"))


def test_a_reference_with_fewer_ids_is_refused(models: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"recipe": "grpo_kl", "reference": str(models / "small")}
    with pytest.raises(TrainError, match="--reference: TM506 the model knows 30 ids, the shards' tokenizer has 61"):
        train(on(models / "usual", write(tmp_path / "shards", rollouts()), tmp_path / "run", **options))
