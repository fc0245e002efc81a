"""Mixtures of experts against loops over tokens in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from wkvm.kernels.grouped import grouped_linear
from wkvm.kernels.linear import linear
from wkvm.kernels.rows import Rows
from wkvm.models.parts.mlp import ACTIVATIONS, GatedMlp, Mlp, squared_relu
from wkvm.models.parts.moe import Experts, Moe, Router, SigmoidRouter, SoftmaxRouter
from wkvm.models.parts.step import Step

T, C, E, K, I = 13, 10, 12, 3, 7
STEP = Step(Rows(torch.zeros(1, dtype=torch.int32), (0,), (T,)), {})


def normal(*sizes: int) -> Tensor:
    return 0.5 * torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def sigmoid_router(n_groups: int, n_chosen_groups: int, is_renormalised: bool) -> SigmoidRouter:
    return SigmoidRouter(
        weight=normal(E, C),
        bias=normal(E) * 0.5,
        n_chosen=K,
        n_groups=n_groups,
        n_chosen_groups=n_chosen_groups,
        is_renormalised=is_renormalised,
        scale=2.5,
    )


def by_expert(weights: Tensor, experts: Tensor) -> Tensor:
    return torch.zeros(len(weights), E).scatter_(1, experts, weights)


@pytest.mark.parametrize("is_renormalised", [True, False])
def test_the_most_probable_experts_are_chosen(is_renormalised: bool) -> None:
    router = SoftmaxRouter(weight=normal(E, C), n_chosen=K, is_renormalised=is_renormalised)
    x = normal(T, C)
    found = by_expert(*router(x))
    for token, weights in zip(x.double(), found, strict=True):
        probabilities = (router.weight.double() @ token).softmax(0)
        expected = probabilities.where(probabilities >= probabilities.sort().values[-K], 0)
        if is_renormalised:
            expected = expected / expected.sum()
        assert (weights - expected).abs().max() < 1e-6


@pytest.mark.parametrize("is_renormalised", [True, False])
@pytest.mark.parametrize(("n_groups", "n_chosen_groups"), [(1, 1), (4, 2), (3, 1), (2, 2)])
def test_sigmoid_scores_are_chosen_with_a_bias_and_within_groups(
    n_groups: int, n_chosen_groups: int, is_renormalised: bool
) -> None:
    router = sigmoid_router(n_groups, n_chosen_groups, is_renormalised)
    x = normal(T, C)
    found = by_expert(*router(x))
    for token, weights in zip(x.double(), found, strict=True):
        scores = (router.weight.double() @ token).sigmoid()
        choice = (scores + router.bias).tolist()
        size = E // n_groups
        groups = [range(at, at + size) for at in range(0, E, size)]
        groups.sort(key=lambda group: -sum(sorted(choice[e] for e in group)[-2:]))
        allowed = [e for group in groups[:n_chosen_groups] for e in group]
        chosen = sorted(allowed, key=lambda e: -choice[e])[:K]
        expected = torch.zeros(E, dtype=torch.float64)
        expected[chosen] = scores[chosen]
        if is_renormalised:
            expected = expected / expected.sum()
        assert (weights - 2.5 * expected).abs().max() < 1e-6


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("n_tokens", [1, T])
def test_each_token_goes_through_its_experts(n_tokens: int, is_gated: bool) -> None:
    up, down = normal(E, 2 * I if is_gated else I, C), normal(E, C, I)
    activation: Callable[[Tensor], Tensor] = silu if is_gated else squared_relu
    experts = Experts(
        n_experts=E,
        project=grouped_linear(up),
        activation=activation,
        output=grouped_linear(down),
        is_gated=is_gated,
    )
    x = normal(n_tokens, C)
    weights, chosen = SoftmaxRouter(weight=normal(E, C), n_chosen=K, is_renormalised=True)(x)
    found = experts(x, weights, chosen)
    for token, row in enumerate(x.double()):
        expected = torch.zeros(C, dtype=torch.float64)
        for weight, expert in zip(weights[token].tolist(), chosen[token].tolist(), strict=True):
            hidden = up[expert].double() @ row
            hidden = silu(hidden[:I]) * hidden[I:] if is_gated else hidden.relu() ** 2
            expected += weight * (down[expert].double() @ hidden)
        assert (found[token] - expected).abs().max() < 1e-5


def test_grouped_products_on_a_gpu_are_given_what_torch_takes() -> None:
    """The same call, which torch has for a CPU too."""
    weight, x = normal(3, 8, 16), normal(6, 16)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    found = torch.nn.functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    assert (found - grouped_linear(weight)(x, ends)).abs().max() < 1e-5


def mlp(width: int) -> Mlp:
    return Mlp(
        project=linear(normal(I, width)), activation=squared_relu, output=linear(normal(width, I))
    )


def moe(router: Router, *, gate: bool = False, width: int | None = None) -> Moe:
    inner = width or C
    return Moe(
        router=router,
        experts=Experts(
            n_experts=E,
            project=grouped_linear(normal(E, I, inner)),
            activation=squared_relu,
            output=grouped_linear(normal(E, inner, I)),
            is_gated=False,
        ),
        shared=mlp(C),
        shared_gate=linear(normal(1, C)) if gate else None,
        narrow=None if width is None else linear(normal(width, C)),
        widen=None if width is None else linear(normal(C, width)),
    )


@pytest.mark.parametrize("has_gate", [True, False])
def test_a_shared_expert_is_added(has_gate: bool) -> None:
    part, x = moe(sigmoid_router(1, 1, True), gate=has_gate), normal(T, C)
    shared = mlp(C)(x, STEP)
    if has_gate:
        shared = (x @ normal(1, C).t()).sigmoid() * shared
    weights, experts = part.router(x)
    assert (part(x, STEP) - part.experts(x, weights, experts) - shared).abs().max() < 1e-5


def test_routed_experts_may_work_at_another_width() -> None:
    part, x = moe(sigmoid_router(1, 1, True), width=4), normal(T, C)
    weights, experts = part.router(x)
    routed = part.experts(x @ normal(4, C).t(), weights, experts) @ normal(C, 4).t()
    assert (part(x, STEP) - routed - mlp(C)(x, STEP)).abs().max() < 1e-5


def test_multipliers_of_a_gated_layer_stand_where_they_belong() -> None:
    gate_up, down, x = normal(2 * I, C), normal(C, I), normal(T, C)
    part = GatedMlp(
        project=linear(gate_up),
        activation=ACTIVATIONS["gelu_pytorch_tanh"],
        output=linear(down),
        gate_scale=0.5,
        output_scale=3.0,
    )
    gate, up = (x @ gate_up.t()).chunk(2, 1)
    gelu = torch.nn.functional.gelu(gate * 0.5, approximate="tanh")
    assert (part(x, STEP) - 3.0 * (gelu * up) @ down.t()).abs().max() < 1e-5
