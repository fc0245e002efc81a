"""The recurrence of Mamba-2 on a CPU against the reference."""

import pytest
import torch
from torch import Tensor

from wkvm.kernels import cpu, reference
from wkvm.kernels.rows import Rows

SLOTS, LENGTHS = (3, -1, 0), (131, 9, 64)


def inputs(strength: float) -> tuple[list[Tensor], Tensor]:
    """x, dt, A, B, C, D and a state, in float64."""
    draw = torch.Generator().manual_seed(5)
    T, H, P, G, N = sum(LENGTHS), 6, 5, 3, 7

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    steps = torch.nn.functional.softplus(normal(T, H))
    decays = -strength * torch.rand(H, generator=draw, dtype=torch.float64)
    of_tokens = [normal(T, H, P), steps, decays, normal(T, G, N), normal(T, G, N), normal(H)]
    return of_tokens, normal(4, H, P, N)


@pytest.mark.parametrize("strength", [0.01, 1.0, 500.0])
def test_prompts_of_several_chunks_meet_the_reference_whatever_the_decays(strength: float) -> None:
    rows = Rows(torch.tensor(SLOTS, dtype=torch.int32), SLOTS, LENGTHS)
    exact, exact_state = inputs(strength)
    x, dt, A, B, C, D = (each.float() for each in exact)
    state = exact_state.float()
    y = cpu.ssd(x, dt, A, B, C, D, state, rows)
    expected = reference.ssd(
        exact[0], exact[1], exact[2], exact[3], exact[4], exact[5], exact_state, rows
    )
    torch.testing.assert_close(y, expected.float(), rtol=2e-6, atol=5e-5)
    torch.testing.assert_close(state, exact_state.float(), rtol=2e-6, atol=2e-5)
