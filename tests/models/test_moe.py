"""Mixtures of experts against loops over tokens in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from wkvm.kernels import cpu
from wkvm.kernels.linear import linear
from wkvm.kernels.reference.routing import Shared
from wkvm.kernels.rows import Rows
from wkvm.kernels.weight import Weight
from wkvm.models.parts.mlp import ACTIVATIONS, Mlp, gated, squared_relu
from wkvm.models.parts.moe import Moe, Router, SigmoidRouter, SoftmaxRouter
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
    found = by_expert(*router(x, cpu))
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
    found = by_expert(*router(x, cpu))
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


@pytest.mark.parametrize("shared", ["whole", "gated"])
def test_a_shared_expert_is_a_last_choice_of_all_tokens(shared: Shared) -> None:
    has_gate = shared == "gated"
    weight, x = normal(E + has_gate, C), normal(T, C)
    routed = sigmoid_router(1, 1, True)
    soft = SoftmaxRouter(weight=weight[:E], n_chosen=K, is_renormalised=True)
    for alone in (replace(routed, weight=weight[:E]), soft):
        shares, ids = replace(alone, weight=weight, shared=shared)(x, cpu)
        found_shares, found_ids = alone(x, cpu)
        assert torch.equal(ids[:, :K], found_ids)
        assert (shares[:, :K] - found_shares).abs().max() < 1e-6
        assert ids[:, K].eq(E).all()
        expected = (x @ weight[-1]).sigmoid() if has_gate else torch.ones(T)
        assert (shares[:, K] - expected).abs().max() < 1e-6


def mlp(width: int) -> Mlp:
    return Mlp(
        project=linear(normal(I, width)), activation=squared_relu, output=linear(normal(width, I))
    )


def moe(router: Router, *, gate: bool = False, width: int | None = None) -> Moe:
    inner = width or C
    return Moe(
        kernels=cpu,
        router=router,
        first=Weight(normal(E, I, inner)),
        second=Weight(normal(E, inner, I)),
        activation="relu2",
        shared=mlp(C),
        shared_gate=linear(normal(1, C)) if gate else None,
        narrow=None if width is None else linear(normal(width, C)),
        widen=None if width is None else linear(normal(C, width)),
    )


def routed(part: Moe, x: Tensor, seen: Tensor) -> Tensor:
    """What the routed experts make of ``seen`` where the router sees ``x``."""
    shares, ids = part.router(x, cpu)
    return cpu.experts(seen, part.first, part.second, ids, shares, activation="relu2")


@pytest.mark.parametrize("has_gate", [True, False])
def test_a_shared_expert_is_added(has_gate: bool) -> None:
    part, x = moe(sigmoid_router(1, 1, True), gate=has_gate), normal(T, C)
    shared = mlp(C)(x, STEP)
    if has_gate:
        shared = (x @ normal(1, C).t()).sigmoid() * shared
    assert (part(x, STEP) - routed(part, x, x) - shared).abs().max() < 1e-5


def test_routed_experts_may_work_at_another_width() -> None:
    part, x = moe(sigmoid_router(1, 1, True), width=4), normal(T, C)
    wide = routed(part, x, x @ normal(4, C).t()) @ normal(C, 4).t()
    assert (part(x, STEP) - wide - mlp(C)(x, STEP)).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
def test_a_gate_opens_what_lies_behind_it(name: str) -> None:
    gate_up, down, x = normal(2 * I, C), normal(C, I), normal(T, C)
    part = Mlp(project=linear(gate_up), activation=gated(cpu, name), output=linear(down))
    gate, up = (x @ gate_up.t()).chunk(2, 1)
    expected = (ACTIVATIONS[name](gate) * up) @ down.t()
    assert (part(x, STEP) - expected).abs().max() < 1e-5
