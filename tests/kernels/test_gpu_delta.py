"""The gated delta rule in Triton against float64: outputs, states, and what must stay untouched.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.kernels.cases import rows_of
from tests.kernels.delta_cases import delta_case
from tests.models.float64_step import relative
from wkvm.kernels import reference
from wkvm.kernels.rows import Rows

SHAPES = [(1, 2, 6, 10)] if INTERPRETED else [(16, 32, 128, 128), (3, 6, 48, 80)]
"""Heads of keys and of values, keys, values."""

CUTS = [(8, 1)] if INTERPRETED else [(16, 1), (64, 2), (32, 1)]
"""Values and warps of a program of decode: those of ``LAUNCHES``, or one that has two blocks."""

BARS = {torch.float32: 1e-5, torch.bfloat16: 6e-3}
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Tried:
    """What a kernel is given, and what is right."""

    inputs: Inputs
    records: Tensor
    state: Tensor
    exact: Tensor
    exact_records: Tensor


def tried(
    rows: Rows,
    shape: tuple[int, int, int, int],
    by_channel: bool,
    dtype: torch.dtype = torch.float32,
    *,
    state_dtype: torch.dtype = torch.float32,
    strength: float = 1.0,
) -> Tried:
    """Inputs on the device of ``rows``; q, k and v are pieces of one tensor."""
    case = delta_case(
        rows,
        shape,
        by_channel=by_channel,
        dtype=dtype,
        state_dtype=state_dtype,
        strength=strength,
    )
    device, (Hk, Hv, K, V) = rows.slots.device, shape
    q, k, v, g, beta = case.inputs
    packed = torch.cat([x.flatten(1) for x in (q, k, v)], 1).to(device)
    q, k, v = torch.split(packed, [Hk * K, Hk * K, Hv * V], 1)
    q, k, v = q.view(-1, Hk, K), k.view(-1, Hk, K), v.view(-1, Hv, V)
    records = case.records.to(device)
    state = records.as_strided(case.state.shape, case.state.stride(), case.state.storage_offset())
    on_host = Rows(rows.slots.cpu(), rows.slot_list, rows.lengths)
    exact_records = case.records.double()
    exact_state = exact_records.as_strided(state.shape, state.stride(), state.storage_offset())
    q64, k64, v64, g64, beta64 = (x.double() for x in case.inputs)
    exact = reference.gated_delta(q64, k64, v64, g64, beta64, exact_state, on_host)
    inputs = q, k, v, g.to(device), beta.to(device)
    return Tried(inputs, records, state, exact, exact_records)


def exact_state(case: Tried) -> Tensor:
    """The states among the exact records."""
    state = case.state
    return case.exact_records.as_strided(state.shape, state.stride(), state.storage_offset())


def same_records(case: Tried, tolerance: float) -> None:
    """Slots that no row names are NaN in both, and what lies beside the states is as it was."""
    torch.testing.assert_close(
        case.records.cpu().double(),
        case.exact_records,
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["one token", "decode with pad rows"])
def test_one_token_of_each_row_meets_float64_and_touches_only_its_slots(
    name: str,
    cut: tuple[int, int],
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    by_channel: bool,
    device: str,
) -> None:
    from wkvm.kernels.gpu.delta_decode import Launch, gated_delta_decode

    rows = rows_of(name, device)
    case = tried(rows, shape, by_channel, dtype)
    out = gated_delta_decode(*case.inputs, case.state, rows.slots, launch=Launch(*cut))
    assert relative(out, case.exact) < BARS[dtype]
    assert not out[[row for row, slot in enumerate(rows.host_slots) if slot < 0]].any()
    assert out.dtype == dtype
    same_records(case, 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_of_16_bits_is_rounded_once_a_token(device: str) -> None:
    from wkvm.kernels.gpu.delta_decode import gated_delta_decode

    rows = rows_of("decode", device)
    case = tried(rows, SHAPES[0], by_channel=False, state_dtype=torch.float16)
    gated_delta_decode(*case.inputs, case.state, rows.slots)
    same_records(case, 1e-3)


PROMPTS = Rows(torch.tensor([4, -1, 0], dtype=torch.int32), (4, -1, 0), (20, 2, 1))
LONG = Rows(torch.tensor([4, -1, 0], dtype=torch.int32), (4, -1, 0), (700, 70, 129))


def rows_on(device: str) -> Rows:
    """Rows of many tokens; a chunk of float32 has 16."""
    rows = PROMPTS if INTERPRETED else LONG
    return Rows(rows.slots.to(device), rows.slot_list, rows.lengths)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strength", [0.1, 30.0])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_meet_float64_and_touch_only_their_slots(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    by_channel: bool,
    strength: float,
    device: str,
) -> None:
    from wkvm.kernels.gpu.delta_prefill import gated_delta

    rows = rows_on(device)
    case = tried(rows, shape, by_channel, dtype, strength=strength)
    out = gated_delta(*case.inputs, case.state, rows)
    assert relative(out, case.exact) < BARS[dtype]
    assert not out[rows.lengths[0] : rows.host_offsets[2]].any()
    assert relative(case.state[[4, 0]], exact_state(case)[[4, 0]]) < BARS[dtype]
    same_records(case, 1e-4 if dtype == torch.float32 else 5e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("state_dtype", "by_channel"), [(torch.float32, True), (torch.float16, False)]
)
def test_no_bit_depends_on_cuts_between_chunks(
    state_dtype: torch.dtype, by_channel: bool, device: str
) -> None:
    from wkvm.kernels.gpu.delta_prefill import gated_delta

    n, cut = (20, 16) if INTERPRETED else (200, 128)
    rows = Rows(torch.tensor([1], dtype=torch.int32, device=device), (1,), (n,))
    case = tried(rows, SHAPES[0], by_channel, state_dtype=state_dtype)
    state = case.state.clone()
    whole = gated_delta(*case.inputs, case.state, rows)
    parts = []
    for part in (slice(0, cut), slice(cut, n)):
        some = tuple(tensor[part] for tensor in case.inputs)
        q, k, v, g, beta = some
        length = (q.shape[0],)
        parts.append(gated_delta(q, k, v, g, beta, state, Rows(rows.slots, (1,), length)))
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(state[1], case.state[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_channel", [False, True])
def test_whole_chunks_of_half_precision(by_channel: bool, device: str) -> None:
    from wkvm.kernels.gpu.delta_prefill import gated_delta

    rows = Rows(torch.tensor([1], dtype=torch.int32, device=device), (1,), (66,))
    case = tried(rows, (1, 1, 6, 10), by_channel, torch.float16)
    out = gated_delta(*case.inputs, case.state, rows)
    assert relative(out, case.exact) < 2e-3
    assert relative(case.state[1], exact_state(case)[1]) < 2e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("name", ["decode with pad rows", "prefill"])
def test_convolution_gates_and_rule_follow_one_another(
    name: str, by_channel: bool, device: str
) -> None:
    from wkvm.kernels.gpu import delta_mix

    rows = rows_of(name, device)
    Hk, Hv, K, V = shape = (2, 4, 6, 10)
    case = tried(rows, shape, by_channel)
    draw = torch.Generator().manual_seed(2)
    C = 2 * Hk * K + Hv * V
    weight = torch.randn(C, 4, generator=draw)
    windows = torch.randn(6, 5, C, generator=draw)
    projected = torch.randn(rows.n_tokens, C + 5, generator=draw)[:, :C]
    decay = torch.randn(rows.n_tokens, Hv, K, generator=draw)
    decay = decay if by_channel else decay[:, :, 0].contiguous()
    strength = torch.randn(rows.n_tokens, Hv, generator=draw)
    A, dt_bias = -torch.rand(Hv, generator=draw), torch.randn(decay.shape[1:], generator=draw)
    exact_windows, exact_states = windows[:, 1:4].double(), case.state.cpu().double()
    exact = reference.delta_mix(
        projected.double(),
        decay.double(),
        strength.double(),
        weight.double(),
        exact_windows,
        A.double(),
        dt_bias.double(),
        exact_states,
        Rows(rows.slots.cpu(), rows.slot_list, rows.lengths),
        Hk,
        max_strength=2.0,
    )
    windows = windows.to(device)
    decay, strength, A, dt_bias = (x.to(device) for x in (decay, strength, A, dt_bias))
    x, taps, window, state = projected.to(device), weight.to(device), windows[:, 1:4], case.state
    out = delta_mix(x, decay, strength, taps, window, A, dt_bias, state, rows, Hk, max_strength=2.0)
    assert relative(out, exact) < BARS[torch.float32]
    live = [slot for slot in rows.host_slots if slot >= 0]
    assert relative(case.state[live], exact_states[live]) < BARS[torch.float32]
    assert torch.equal(window.cpu().double(), exact_windows)


def test_arguments_that_do_not_fit_are_refused() -> None:
    pytest.importorskip("triton")
    from wkvm.kernels.gpu.delta_decode import check

    case = tried(rows_of("decode"), (1, 2, 4, 6), by_channel=False)
    (q, k, v, g, beta), state = case.inputs, case.state
    check(q, k, v, g, beta, state)
    for wrong in (
        (q[:, :, :3], k, v, g, beta, state),
        (q, k, v[:, :, ::2], g, beta, state),
        (q, k, v, g.double(), beta, state),
        (q, k, v, g, beta, state.transpose(2, 3)),
    ):
        with pytest.raises(ValueError, match=r"strides|heads"):
            check(*wrong)


@starts_the_interpreter
def test_the_delta_rule_passes_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter and not refused")
