"""Products with fixed weights: whatever form the weights are kept in, the result is float32's."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from wkvm.kernels.linear import PACKED_MIN_ELEMENTS, THREADED_MIN_ROWS, linear

OUT, IN = 96, 80
ROWS = [1, 2, 5, THREADED_MIN_ROWS - 1, THREADED_MIN_ROWS, 70]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(kind: str) -> Tensor:
    assert OUT * IN >= PACKED_MIN_ELEMENTS
    weight = torch.randn(OUT, IN, generator=torch.Generator().manual_seed(0)) * 0.1
    if kind.endswith("bfloat16"):
        weight = weight.bfloat16().float()
    if kind == "small bfloat16":
        weight *= 2.0**-6
    if kind == "large bfloat16":
        weight *= 2.0**20
    if kind == "vanishing bfloat16":
        weight *= 2.0**-100
    if kind == "tiny values":
        weight *= 1e-6
    if kind == "huge values":
        weight *= 1e6
    return weight


@pytest.mark.parametrize("n_rows", ROWS)
@pytest.mark.parametrize(
    "kind",
    [
        "float32",
        "bfloat16",
        "small bfloat16",
        "large bfloat16",
        "vanishing bfloat16",
        "tiny values",
        "huge values",
    ],
)
def test_the_result_is_as_exact_as_float32_products_are(kind: str, n_rows: int) -> None:
    weight, x = weights(kind), torch.randn(n_rows, IN)
    exact = x.double() @ weight.double().t()
    error = (linear(weight)(x) - exact).norm() / exact.norm()
    # Weights cut to float16 would give 2e-4.
    assert error < 1e-6


@pytest.mark.parametrize("n_rows", ROWS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "small bfloat16"])
def test_a_bias_is_added(kind: str, n_rows: int) -> None:
    weight, bias, x = weights(kind), torch.randn(OUT), torch.randn(n_rows, IN)
    without = linear(weight)(x)
    assert torch.allclose(linear(weight, bias)(x), without + bias, atol=1e-6)


def test_a_packed_row_has_the_same_bits_among_any_number_of_rows() -> None:
    product, x = linear(weights("bfloat16")), torch.randn(70, IN)
    together = product(x)
    assert all(torch.equal(product(x[row : row + 1])[0], together[row]) for row in range(70))


@pytest.mark.parametrize("power", [-6, 20])
def test_a_matrix_times_a_power_of_two_has_the_same_bits_times_that(power: int) -> None:
    weight, x = weights("bfloat16"), torch.randn(3, IN)
    assert torch.equal(linear(weight * 2.0**power)(x), linear(weight)(x) * 2.0**power)


def test_threads_change_no_bit_of_a_packed_product() -> None:
    product, x = linear(weights("bfloat16")), torch.randn(THREADED_MIN_ROWS, IN)
    expected = product(x)
    torch.set_num_threads(2)
    assert torch.equal(product(x), expected)


def test_without_the_entry_that_torch_means_to_remove_the_other_does_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, expected = torch.randn(3, IN), linear(weights("bfloat16"))
    monkeypatch.delattr(torch, "fbgemm_linear_fp16_weight_fp32_activation")
    assert torch.equal(linear(weights("bfloat16"))(x), expected(x))


def test_torch_is_kept_from_warning_even_the_first_time() -> None:
    code = """
import torch
from wkvm.kernels.linear import linear
linear(torch.ones(96, 80))(torch.ones(1, 80))
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
