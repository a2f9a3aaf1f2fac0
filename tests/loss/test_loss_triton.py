"""The Triton row kernels, interpreted on the CPU, equal the reference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")
def test_triton_kernels_equal_the_reference_under_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "triton_interpreted.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "32 passed" in done.stdout, done.stdout[-500:]


def test_without_the_interpreter_a_cpu_is_refused_by_name() -> None:
    program = (
        "import torch; from loss_recipes import random_batch, recipe, rl; from tracemask import loss\n"
        "b = random_batch(0, dtype=torch.float32)\n"
        "loss.from_hidden(recipe(rl=rl()), torch.randn(40, 4), torch.randn(50, 4), b, head='triton')"
    )
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE, env=environment, capture_output=True, text=True, timeout=120
    )
    assert "TM950 Triton kernels do not run on cpu" in done.stderr


def test_importing_the_loss_room_loads_neither_torch_nor_triton() -> None:
    program = "import sys, tracemask.loss; print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_cpu_head_never_loads_triton() -> None:
    program = (
        "import sys, torch; from loss_recipes import random_batch, recipe, rl; from tracemask import loss\n"
        "b = random_batch(0, dtype=torch.float32)\n"
        "loss.from_hidden(recipe(rl=rl()), torch.randn(40, 4), torch.randn(50, 4), b)\n"
        "print('triton' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
