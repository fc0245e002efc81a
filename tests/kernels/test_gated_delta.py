"""The gated delta rule on a CPU against the reference."""

import pytest
import torch

from tests.kernels.cases import N_SLOTS, ROWS, rows_of
from tests.kernels.delta_cases import SHAPES, DeltaCase, delta_case
from wkvm.kernels import cpu, reference
from wkvm.kernels.rows import Rows

BY = pytest.mark.parametrize("by_channel", [False, True], ids=["by head", "by channel"])


def _rows(slots: tuple[int, ...], lengths: tuple[int, ...]) -> Rows:
    return Rows(torch.tensor(slots, dtype=torch.int32), slots, lengths)


def _long(by_channel: bool) -> tuple[DeltaCase, DeltaCase]:
    rows = _rows((3,), (150,))
    case, same = (delta_case(rows, SHAPES["shared keys"], by_channel=by_channel) for _ in range(2))
    return case, same


@BY
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROWS)
def test_it_meets_the_reference_and_touches_only_its_slots(
    name: str, shape: str, by_channel: bool
) -> None:
    rows = rows_of(name)
    case, same = (delta_case(rows, SHAPES[shape], by_channel=by_channel) for _ in range(2))
    before = case.records.clone()
    y = cpu.gated_delta(*case.inputs, case.state, rows)
    exact = reference.gated_delta(*same.inputs, same.state, rows)
    torch.testing.assert_close(y, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(case.records, same.records, rtol=0, atol=1e-12, equal_nan=True)
    others = [slot for slot in range(N_SLOTS) if slot not in rows.host_slots]
    assert case.records[others].isnan().all()
    case.state[:] = before[:, 3 : 3 + case.state[0].numel()].view(case.state.shape)
    assert torch.equal(case.records.nan_to_num(7.0), before.nan_to_num(7.0))


@BY
@pytest.mark.parametrize("strength", [0.01, 1.0, 500.0])
def test_a_prompt_of_several_chunks_meets_the_reference_whatever_the_decays(
    strength: float, by_channel: bool
) -> None:
    rows = _rows((4, -1, 1), (131, 70, 64))
    exact = delta_case(rows, SHAPES["shared keys"], by_channel=by_channel, strength=strength)
    q, k, v, g, beta = (each.float() for each in exact.inputs)
    state = exact.state.float()
    y = cpu.gated_delta(q, k, v, g, beta, state, rows)
    expected = reference.gated_delta(*exact.inputs, exact.state, rows)
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, exact.state.float(), rtol=1e-5, atol=1e-5, equal_nan=True)


@BY
def test_where_a_prompt_is_cut_does_not_matter(by_channel: bool) -> None:
    whole, cut = _long(by_channel)
    y = cpu.gated_delta(*whole.inputs, whole.state, _rows((3,), (150,)))
    for start, end in ((0, 1), (1, 38), (38, 103), (103, 104), (104, 150)):
        part = cpu.gated_delta(*cut.of_tokens(start, end), cut.state, _rows((3,), (end - start,)))
        torch.testing.assert_close(part, y[start:end], rtol=0, atol=1e-12)
    torch.testing.assert_close(cut.state, whole.state, rtol=0, atol=1e-12, equal_nan=True)


@BY
def test_cuts_at_multiples_of_64_do_not_change_a_bit(by_channel: bool) -> None:
    whole, cut = _long(by_channel)
    y = cpu.gated_delta(*whole.inputs, whole.state, _rows((3,), (150,)))
    for start, end in ((0, 64), (64, 128), (128, 150)):
        part = cpu.gated_delta(*cut.of_tokens(start, end), cut.state, _rows((3,), (end - start,)))
        assert torch.equal(part, y[start:end])
    assert torch.equal(cut.state[3], whole.state[3])


@BY
@pytest.mark.parametrize("name", ["decode", "prefill"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_state_of_half_size_is_rounded_once_after_its_row(
    dtype: torch.dtype, name: str, by_channel: bool
) -> None:
    rows = rows_of(name)
    case = delta_case(
        rows, SHAPES["shared keys"], by_channel=by_channel, dtype=dtype, state_dtype=dtype
    )
    wide = case.state.float()
    y = cpu.gated_delta(*case.inputs, case.state, rows)
    assert y.dtype == dtype
    assert torch.equal(y, cpu.gated_delta(*case.inputs, wide, rows))
    assert torch.equal(case.state.nan_to_num(7.0), wide.to(dtype).nan_to_num(7.0))


def test_what_pad_rows_hold_does_not_reach_their_outputs() -> None:
    rows = rows_of("decode with pad rows")
    case = delta_case(rows, SHAPES["one head"], by_channel=False)
    for each in case.inputs:
        each[[1, 3]] = float("nan")
    for kernels in (cpu, reference):
        y = kernels.gated_delta(*case.inputs, case.state, rows)
        assert not y[[1, 3]].any()
        assert y[[0, 2]].isfinite().all()


@BY
@pytest.mark.parametrize("name", ROWS)
def test_the_mix_is_the_convolution_and_the_rule(name: str, by_channel: bool) -> None:
    rows = rows_of(name)
    Hk, Hv, K, V = SHAPES["shared keys"]
    C = 2 * Hk * K + Hv * V
    case, same = (delta_case(rows, SHAPES["shared keys"], by_channel=by_channel) for _ in range(2))
    draw = torch.Generator().manual_seed(1)
    wider, weight, window = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((rows.n_tokens, C + 5), (C, 4), (N_SLOTS, 3, C))
    )
    projected, windows = wider[:, 5:], window.clone()
    decay, strength = case.inputs[3:]
    A, dt_bias = -torch.rand(Hv, generator=draw).double(), torch.zeros_like(decay[0])
    y = cpu.delta_mix(
        projected,
        decay,
        strength,
        weight,
        window,
        A,
        dt_bias,
        case.state,
        rows,
        Hk,
        max_strength=2.0,
    )
    g, beta = reference.delta_gates(decay, strength, A, dt_bias, 2.0)
    convolved = reference.causal_conv(projected.contiguous(), weight, None, windows, rows)
    q, k, v = torch.split(convolved, [Hk * K, Hk * K, Hv * V], dim=1)
    exact = reference.gated_delta(
        q.view(-1, Hk, K), k.view(-1, Hk, K), v.view(-1, Hv, V), g, beta, same.state, rows
    )
    torch.testing.assert_close(y, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(case.records, same.records, rtol=0, atol=1e-12, equal_nan=True)
    assert torch.equal(window, windows)


@BY
def test_gates_are_float32_whatever_the_projection(by_channel: bool) -> None:
    shape = (3, 2, 5) if by_channel else (3, 2)
    draw = torch.Generator().manual_seed(2)
    decay, strength = (torch.randn(*s, generator=draw).bfloat16() for s in (shape, (3, 2)))
    A, dt_bias = -torch.rand(2, generator=draw), torch.randn(*shape[1:], generator=draw)
    g, beta = cpu.delta_gates(decay, strength, A, dt_bias, 2.0)
    for head in range(2):
        expected = A[head] * torch.nn.functional.softplus(decay[:, head].float() + dt_bias[head])
        assert torch.equal(g[:, head], expected)
    assert torch.equal(beta, 2 * strength.float().sigmoid())
