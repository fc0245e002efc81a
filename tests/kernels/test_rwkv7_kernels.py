"""The kernels of RWKV-7 against the reference: on a CPU, in Triton's interpreter, on a GPU."""

import importlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.kernels.cases import N_SLOTS, ROWS, rows_of, shift_case, wkv7_case
from wkvm.kernels import cpu, reference
from wkvm.kernels.rows import Rows

TOLERANCE = 2e-6
"""On numbers of size 1 to 10, in float32."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton reads this variable while it is imported, so the interpreter has a process of its own."""


@dataclass(frozen=True)
class Version:
    """One version of the kernels: where it is defined, and where it runs."""

    module: str
    device: str

    def token_shift(self, *args: Tensor | Rows) -> Tensor:
        result: Tensor = importlib.import_module(self.module).token_shift(*args)
        return result

    def wkv7(self, *args: Tensor | Rows) -> Tensor:
        result: Tensor = importlib.import_module(self.module).wkv7(*args)
        return result


VERSIONS = (
    [pytest.param(Version("wkvm.kernels.wkv7", "cpu"), id="interpreter")]
    if INTERPRETED
    else [
        pytest.param(Version("wkvm.kernels.cpu", "cpu"), id="cpu"),
        pytest.param(Version("wkvm.kernels.wkv7", "cuda"), id="gpu", marks=pytest.mark.gpu),
    ]
)

# The interpreter cuts a bfloat16 off where a GPU rounds it.
SHIFT_DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])


@pytest.mark.parametrize("kernels", VERSIONS)
@pytest.mark.parametrize(("n_heads", "size"), [(2, 16), (1, 48), (2, 64), (1, 128)])
@pytest.mark.parametrize("name", ROWS)
def test_wkv7_meets_the_reference_and_touches_only_its_slots(
    name: str, n_heads: int, size: int, kernels: Version
) -> None:
    rows = rows_of(name, kernels.device)
    case = wkv7_case(rows, n_heads, size)
    before = case.records.clone()
    exact_state = case.state.double()
    exact = reference.wkv7(*case.exact_arguments(), exact_state, rows)
    y = kernels.wkv7(*case.tensors, case.state, rows)
    assert (y - exact).abs().max() < TOLERANCE * size
    for slot in range(N_SLOTS):
        if slot in rows.slot_list:
            assert (case.state[slot] - exact_state[slot]).abs().max() < TOLERANCE * size
        else:
            assert case.records[slot].isnan().all()
    layer = slice(n_heads * size * size, 2 * n_heads * size * size)
    before[:, layer] = case.records[:, layer]
    assert torch.equal(case.records.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("kernels", VERSIONS)
@pytest.mark.parametrize("name", ROWS)
def test_wkv7_leaves_the_state_that_the_same_tokens_leave_one_by_one(
    name: str, kernels: Version
) -> None:
    rows = rows_of(name, kernels.device)
    whole, split = wkv7_case(rows, 2, 16), wkv7_case(rows, 2, 16)
    y = kernels.wkv7(*whole.tensors, whole.state, rows)
    for row, slot in enumerate(rows.slot_list):
        for t in range(rows.host_offsets[row], rows.host_offsets[row + 1]):
            single = type(rows)(rows.slots[row : row + 1], (slot,), (1,))
            tensors = [tensor[t : t + 1] for tensor in split.tensors]
            assert torch.equal(kernels.wkv7(*tensors, split.state, single), y[t : t + 1])
    assert torch.equal(whole.records.nan_to_num(7.0), split.records.nan_to_num(7.0))


@pytest.mark.parametrize("kernels", VERSIONS)
@pytest.mark.parametrize("dtype", SHIFT_DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_token_shift_equals_the_reference_and_touches_only_its_slots(
    name: str, dtype: torch.dtype, kernels: Version
) -> None:
    rows = rows_of(name, kernels.device)
    x, records, state = shift_case(rows, 320, dtype)
    _, expected_records, expected_state = shift_case(rows, 320, dtype)
    expected = reference.token_shift(x, expected_state, rows)
    assert torch.equal(kernels.token_shift(x, state, rows), expected)
    assert torch.equal(records.nan_to_num(7.0), expected_records.nan_to_num(7.0))


@pytest.mark.parametrize("kernels", VERSIONS)
def test_a_pad_row_outputs_zeros(kernels: Version) -> None:
    rows = rows_of("only pad rows", kernels.device)
    case = wkv7_case(rows, 2, 16)
    assert not kernels.wkv7(*case.tensors, case.state, rows).any()
    x, _, state = shift_case(rows, 64, torch.float32)
    assert not kernels.token_shift(x, state, rows).any()


@pytest.mark.skipif(INTERPRETED, reason="is that process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_kernels_pass_these_tests_in_the_interpreter() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "interpreter",
            __file__,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_the_cpu_versions_never_import_triton() -> None:
    code = f"""
import sys, {cpu.__name__}, wkvm.models.rwkv7
assert not {{"triton", "fla"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
