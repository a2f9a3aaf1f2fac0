"""Rules that need a model, with the real SmolLM2: a one-token shift of log-probs is found, right ones are silent."""

from __future__ import annotations

import numpy as np
import pytest
from check_rollouts import NOTES, SHIPS

from tracemask.check.config import Settings
from tracemask.check.runner import check_dataset
from tracemask.render.renderer import Renderer
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.commit import write_dataset
from tracemask.store.reader import open_dataset
from tracemask.store.rows import of_sample
from tracemask.store.schema import make_metadata
from tracemask.trace import Trace

pytestmark = pytest.mark.real
RULES = Settings(select=("TM402", "TM405", "TM411", "TM412"))


def replies():
    """Twenty short replies of some thirty tokens."""
    for i in range(20):
        ship, other = SHIPS[i % 10], SHIPS[(i + 3) % 10]
        yield (
            f"When does the {ship} leave?",
            (
                f"The {ship} leaves at {7 + i % 12}:{10 + i} from pier {i + 1}. Note that {NOTES[i % 5]}, "
                f"and the {other} is {i} minutes late."
            ),
        )


@pytest.fixture(scope="module")
def policy(smollm2):
    """Rows with log-probs from a plain forward pass, the same at temperature 0.6, and the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    tokenizer = Tokenizer.load(smollm2)
    renderer = Renderer(tokenizer)
    rows, cold = [], []
    for i, (question, answer) in enumerate(replies()):
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        trace = Trace.from_messages(messages, id=f"r{i:02d}")
        (sample,) = renderer.render(trace)
        with torch.no_grad():
            logits = model(torch.from_numpy(sample.token_ids.astype(np.int64))[None]).logits[0].float()
        ids = torch.from_numpy(sample.token_ids[1:].astype(np.int64))
        values = torch.log_softmax(logits[:-1], -1).gather(1, ids[:, None])[:, 0].numpy()
        colder = torch.log_softmax(logits[:-1] / 0.6, -1).gather(1, ids[:, None])[:, 0].numpy()
        cold.append(colder[sample.sampled[1:]])
        sample.logprob[1:] = np.where(sample.sampled[1:], values, np.nan)
        rows.append(of_sample(sample, trace, index=i))
    return rows, cold, tokenizer


@pytest.fixture(scope="module")
def scored(policy, smollm2, tmp_path_factory):
    """Shards with `tracemask score`'s own log-probs beside the sampler's."""
    from tracemask.train.score import score

    folder = tmp_path_factory.mktemp("scored")
    rows, _, _ = policy
    write_dataset(str(folder / "rows"), rows, metadata=make_metadata(), rows_per_shard=100)
    score(str(folder / "rows"), model=str(smollm2), out=str(folder / "scored"))
    return open_dataset(str(folder / "scored"))


def changed(scored, change):
    from check_make import Rows
    from check_make import changed as edited

    rows = Rows()
    for row in scored:
        places = np.flatnonzero(row["sampled"])
        values = row["logprob"].copy()
        values[places] = change(values[places].astype(np.float64))
        rows.append(edited(row, logprob=values))
    return rows


def test_right_log_probs_are_silent(scored, policy):
    report = check_dataset(scored, tokenizer=policy[2], settings=RULES)
    assert set(report.ran) == {"TM402", "TM405", "TM411", "TM412"}
    assert report.groups == []


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shift_by_one_token_is_found_in_every_rollout(scored, policy, shift):
    report = check_dataset(changed(scored, lambda values: np.roll(values, shift)), tokenizer=policy[2], settings=RULES)
    found = [finding for finding in report.findings if finding.code == "TM402"]
    assert len(found) == 20 and {finding.data["shift"] for finding in found} == {shift}


def test_noise_between_engines_is_silent(scored, policy):
    rng = np.random.default_rng(0)
    noisy = changed(scored, lambda values: np.minimum(values + rng.normal(0, 0.03, len(values)), -1e-5))
    assert check_dataset(noisy, tokenizer=policy[2], settings=RULES).groups == []


def test_log_probs_at_another_temperature_are_told_by_their_spread(scored, policy):
    _, cold, tokenizer = policy
    values = iter(cold)
    report = check_dataset(changed(scored, lambda _: next(values)), tokenizer=tokenizer, settings=RULES)
    assert report.codes == ["TM405"]
    assert 0.5 < report.findings[0].data["temperature"] < 0.75
