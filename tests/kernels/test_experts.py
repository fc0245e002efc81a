"""Experts on a CPU against each token with each of its experts in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from wkvm.kernels import cpu, reference
from wkvm.kernels.interface import Kernels
from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.weight import Weight, quantised

E, C, F, K = 9, 10, 7, 3


def normal(*sizes: int) -> Tensor:
    return 0.5 * torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def case(n_tokens: int, activation: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_first = 2 * F if activation == "swiglu" else F
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(n_tokens)])
    return normal(n_tokens, C), normal(E, n_first, C), normal(E, C, F), ids, normal(n_tokens, K)


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("activation", ["swiglu", "relu2"])
@pytest.mark.parametrize("n_tokens", [1, 13])
def test_a_token_is_the_sum_of_its_experts_by_their_shares(
    n_tokens: int, activation: ExpertActivation, kernels: Kernels
) -> None:
    x, first, second, ids, shares = case(n_tokens, activation)
    found = kernels.experts(x, Weight(first), Weight(second), ids, shares, activation=activation)
    for token, row in enumerate(x.double()):
        expected = torch.zeros(C, dtype=torch.float64)
        for share, expert in zip(shares[token].tolist(), ids[token].tolist(), strict=True):
            hidden = first[expert].double() @ row
            is_gated = activation == "swiglu"
            hidden = silu(hidden[:F]) * hidden[F:] if is_gated else hidden.relu() ** 2
            expected += share * (second[expert].double() @ hidden)
        assert (found[token] - expected).abs().max() < 1e-5


def test_the_reference_multiplies_quantised_experts_by_their_scales() -> None:
    x, first, second, ids, shares = case(2, "relu2")
    held = quantised(first, "int8"), quantised(second, "int8")
    found = reference.experts(x, *held, ids, shares, activation="relu2")
    plain = reference.experts(x, Weight(first), Weight(second), ids, shares, activation="relu2")
    assert 0 < (found - plain).abs().max() < 0.05 * plain.abs().max()


def test_quantised_experts_are_no_matter_of_a_cpu() -> None:
    x, first, second, ids, shares = case(2, "relu2")
    with pytest.raises(ValueError, match="GPU"):
        cpu.experts(x, quantised(first, "int8"), Weight(second), ids, shares, activation="relu2")
