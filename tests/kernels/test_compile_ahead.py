"""The Triton kernels compile for the GPUs they are meant for, on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


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
    assert run.stdout.split() == ["wkv7_kernel"] * 4 + ["token_shift_kernel"] * 4
