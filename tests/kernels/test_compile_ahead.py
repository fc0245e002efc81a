"""The Triton kernels compile for the GPUs they are meant for, on a machine that has none."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


# Found, not imported: it prints at the end of each process that imported it.
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_every_kernel_compiles_for_sm_90() -> None:
    # In a process of its own: where TRITON_INTERPRET is set, nothing can be compiled.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_ahead.py"))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    products = ["product_kernel", "mapped_kernel", "gemv_kernel"]
    of_each = ["product_kernel"] * 3 + ["mapped_kernel"] + ["gemv_kernel"] * 3
    recurrence = [*["wkv_kernel"] * 4, "fold_kernel", "empty_kernel", "begin_ring_kernel"]
    float32 = ["mix_kernel", *products, *recurrence]
    bfloat16 = ["mix_kernel", *of_each, *recurrence]
    back = ["dequantise_kernel"] * 2
    assert run.stdout.split() == float32 + bfloat16 + back


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_every_kernel_of_prompts_compiles_for_sm_90() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_ahead_prefill.py"))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["mix", "move", "within", "pass", "outputs"]
