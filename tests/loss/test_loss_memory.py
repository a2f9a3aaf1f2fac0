"""The full matrix of logits never exists: peak memory of a process of its own, measured by its resident set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import json, sys
import torch
from loss_recipes import random_batch, recipe, rl
from tracemask import loss

def peak():
    """VmHWM in KiB: unlike ru_maxrss it does not begin with the parent's."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

T, V, H = 2048, 32_000, 16
torch.set_num_threads(1)

def halves():
    """Bytes for each number of a bfloat16 head, forward and backward."""
    def step(vocab, width):
        leaf = lambda rows: torch.empty(rows, width, dtype=torch.bfloat16).normal_().requires_grad_()
        hidden, weight = leaf(64), leaf(vocab)
        batch = random_batch(0, slots=64, targets=64, vocab=vocab, dtype=torch.float32)
        before = peak()
        loss.from_hidden(recipe(rl=rl("ppo")), hidden, weight, batch).total.backward()
        return (peak() - before) * 1024 / weight.numel()
    step(100, 16)
    return step(V, 1024)

if sys.argv[1] == "halves":
    print(json.dumps(halves()))
    sys.exit()
g = torch.Generator().manual_seed(0)
hidden = torch.randn(T, H, generator=g).requires_grad_()
weight = torch.randn(V, H, generator=g).requires_grad_()
batch = random_batch(0, slots=T, targets=T, vocab=V, dtype=torch.float32, selected=1.0)
chosen = recipe(rl=rl("ppo"))
small = random_batch(0, slots=T, targets=8, vocab=V, dtype=torch.float32)
loss.from_hidden(chosen, hidden, weight, small).total.backward()  # what every call needs once
before = peak()
if sys.argv[1] == "fused":
    loss.from_hidden(chosen, hidden, weight, batch, entropy=True).total.backward()
elif sys.argv[1] == "log-probs":
    with torch.no_grad():
        loss.from_hidden(chosen, hidden, weight, batch, entropy=True)
else:
    loss.from_hidden(chosen, hidden, weight, batch, head="reference").total.backward()
print(json.dumps((peak() - before) * 1024 / (T * V * 4)))
'''


def extra(what: str) -> float:
    """Peak extra memory as a fraction of the logits' size."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what],
        cwd=Path(__file__).parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux alone")
def test_log_probs_and_gradients_need_a_quarter_of_the_logits_at_most() -> None:
    assert extra("log-probs") < 0.25
    assert extra("fused") < 0.25
    assert extra("reference") > 2


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux alone")
def test_the_head_s_gradient_is_held_in_float32_once() -> None:
    """Four bytes for each number of the head while it is summed, two for the gradient, a block on its way."""
    assert extra("halves") < 8
