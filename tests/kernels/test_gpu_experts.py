"""The products of a mixture of experts in Triton."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from wkvm.kernels.weight import Weight, quantised

ACTIVATIONS = ["swiglu", "relu2"]


def exact(
    x: Tensor, first: Tensor, second: Tensor, ids: Tensor, shares: Tensor, activation: str
) -> Tensor:
    """Each token with each of its experts, in float64."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for token, (chosen, of_token) in enumerate(zip(ids.tolist(), shares.double(), strict=True)):
        for expert, share in zip(chosen, of_token, strict=True):
            hidden = first[expert].double() @ x[token].double()
            if activation == "swiglu":
                gate, up = hidden.chunk(2)
                hidden = silu(gate) * up
            else:
                hidden = hidden.relu().square()
            out[token] += share * (second[expert].double() @ hidden)
    return out


@starts_the_interpreter
def test_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "cpu")


if INTERPRETED or torch.cuda.is_available():
    from wkvm.kernels.gpu.experts import ExpertBlocks, experts

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize(
        ("n_tokens", "width", "inner", "n_experts", "n_choices"),
        [(5, 40, 24, 7, 3), (1, 24, 16, 5, 5), (37, 48, 40, 2, 1)],
    )
    def test_it_is_the_sum_of_its_experts(
        device: str,
        activation: str,
        n_tokens: int,
        width: int,
        inner: int,
        n_experts: int,
        n_choices: int,
    ) -> None:
        draw = torch.Generator().manual_seed(n_tokens)
        x = torch.randn(n_tokens, width, generator=draw)
        n_first = 2 * inner if activation == "swiglu" else inner
        first = torch.randn(n_experts, n_first, width, generator=draw) * 0.2
        second = torch.randn(n_experts, width, inner, generator=draw) * 0.2
        rows = [torch.randperm(n_experts, generator=draw)[:n_choices] for _ in range(n_tokens)]
        ids, shares = torch.stack(rows), torch.rand(n_tokens, n_choices, generator=draw)
        expected = exact(x, first, second, ids, shares, activation)
        given = experts(
            x.to(device),
            Weight(first.to(device)),
            Weight(second.to(device)),
            ids.to(device),
            shares.to(device),
            activation=activation,
            blocks=ExpertBlocks(16, 16, 16),
        )
        assert (given.cpu() - expected).abs().max() < 1e-5 * expected.abs().max()

    @pytest.mark.gpu
    @pytest.mark.parametrize("quantization", ["none", "fp8", "int8"])
    @pytest.mark.parametrize("n_tokens", [1, 32, 256, 2048])
    def test_it_is_right_in_the_shape_of_a_large_model(quantization: str, n_tokens: int) -> None:
        draw = torch.Generator("cuda").manual_seed(n_tokens)
        n_experts, n_choices, width, inner = 64, 10, 2048, 512

        def normal(*size: int) -> Tensor:
            values = torch.randn(*size, device="cuda", generator=draw)
            return (values * size[-1] ** -0.5).bfloat16()

        x = normal(n_tokens, width)
        first, second = normal(n_experts, 2 * inner, width), normal(n_experts, width, inner)
        scores = torch.rand(n_tokens, n_experts, device="cuda", generator=draw)
        ids = scores.topk(n_choices).indices
        shares = torch.rand(n_tokens, n_choices, device="cuda", generator=draw)
        one, two = quantised(first, quantization), quantised(second, quantization)
        expected = exact_by_expert(x, plain(one), plain(two), ids, shares)
        given = experts(x, one, two, ids, shares, activation="swiglu")
        assert (given - expected).norm() < 5e-3 * expected.norm()

    def plain(weight: Weight) -> Tensor:
        """The values that a weight stands for."""
        values = weight.values.double()
        return values if weight.scales is None else values * weight.scales.double()[..., None]

    def exact_by_expert(
        x: Tensor, first: Tensor, second: Tensor, ids: Tensor, shares: Tensor
    ) -> Tensor:
        """As ``exact``, of many tokens."""
        out = torch.zeros_like(x, dtype=torch.float64)
        for expert in range(len(first)):
            token, choice = (ids == expert).nonzero(as_tuple=True)
            gate, up = (x[token].double() @ first[expert].t()).chunk(2, 1)
            hidden = (silu(gate) * up) @ second[expert].t()
            out.index_add_(0, token, hidden * shares[token, choice].double()[:, None])
        return out
