"""The kernels of Mamba-2 on a CPU against the reference."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.kernels.cases import ROWS, rows_of
from tests.kernels.ssd_cases import Shape, exactly, same_records, ssd_case
from wkvm.kernels import cpu, reference
from wkvm.kernels.rows import Rows

SLOTS, LENGTHS = (3, -1, 0), (131, 9, 64)

SHAPES: list[Shape] = [(3, 24, 1, 16, 4), (4, 16, 2, 32, 2), (8, 5, 4, 128, 3)]


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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROWS)
def test_a_mix_meets_the_reference_and_touches_only_its_slots(name: str, shape: Shape) -> None:
    rows = rows_of(name)
    case = ssd_case(rows, shape)
    expected, exact = exactly(case, rows)
    y = case.mixed(cpu.ssd_mix, rows)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=2e-5)
    same_records(case, exact, 1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_outputs_of_pad_rows_are_zeros(name: str) -> None:
    rows = rows_of(name)
    y = ssd_case(rows, SHAPES[0]).mixed(cpu.ssd_mix, rows)
    assert not y[rows.pad_tokens].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_a_state_of_16_bits_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    rows = rows_of(name)
    case = ssd_case(rows, SHAPES[1], state_dtype=dtype)
    _, exact = exactly(case, rows)
    case.mixed(cpu.ssd_mix, rows)
    # Half a unit in the last place: of 11 or 8 bits.
    same_records(case, exact, 2**-11 if dtype == torch.float16 else 2**-8)


def test_a_prompt_in_pieces_leaves_the_state_of_the_whole() -> None:
    rows = Rows(torch.tensor([2], dtype=torch.int32), (2,), (150,))
    whole, cut = (ssd_case(rows, SHAPES[1], has_bias=False) for _ in range(2))
    y = whole.mixed(cpu.ssd_mix, rows)
    edges = [0, 1, 3, 70, 71, 134, 150]
    for start, end in pairwise(edges):
        piece = Rows(rows.slots, rows.slot_list, (end - start,))
        after = cut.of_tokens(slice(start, end)).mixed(cpu.ssd_mix, piece)
        torch.testing.assert_close(after, y[start:end], rtol=1e-5, atol=2e-5)
    same_records(cut, whole.exact(), 1e-5)
