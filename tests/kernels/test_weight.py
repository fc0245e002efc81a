"""Quantised matrices: how far they are from what they stand for."""

import pytest
import torch

from wkvm.kernels.weight import QUANTISED, quantised


@pytest.mark.parametrize(("quantization", "error"), [("fp8", 0.03), ("int8", 0.012)])
def test_a_quantised_matrix_is_near_the_matrix_in_every_row(
    quantization: str, error: float
) -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-6, 4, 32)[:, None]
    matrix = torch.randn(32, 512, generator=draw) * sizes
    before = matrix.clone()
    weight = quantised(matrix, quantization)
    assert weight.values.dtype == QUANTISED[quantization]
    assert weight.scales is not None
    back = weight.values.float() * weight.scales[:, None]
    assert ((back - matrix).norm(dim=1) / matrix.norm(dim=1)).max() < error
    assert torch.equal(matrix, before)
    assert weight.nbytes == 32 * 512 + 32 * 4


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_a_row_of_zeros_stays_one(quantization: str) -> None:
    weight = quantised(torch.zeros(2, 16, dtype=torch.bfloat16), quantization)
    assert weight.scales is not None
    assert weight.scales.isfinite().all()
    assert (weight.values.float() == 0).all()


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_the_largest_of_a_row_is_kept_and_all_are_finite(quantization: str) -> None:
    matrix = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    weight = quantised(matrix, quantization)
    assert weight.scales is not None
    back = weight.values.float() * weight.scales[:, None]
    largest = matrix.float().abs().amax(1)
    assert torch.allclose(back.abs().amax(1), largest, rtol=1e-6)
    assert back.isfinite().all()


def test_without_quantization_a_matrix_is_held_as_it_is() -> None:
    matrix = torch.randn(4, 4)
    weight = quantised(matrix, "none")
    assert weight.values is matrix
    assert weight.scales is None


def test_rows_of_a_weight_are_a_view_with_their_scales() -> None:
    weight = quantised(torch.randn(8, 16), "int8")
    part = weight.rows(2, 5)
    assert weight.scales is not None
    assert part.scales is not None
    assert torch.equal(part.scales, weight.scales[2:5])
    assert part.values.data_ptr() == weight.values[2:5].data_ptr()
