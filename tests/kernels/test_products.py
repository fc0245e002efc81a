"""The own matrix product, small, in Triton's interpreter: in a process of its own.

How whole steps use it is tested beside the models.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from wkvm.kernels.weight import quantised

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_product_can_be_added_to_what_is_there(quantization: str, device: str) -> None:
    from wkvm.kernels.rwkv7_decode import Blocks, product

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=draw).to(device)
    weight = quantised(torch.randn(40, 64, generator=draw).to(device), quantization)
    matrix = weight.values.double()
    if weight.scales is not None:
        matrix *= weight.scales[:, None]
    before = torch.randn(5, 40, generator=draw).to(device)
    out = before.clone()
    product(x, weight.values, out, Blocks(16, 16, 32), scales=weight.scales, adds=True)
    expected = before + x.double() @ matrix.t()
    assert (out - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="is that process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_products_pass_these_tests_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "added"]
    run = subprocess.run(
        [*command, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
