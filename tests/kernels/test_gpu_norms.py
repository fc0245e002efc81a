"""Norms and rotary positions in Triton against the reference in float64.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

import pytest
import torch
from torch import Tensor

from tests.interpreter import DEVICES, run_in_the_interpreter, starts_the_interpreter
from wkvm.kernels import reference
from wkvm.kernels.reference.norms import GateActivation


def normal(*shape: int, device: str, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw).to(device)


def near(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact.double(), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_norm_of_whole_tokens_and_of_heads_in_a_wider_tensor(device: str) -> None:
    from wkvm.kernels.gpu.norms import rms_norm

    x = normal(3, 40, device=device)
    weight = normal(40, device=device, seed=1)
    near(rms_norm(x, weight, 1e-6), reference.rms_norm(x.double(), weight.double(), 1e-6))
    heads = normal(3, 5, 2, 24, device=device)[:, :, 1]
    weight = normal(24, device=device, seed=1)
    near(rms_norm(heads, weight, 1e-3), reference.rms_norm(heads.double(), weight.double(), 1e-3))
    assert rms_norm(heads.half(), weight, 1e-3, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_goes_on_beside_its_norm(device: str) -> None:
    from wkvm.kernels.gpu.norms import add_rms_norm

    wide = normal(3, 90, device=device).half()
    x, added = wide[:, :40], wide[:, 45:85]
    weight = normal(40, device=device, seed=1)
    total, normed = add_rms_norm(x, added, weight, 1e-6, scale=0.3, dtype=torch.float32)
    exact = x.double() + 0.3 * added.double()
    torch.testing.assert_close(total.double(), exact, rtol=1e-3, atol=1e-4)
    # The norm is of the sum as it goes on: rounded.
    near(normed, reference.rms_norm(total.double(), weight.double(), 1e-6))
    assert (total.dtype, normed.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
@pytest.mark.parametrize("gate_first", [False, True])
def test_a_gate_before_the_norm_or_after(
    gate_first: bool, gate: GateActivation, device: str
) -> None:
    from wkvm.kernels.gpu.norms import gated_rms_norm

    both = normal(3, 2, 48, device=device)
    y, z = both[:, 0], both[:, 1]
    weight = normal(48, device=device, seed=1)
    for group in (48, 12):
        exact = reference.gated_rms_norm(
            y.double(),
            z.double().contiguous(),
            weight.double(),
            1e-5,
            group=group,
            gate=gate,
            gate_first=gate_first,
        )
        found = gated_rms_norm(y, z, weight, 1e-5, group=group, gate=gate, gate_first=gate_first)
        near(found, exact)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gated_norm_of_heads_shares_one_weight(device: str) -> None:
    from wkvm.kernels.gpu.norms import gated_rms_norm

    y, z = normal(2, 3, 10, device=device), normal(2, 3, 10, device=device, seed=3)
    weight = normal(10, device=device, seed=1)
    exact = reference.gated_rms_norm(
        y.double(), z.double(), weight.double(), 1e-5, group=10, gate_first=False
    )
    near(gated_rms_norm(y, z, weight, 1e-5, group=10, gate_first=False), exact)


@pytest.mark.parametrize("device", DEVICES)
def test_rotary_turns_the_first_elements_of_heads_in_place(device: str) -> None:
    from wkvm.kernels.gpu.elementwise import rotary

    wide = normal(3, 7, 20, device=device)
    q, k = wide[:, 1:6], wide[:, 6:]
    frequencies = torch.tensor([1.0, 0.3, 0.01], device=device)
    positions = torch.tensor([0, 5, 1000], dtype=torch.int32, device=device)
    before = wide.clone()
    rotary(q, k, frequencies, positions, 1.5)
    exact = before.double()
    reference.rotary(exact[:, 1:6], exact[:, 6:], frequencies.double(), positions, 1.5)
    torch.testing.assert_close(wide.double(), exact, rtol=1e-4, atol=2e-4)
    assert torch.equal(wide[:, 0], before[:, 0])
    assert torch.equal(wide[:, 1:, 6:], before[:, 1:, 6:])


@pytest.mark.parametrize("device", DEVICES)
def test_the_activation_between_the_products_of_an_mlp(device: str) -> None:
    from wkvm.kernels.gpu.elementwise import swiglu

    gate_up = normal(3, 30, device=device)[:, 2:28]
    near(swiglu(gate_up), reference.swiglu(gate_up.double()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_channel", [False, True])
def test_gates_of_slow_decays_and_fast_ones(by_channel: bool, device: str) -> None:
    from wkvm.kernels.gpu.elementwise import delta_gates

    wide = 6 * normal(4, 40, device=device)
    wide[:2, :4] = torch.tensor([-40.0, -15.0, -2.77, 80.0], device=device)
    strength = wide[:, 30:33]
    decay = wide[:, :24].view(4, 3, 8) if by_channel else wide[:, :3]
    A = -torch.tensor([0.5, 3.0, 16.0], device=device)
    dt_bias = 0.01 * normal(*decay.shape[1:], device=device)
    g, beta = delta_gates(decay, strength, A, dt_bias, 2.0)
    exact = reference.delta_gates(
        decay.double(), strength.double(), A.double(), dt_bias.double(), 2.0
    )
    torch.testing.assert_close(g.double(), exact[0], rtol=1e-5, atol=0.0)
    near(beta, exact[1])
    assert g.is_contiguous()


@starts_the_interpreter
def test_norms_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter")
