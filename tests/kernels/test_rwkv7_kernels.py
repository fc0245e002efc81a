"""The operations of RWKV-7 on a CPU against the reference."""

import subprocess
import sys

import pytest
import torch

from tests.kernels.cases import N_SLOTS, ROWS, rows_of, shift_case, wkv7_case
from wkvm.kernels import cpu, reference

TOLERANCE = 2e-6
"""On numbers of size 1 to 10, in float32."""

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("n_heads", "size"), [(2, 16), (1, 48), (2, 64), (1, 128)])
@pytest.mark.parametrize("name", ROWS)
def test_wkv7_meets_the_reference_and_touches_only_its_slots(
    name: str, n_heads: int, size: int
) -> None:
    rows = rows_of(name)
    case = wkv7_case(rows, n_heads, size)
    before = case.records.clone()
    exact_state = case.state.double()
    exact = reference.wkv7(*case.exact_arguments(), exact_state, rows)
    y = cpu.wkv7(*case.tensors, case.state, rows)
    assert (y - exact).abs().max() < TOLERANCE * size
    for slot in range(N_SLOTS):
        if slot in rows.host_slots:
            assert (case.state[slot] - exact_state[slot]).abs().max() < TOLERANCE * size
        else:
            assert case.records[slot].isnan().all()
    layer = slice(n_heads * size * size, 2 * n_heads * size * size)
    before[:, layer] = case.records[:, layer]
    assert torch.equal(case.records.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("name", ROWS)
def test_wkv7_leaves_the_state_that_the_same_tokens_leave_one_by_one(name: str) -> None:
    rows = rows_of(name)
    whole, split = wkv7_case(rows, 2, 16), wkv7_case(rows, 2, 16)
    y = cpu.wkv7(*whole.tensors, whole.state, rows)
    for row, slot in enumerate(rows.host_slots):
        for t in range(rows.host_offsets[row], rows.host_offsets[row + 1]):
            single = type(rows)(rows.slots[row : row + 1], (slot,), (1,))
            r, w, k, v, kap, a = (tensor[t : t + 1] for tensor in split.tensors)
            after = cpu.wkv7(r, w, k, v, kap, a, split.state, single)
            assert torch.equal(after, y[t : t + 1])
    assert torch.equal(whole.records.nan_to_num(7.0), split.records.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_token_shift_equals_the_reference_and_touches_only_its_slots(
    name: str, dtype: torch.dtype
) -> None:
    rows = rows_of(name)
    x, records, state = shift_case(rows, 320, dtype)
    _, expected_records, expected_state = shift_case(rows, 320, dtype)
    expected = reference.token_shift(x, expected_state, rows)
    assert torch.equal(cpu.token_shift(x, state, rows), expected)
    assert torch.equal(records.nan_to_num(7.0), expected_records.nan_to_num(7.0))


def test_a_pad_row_outputs_zeros() -> None:
    rows = rows_of("only pad rows")
    case = wkv7_case(rows, 2, 16)
    assert not cpu.wkv7(*case.tensors, case.state, rows).any()
    x, _, state = shift_case(rows, 64, torch.float32)
    assert not cpu.token_shift(x, state, rows).any()


def test_the_cpu_versions_never_import_triton() -> None:
    code = f"""
import sys, {cpu.__name__}, wkvm.models.rwkv7
assert not {{"triton", "fla"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
