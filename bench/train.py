"""Step time and memory of training: trees against rows, ours against a plain padded loop, in one run.

python bench/train.py [--model FOLDER] [--layers N] [--repeats N] [--trl]
The model is SmolLM2 where it was fetched, else a small random Llama.

Ratios are medians of interleaved repeats, in CPU seconds of this process on one thread, so that other work on the
machine disturbs them little. Results go to bench/results/train.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tracemask.recipe.step import LaidRow
from tracemask.store.row import Row
from tracemask.train.batching import work_of
from tracemask.train.model import init_tiny, load
from tracemask.train.step import PolicyStep
from tracemask.train.tree import Sharing, lay_out

ROOT = Path(__file__).resolve().parents[1]
RECIPE: Any = SimpleNamespace(
    components={"rl": SimpleNamespace(term="ppo", coef=1.0, options={"eps_low": 0.2, "eps_high": 0.2}, mismatch=None)}
)
ROLLOUTS = 8
# (name, prompt tokens, reply tokens): slots / tokens = (P + 8 L) / (8 P + 8 L)
SHAPES = (("0.30", 96, 24), ("0.35", 72, 24), ("0.46", 40, 24), ("0.77", 8, 22))


def model_of(path: str | None, layers: int | None) -> Any:
    """The model under test; `layers` keeps the first ones only."""
    model: Any = load(path) if path else init_tiny(8192)
    if layers is not None:
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
    return model


def rollouts(prompt: int, reply: int, vocab: int) -> list[LaidRow]:
    """Eight rollouts of one prompt; the replies are in the loss."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, vocab, prompt)
    rows = []
    for index in range(ROLLOUTS):
        length = reply - index % 3  # a little ragged
        ids = np.concatenate([start, rng.integers(0, vocab, length)])
        weights = np.r_[np.zeros(prompt), np.ones(length)]
        row = Row(index, {"token_ids": ids, "logprob": rng.normal(-9, 0.5, len(ids))}, {"trace_id": str(index)})
        ones = np.full(len(ids), float(ROLLOUTS * reply))
        rows.append(LaidRow(row, {"rl": weights}, {"rl": ones}, np.full(len(ids), rng.normal()), index, 0))
    return rows


def ours(step: PolicyStep, rows: list[LaidRow], sharing: Sharing) -> Callable[[], float]:
    """One forward and backward over a layout."""
    model: Any = step.model
    layout = lay_out([one.row["token_ids"] for one in rows], sharing=sharing)
    work = work_of(layout, rows)

    def run() -> float:
        model.set_attn_implementation("tracemask_segments")
        total, _ = step(work)
        total.backward()
        return float(total.detach())

    return run


def padded(step: PolicyStep, rows: list[LaidRow]) -> Callable[[], float]:
    """The plain loop: right-padded rows, all logits, log_softmax in float32, PPO's clipped term."""
    model: Any = step.model
    longest = max(len(one.row) for one in rows)

    def pad(values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, longest - len(values)))

    ids = torch.from_numpy(np.stack([pad(one.row["token_ids"]) for one in rows]))
    seen = torch.from_numpy(np.stack([pad(np.ones(len(one.row), np.int64)) for one in rows]))
    old, weight, advantage = (
        torch.from_numpy(np.stack([pad(get(one)) for one in rows])).float()
        for get in (
            lambda one: one.row["logprob"],
            lambda one: one.weights["rl"] / one.denominator["rl"],
            lambda one: one.advantage,
        )
    )

    def run() -> float:
        model.set_attn_implementation("sdpa")
        logits = model(ids, attention_mask=seen, use_cache=False).logits
        lp = logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        ratio = (lp - old[:, 1:]).exp()
        term = -torch.minimum(ratio * advantage[:, 1:], ratio.clamp(0.8, 1.2) * advantage[:, 1:])
        total = (term * weight[:, 1:]).sum()
        total.backward()
        return float(total.detach())

    return run


def trl_step(step: PolicyStep, rows: list[LaidRow], path: str) -> Callable[[], float]:
    """TRL's own GRPO loss step on the same rollouts: prompt and completion padded apart, logits of completions only."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model: Any = step.model
    options = GRPOConfig(
        output_dir=str(ROOT / "out" / "bench-trl"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=ROLLOUTS,
        num_generations=ROLLOUTS,
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(path),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * ROLLOUTS}),
        args=options,
    )
    trainer.current_gradient_accumulation_steps = 1  # set by its own loop otherwise
    prompt = int(np.flatnonzero(rows[0].weights["rl"])[0])
    longest = max(len(one.row) for one in rows) - prompt

    def pad(values: np.ndarray) -> np.ndarray:
        return np.pad(values[prompt:], (0, longest - len(values) + prompt))

    first = torch.from_numpy(np.stack([one.row["token_ids"][:prompt] for one in rows]))
    inputs = {
        "prompt_ids": first,
        "prompt_mask": torch.ones_like(first),
        "completion_ids": torch.from_numpy(np.stack([pad(one.row["token_ids"]) for one in rows])),
        "completion_mask": torch.from_numpy(np.stack([pad(np.ones(len(one.row), np.int64)) for one in rows])),
        "old_per_token_logps": torch.from_numpy(np.stack([pad(one.row["logprob"]) for one in rows])).float(),
        "num_items_in_batch": torch.tensor(float(sum(one.weights["rl"].sum() for one in rows))),
        "advantages": torch.tensor([float(one.advantage[0]) for one in rows]),
    }

    def run() -> float:
        model.set_attn_implementation("sdpa")
        model.train()
        total = trainer._compute_loss(model, inputs)
        total.backward()
        return float("nan")  # its normalizer is another: the value is not compared

    return run


def ratios(variants: dict[str, Callable[[], float]], repeats: int, reset: Callable[[], None]) -> dict[str, float]:
    """Median CPU seconds of each variant, repeats interleaved; values must agree."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    values = {}
    for _ in range(repeats):
        for name, run in variants.items():
            reset()
            started = time.process_time()
            values[name] = run()
            seconds[name].append(time.process_time() - started)
    first = next(iter(values.values()))
    worst = max(abs(value - first) for value in values.values() if value == value)
    assert worst < 1e-4 * max(1.0, abs(first)), f"the variants disagree: {values}"
    return {name: statistics.median(times) for name, times in seconds.items()}


def peak(arguments: argparse.Namespace, variant: str) -> float:
    """Peak memory in MiB that one variant adds to a process that holds the model."""
    command = [sys.executable, __file__, "--peak", variant]
    for name in ("model", "layers"):
        if getattr(arguments, name) is not None:
            command += [f"--{name}", str(getattr(arguments, name))]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(out.strip().splitlines()[-1])


def measure_peak(step: PolicyStep, rows: list[LaidRow], variant: str) -> float:
    """MiB above the resident size before the step."""
    runs = {
        "tree": lambda: ours(step, rows, Sharing.TREE),
        "rows": lambda: ours(step, rows, Sharing.ROWS),
        "padded": lambda: padded(step, rows),
    }
    for parameter in step.parameters():  # gradients are there in every variant
        parameter.grad = torch.zeros_like(parameter)
    run = runs[variant]()
    before = resident()
    highest, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            highest.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return (max(highest) - before) / 2**20


def resident() -> int:
    """Resident bytes of this process now (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    cached = ROOT / "fixtures" / ".cache" / "smollm2"
    parser.add_argument("--model", default=str(cached) if cached.is_dir() else None)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trl", action="store_true", help="also TRL's GRPO loss step (needs trl and a model folder)")
    parser.add_argument("--peak", choices=("tree", "rows", "padded"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(arguments.model, arguments.layers)
    step, vocab = PolicyStep(model, RECIPE), int(model.config.vocab_size)
    if arguments.peak:
        print(measure_peak(step, rollouts(96, 24, vocab), arguments.peak))
        return
    found: dict[str, Any] = {
        "model": Path(arguments.model).name if arguments.model else "random Llama, 2 layers",
        "layers": len(model.model.layers),
        "repeats": arguments.repeats,
        "shapes": {},
    }
    for name, prompt, reply in SHAPES:
        rows = rollouts(prompt, reply, vocab)
        variants = {
            "rows": ours(step, rows, Sharing.ROWS),
            "tree": ours(step, rows, Sharing.TREE),
            "padded": padded(step, rows),
        }
        if arguments.trl:
            variants["trl"] = trl_step(step, rows, arguments.model)
        seconds = ratios(variants, arguments.repeats, lambda: step.zero_grad(set_to_none=False))
        tokens = sum(len(one.row) for one in rows)
        slots = len(lay_out([one.row["token_ids"] for one in rows]))
        one = {
            "token_ratio": round(slots / tokens, 3),
            "tree_over_rows": round(seconds["tree"] / seconds["rows"], 3),
            "tree_over_padded": round(seconds["tree"] / seconds["padded"], 3),
            "rows_over_padded": round(seconds["rows"] / seconds["padded"], 3),
            **({"tree_over_trl": round(seconds["tree"] / seconds["trl"], 3)} if "trl" in seconds else {}),
            "seconds": {key: round(value, 3) for key, value in seconds.items()},
        }
        found["shapes"][name] = one
        print(json.dumps(one), flush=True)
    found["peak_mib"] = {variant: round(peak(arguments, variant), 1) for variant in ("tree", "rows", "padded")}
    print(json.dumps(found["peak_mib"]))
    (ROOT / "bench" / "results").mkdir(exist_ok=True)
    (ROOT / "bench" / "results" / "train.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
