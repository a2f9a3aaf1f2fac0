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
    assert "78 passed" in done.stdout, done.stdout[-500:]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tracemask.loss.lm_head import triton_kernels as kernels

floats = {n: "*fp32" for n in ("COOL", "NORMAL", "ENTROPY", "ROW_SLOPE", "BEND", "SLOPE")}
types = floats | {"Z": "*bf16", "stride": "i64", "vocab": "i32", "scale": "fp32", "cap": "fp32"}
types |= {"STARTS": "*i64", "TARGET": "*i64"}
for kernel in (kernels._row_stats, kernels._gradient):
    for on in (False, True):
        fixed = {n: on for n in ("CAPPED", "HEATED", "WANTED", "BENT")} | {"BLOCK": kernels.STATS_BLOCK}
        names = kernel.arg_names
        signature = {n: "constexpr" if n in fixed else types[n] for n in names}
        constants = {(names.index(n),): v for n, v in fixed.items() if n in names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["cubin"]
print("compiled")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")
def test_the_kernels_compile_for_hopper_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(COMPILE)  # Triton reads its sources from files
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-W", "ignore", str(tmp_path / "program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "compiled", done.stderr[-3000:]


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
