"""The kernels of Mamba-2 in Triton against float64: outputs, states, and what stays untouched.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

from dataclasses import replace

import pytest
import torch

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.kernels.cases import rows_of
from tests.kernels.ssd_cases import Shape, SsdCase, exactly, same_records, ssd_case
from tests.models.float64_step import relative
from wkvm.kernels.rows import Rows

SMALL: list[Shape] = [(3, 24, 1, 16, 4), (4, 16, 2, 32, 2)]
LARGE: list[Shape] = [(80, 64, 1, 128, 4), (8, 64, 4, 256, 3), (6, 24, 2, 16, 2)]
SHAPES = SMALL if INTERPRETED else LARGE

BARS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Relative norms: what is convolved, and outputs, are rounded to the dtype."""

# The interpreter multiplies no matrices of bfloat16, and rounds to it in a way of its own.
DTYPES = [torch.float32, torch.float16 if INTERPRETED else torch.bfloat16]

LONG = ((4, -1, 0, 2), (5, 20, 1, 50) if INTERPRETED else (5, 20, 1, 1600))


def long_rows(device: str) -> Rows:
    """Prompts, one of them of many chunks."""
    slots, lengths = LONG
    return Rows(torch.tensor(slots, dtype=torch.int32, device=device), slots, lengths)


def zeros_of_pads(y: torch.Tensor, rows: Rows) -> bool:
    return not y[rows.pad_tokens].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_token_of_each_row_meets_float64_and_touches_only_its_slots(
    shape: Shape, dtype: torch.dtype, device: str
) -> None:
    from wkvm.kernels import gpu

    rows = rows_of("decode with pad rows", device)
    case = ssd_case(rows, shape, dtype=dtype)
    expected, exact = exactly(case, rows)
    y = case.mixed(gpu.ssd_mix, Rows.of_decode(rows.slots))
    assert relative(y, expected) < BARS[dtype]
    assert zeros_of_pads(y, rows)
    same_records(case, exact, BARS[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", sorted({torch.float16, DTYPES[1]}, key=str))
def test_a_state_of_16_bits_is_rounded_once_a_token(dtype: torch.dtype, device: str) -> None:
    from wkvm.kernels import gpu

    rows = rows_of("decode", device)
    case = ssd_case(rows, SHAPES[0], state_dtype=dtype)
    _, exact = exactly(case, rows)
    case.mixed(gpu.ssd_mix, rows)
    same_records(case, exact, 2**-11 if dtype == torch.float16 else 2**-8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_meet_float64_and_touch_only_their_slots(
    shape: Shape, dtype: torch.dtype, device: str
) -> None:
    from wkvm.kernels import gpu

    rows = long_rows(device)
    case = ssd_case(rows, shape, dtype=dtype)
    expected, exact = exactly(case, rows)
    y = case.mixed(gpu.ssd_mix, rows)
    assert relative(y, expected) < BARS[dtype]
    assert zeros_of_pads(y, rows)
    same_records(case, exact, BARS[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strength", [0.01, 500.0])
def test_prompts_meet_float64_whatever_the_decays(strength: float, device: str) -> None:
    from wkvm.kernels import gpu

    rows = rows_of("prefill and decode with pad rows", device)
    case = ssd_case(rows, SHAPES[0], strength=strength)
    expected, exact = exactly(case, rows)
    assert relative(case.mixed(gpu.ssd_mix, rows), expected) < BARS[torch.float32]
    same_records(case, exact, BARS[torch.float32])


@pytest.mark.parametrize("device", DEVICES)
def test_a_strong_decay_leaves_its_neighbours_their_digits(device: str) -> None:
    from wkvm.kernels import gpu, reference

    draw = torch.Generator().manual_seed(6)
    x, B, C = (torch.randn(16, 1, 16, generator=draw).to(device) for _ in range(3))
    dt, A, D = torch.full((16, 1), 0.01), torch.tensor([-16.0]), torch.zeros(1)
    dt[2] = 2000.0
    dt, A, D = dt.to(device), A.to(device), D.to(device)
    state = torch.zeros(1, 1, 16, 16, device=device)
    rows = Rows(torch.zeros(1, dtype=torch.int32, device=device), (0,), (16,))
    of_tokens = x.double(), dt.double(), A.double(), B.double(), C.double(), D.double()
    right = reference.ssd(*of_tokens, state.double(), rows)
    y = gpu.ssd(x, dt, A, B, C, D, state, rows)
    # Of the decays themselves 1e-3 would be left without care.
    assert relative(y[:2], right[:2]) < 5e-5
    assert relative(y[3:], right[3:]) < 5e-5


@pytest.mark.parametrize("device", DEVICES)
def test_programs_find_their_rows_also_among_more_than_a_block_of_them(device: str) -> None:
    from tests.kernels.piece_kernel import piece_kernel

    lengths = (3, 1, 8, 9, 1, 4)
    rows = Rows(torch.zeros(6, dtype=torch.int32, device=device), (0,) * 6, lengths)
    expected = [[row, piece] for row, n in enumerate(lengths) for piece in range(-(-n // 4))]
    found = torch.zeros(len(expected), 2, dtype=torch.int32, device=device)
    piece_kernel[(len(expected),)](rows.offsets, 6, found, SIZE=4, BLOCK=4)
    assert found.tolist() == expected


def recurrence(case: SsdCase, rows: Rows, span: int | None) -> torch.Tensor:
    """``ssd_prefill`` of the inputs as if they were convolved, with spans or without."""
    from wkvm.kernels.gpu.ssd_decode import RawSteps
    from wkvm.kernels.gpu.ssd_prefill import WHOLE, prefill_cut, ssd_prefill
    from wkvm.kernels.reference.ssd import heads_of

    x, B, C = heads_of(case.projected, case.state)
    cut = prefill_cut(x.dtype, x.shape[1], x.shape[2], B.shape[2], rows)
    cut = replace(cut, span=WHOLE if span is None else span)
    raw = RawSteps(case.dt_bias)
    return ssd_prefill(x, case.dt, case.A, B, C, case.D, case.state, rows, raw=raw, cut=cut)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES[-1:])
def test_no_bit_of_a_prompt_depends_on_spans(dtype: torch.dtype, device: str) -> None:
    rows = rows_of("prefill and decode with pad rows", device)
    rows = Rows(rows.slots, rows.slot_list, (70, 3, 1, 66, 1))
    case = ssd_case(rows, SHAPES[-1], dtype=dtype, state_dtype=torch.float16)
    cut = case.copied()
    y = recurrence(case, rows, None)
    assert torch.equal(recurrence(cut, rows, 64), y)
    assert torch.equal(cut.records.nan_to_num(7.0), case.records.nan_to_num(7.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES[-1:])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.float16])
def test_no_bit_of_a_prompt_depends_on_cuts_at_multiples_of_64_or_on_who_else_is_packed(
    state_dtype: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    slots = torch.tensor([2], dtype=torch.int32, device=device)
    case = ssd_case(Rows(slots, (2,), (70,)), SHAPES[-1], dtype=dtype, state_dtype=state_dtype)
    cut = case.copied()
    y = recurrence(case, Rows(slots, (2,), (70,)), None)
    first = recurrence(cut.of_tokens(slice(0, 64)), Rows(slots, (2,), (64,)), None)
    packed = torch.tensor([-1, 2], dtype=torch.int32, device=device)
    others = Rows(packed, (-1, 2), (4, 6))
    second = recurrence(cut.of_tokens(slice(60, 70)), others, None)
    assert not second[:4].any()
    assert torch.equal(torch.cat((first, second[4:])), y)
    assert torch.equal(cut.records.nan_to_num(7.0), case.records.nan_to_num(7.0))


def test_arguments_that_do_not_fit_are_refused() -> None:
    pytest.importorskip("triton")
    from wkvm.kernels.gpu.ssd_decode import check_tensors
    from wkvm.kernels.reference.ssd import heads_of

    rows = rows_of("decode")
    case = ssd_case(rows, SMALL[0])
    x, B, C = heads_of(case.projected, case.state)
    check_tensors(x, case.dt, B, C, case.state, rows, None)
    for wrong in (
        (x[:2], case.dt, B, C, case.state),
        (x, case.dt.half(), B, C, case.state),
        (x, case.dt, B[:, :, 1:], C, case.state),
        (x, case.dt, B, C.half(), case.state),
        (x, case.dt, B, C, case.state.transpose(2, 3)),
        (x, case.dt, B, C, case.state.double()),
    ):
        with pytest.raises(ValueError, match=r"\d"):
            check_tensors(*wrong, rows, None)


@starts_the_interpreter
def test_the_kernels_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter and not refused")
