"""A mixture of experts in Triton: which ones a token goes through, their products, and gates."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from wkvm.kernels import reference
from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.reference.routing import Shared
from wkvm.kernels.weight import Weight, quantised


def drawn(*sizes: int, device: str) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(device)


def by_expert(routed: tuple[Tensor, Tensor], n_experts: int) -> Tensor:
    """``[T, E]``: the shares of all experts."""
    shares, ids = routed
    assert all(len(set(row)) == len(row) for row in ids.tolist())
    of_all = torch.zeros(len(ids), n_experts, device=ids.device)
    return of_all.scatter_(1, ids, shares).cpu()


@starts_the_interpreter
def test_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "cpu")


if INTERPRETED or torch.cuda.is_available():
    from wkvm.kernels.gpu import routing
    from wkvm.kernels.gpu.experts import ExpertBlocks, experts

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize(
        ("activation", "n_few"), [("swiglu", 4096), ("relu2", 4096), ("swiglu", 0)]
    )
    @pytest.mark.parametrize(
        ("n_tokens", "width", "inner", "n_experts", "n_choices"),
        [(5, 40, 24, 7, 3), (1, 24, 16, 5, 5), (37, 48, 40, 2, 1)],
    )
    def test_it_is_the_sum_of_its_experts(
        device: str,
        activation: ExpertActivation,
        n_few: int,
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
        exact = (Weight(first.double()), Weight(second.double()), ids, shares.double())
        expected = reference.experts(x.double(), *exact, activation=activation)
        given = experts(
            x.to(device),
            Weight(first.to(device)),
            Weight(second.to(device)),
            ids.to(device),
            shares.to(device),
            activation=activation,
            blocks=ExpertBlocks(16, 16, 16),
            n_few=n_few,
        )
        assert (given.cpu() - expected).abs().max() < 1e-5 * expected.abs().max()

    @pytest.mark.gpu
    @pytest.mark.parametrize("quantization", ["none", "fp8", "int8"])
    @pytest.mark.parametrize("n_tokens", [1, 32, 256, 2048])
    def test_it_is_right_in_the_shape_of_a_large_model(quantization: str, n_tokens: int) -> None:
        draw = torch.Generator("cuda").manual_seed(n_tokens)
        n_experts, n_choices, width, inner = 64, 10, 2048, 512

        def normal(*size: int) -> Tensor:
            values: Tensor = torch.randn(*size, device="cuda", generator=draw)
            scaled: Tensor = values * size[-1] ** -0.5
            return scaled.to(torch.bfloat16)

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
        values: Tensor = weight.values.double()
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

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("is_renormalised", [True, False])
    @pytest.mark.parametrize(
        ("n_experts", "n_chosen", "shared"), [(6, 2, "none"), (64, 10, "gated"), (3, 3, "whole")]
    )
    def test_softmax_chooses_as_the_plain_function(
        device: str, n_experts: int, n_chosen: int, shared: Shared, is_renormalised: bool
    ) -> None:
        logits = drawn(3, n_experts + (shared == "gated"), device=device)
        found, wanted = (
            kernels.route_softmax(logits, n_chosen, is_renormalised=is_renormalised, shared=shared)
            for kernels in (routing, reference)
        )
        n_all = n_experts + 1
        assert (by_expert(found, n_all) - by_expert(wanted, n_all)).abs().max() < 1e-6

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("is_renormalised", [True, False])
    @pytest.mark.parametrize(
        ("n_experts", "n_chosen", "n_groups", "n_chosen_groups", "shared"),
        [
            (12, 3, 1, 1, "none"),
            (12, 3, 4, 2, "whole"),
            (15, 4, 3, 1, "gated"),
            (40, 5, 5, 3, "none"),
        ],
    )
    def test_sigmoids_choose_as_the_plain_function(
        device: str,
        n_experts: int,
        n_chosen: int,
        n_groups: int,
        n_chosen_groups: int,
        shared: Shared,
        is_renormalised: bool,
    ) -> None:
        logits = drawn(4, n_experts + (shared == "gated"), device=device)
        bias = drawn(n_experts, device=device)
        found, wanted = (
            by_expert(
                kernels.route_sigmoid(
                    logits,
                    bias,
                    n_chosen,
                    n_groups=n_groups,
                    n_chosen_groups=n_chosen_groups,
                    is_renormalised=is_renormalised,
                    scale=2.5,
                    shared=shared,
                ),
                n_experts + 1,
            )
            for kernels in (routing, reference)
        )
        assert (found - wanted).abs().max() < 1e-6

    # The interpreter is numpy, which warns of them.
    @pytest.mark.filterwarnings("ignore:invalid value")
    @pytest.mark.parametrize("device", DEVICES)
    def test_logits_that_are_nan_choose_experts_that_there_are(device: str) -> None:
        logits = torch.full((2, 5), float("nan"), device=device)
        _, ids = routing.route_softmax(logits, 3, is_renormalised=True)
        assert ids.min() >= 0
        assert ids.max() < 5

    @pytest.mark.parametrize("device", DEVICES)
    def test_a_gate_of_heads_opens_as_the_plain_function(device: str) -> None:
        both = drawn(3, 5, 24, device=device)
        y, gate = drawn(3, 5, 12, device=device), both[..., 12:]
        found = routing.open_gate(y, gate)
        assert (found - reference.open_gate(y, gate)).abs().max() < 1e-6

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("has_gate", [True, False])
    def test_a_shared_expert_is_added_as_by_the_plain_function(device: str, has_gate: bool) -> None:
        y, shared = drawn(3, 70, device=device), drawn(70, 3, device=device).view(3, 70)
        gate = drawn(3, 1, device=device) if has_gate else None
        found = routing.add_shared(y, shared, gate)
        assert (found - reference.add_shared(y, shared, gate)).abs().max() < 1e-6
