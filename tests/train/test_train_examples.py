"""The examples run, and what they compute is what `tracemask train` computes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two groups of the bundled rollouts, converted."""
    from tracemask.store.convert import RenderConfig, convert

    folder = tmp_path_factory.mktemp("examples")
    out, log = str(folder / "shards"), folder / "ten.jsonl"
    lines = (ROOT / "fixtures" / "rollouts" / "harbour.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(lines[:10]), encoding="utf-8")
    convert(str(log), out, render=RenderConfig(tokenizer=str(ROOT / "fixtures/tokenizers/small")))
    return out


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return ROOT / "examples"


def test_materialised_shards_train_in_a_plain_loop_as_here(shards: str, examples: Path, tmp_path: Path) -> None:
    from tracemask.train.trainer import train

    exported = importlib.import_module("export_to_trainer")
    value = exported.main(shards)
    settings = {
        "data": [shards],
        "model": str(ROOT / "fixtures/models/tiny"),
        "recipe": "dapo",
        "groups_per_step": 100,
        "steps": 1,
        "export": False,
        "out": str(tmp_path),
    }
    assert value == pytest.approx(train(settings).metrics["loss/rl"], abs=2e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_loss_engine_runs_inside_a_transformers_trainer(shards: str, examples: Path) -> None:
    pytest.importorskip("accelerate")
    last = importlib.import_module("transformers_trainer").main(shards, steps=1)
    assert set(last) == {"rl"}


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_the_loss_engine_runs_inside_trl(examples: Path) -> None:
    pytest.importorskip("trl")
    last = importlib.import_module("trl_trainer").main(steps=1)
    assert set(last) == {"rl"}


def test_the_rl_example_s_reward_wants_a_short_answer_with_a_colour(examples: Path) -> None:
    sys.path.insert(0, str(examples / "rl_smollm2"))
    try:
        reward = importlib.import_module("sampler").reward
    finally:
        sys.path.remove(str(examples / "rl_smollm2"))
    assert reward("Blue.", 3) == 1.0
    assert reward("Blue is a colour that many people like very much.", 12) == 0.0
    assert reward("Hello.", 3) == 0.0
