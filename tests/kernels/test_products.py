"""The own matrix product, small, in Triton's interpreter: in a process of its own.

How whole steps use it is tested beside the models.
"""

import pytest
import torch

from tests.interpreter import DEVICES, run_in_the_interpreter, starts_the_interpreter
from wkvm.kernels.weight import quantised


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


@starts_the_interpreter
def test_products_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "added")
