"""Paged attention in Triton against plain softmax in float64, over pages that are NaN elsewhere.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.kernels.attention_cases import LATENT, SHAPES, Case, case_of
from wkvm.kernels import reference
from wkvm.kernels.interface import Kernels

DECODE = ["decode from nothing", "decode across the border of a page", "decode with pad rows"]
PROMPTS = ["a prompt behind others", "both with pad rows"]
MOST_SHAPES = ["narrow values", "latents"] if INTERPRETED else list(SHAPES)
BARS = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
DTYPES = [torch.float32] if INTERPRETED else list(BARS)


def attended(case: Case, window: int | None = None, *how: Any) -> Tensor:
    """In the interpreter rows of one token are divided among few programs: each costs time."""
    from wkvm.kernels import gpu
    from wkvm.kernels.gpu.attention_decode import Launch, Splits, attention_decode

    if not case.rows.is_decode or not (INTERPRETED or how):
        return case.run(cast("Kernels", gpu), window)
    launch, splits = how or (Launch(32, 4, 3), Splits(2, 1))
    return attention_decode(
        case.q,
        case.k,
        case.v,
        case.pages[:, 1],
        case.table,
        case.lengths,
        case.rows.slots,
        scale=0.3,
        window=window,
        value_dim=LATENT if case.v is None else None,
        launch=launch,
        splits=splits,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", MOST_SHAPES)
@pytest.mark.parametrize("step", [*DECODE, *PROMPTS])
def test_meets_softmax_and_writes_its_tokens_alone(
    step: str, shape: str, dtype: torch.dtype, device: str
) -> None:
    case = case_of(step, shape, dtype).on(device)
    # As from a projection: heads of queries with their gates between them.
    q, k = torch.cat([case.q, case.q], 2), torch.cat([case.k, case.k], 1)
    q, k = q[:, :, : case.q.shape[2]], k[:, : case.k.shape[1]]
    found = attended(replace(case, q=q, k=k))
    assert (found.cpu() - case.expected()).abs().max() < BARS[dtype]
    pads = [row for row, slot in enumerate(case.rows.host_slots) if slot < 0]
    for row in pads:
        assert not found[case.rows.host_offsets[row] : case.rows.host_offsets[row + 1]].any()
    fresh = case_of(step, shape, dtype)
    fresh.run(reference)
    assert torch.equal(case.pages.cpu().nan_to_num(7.0), fresh.pages.nan_to_num(7.0))
    assert torch.equal(case.lengths.cpu(), fresh.lengths)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [1, 65])
@pytest.mark.parametrize("step", ["decode across the border of a page", "a prompt behind others"])
def test_a_token_sees_a_window_of_itself_and_those_before(
    step: str, window: int, device: str
) -> None:
    case = case_of(step, "grouped").on(device)
    found = attended(case, window)
    assert (found.cpu() - case.expected(window)).abs().max() < BARS[torch.float32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "least_pages", "block_n"), [(1, 1, 16), (4, 2, 32)])
def test_however_a_row_is_divided(n: int, least_pages: int, block_n: int, device: str) -> None:
    from wkvm.kernels.gpu.attention_decode import Launch, Splits

    case = case_of("decode across the border of a page", "one shared").on(device)
    found = attended(case, None, Launch(block_n, 4, 2), Splits(n, least_pages))
    assert (found.cpu() - case.expected()).abs().max() < BARS[torch.float32]


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_of_heads_of_queries_that_do_not_fill_a_product(device: str) -> None:
    from wkvm.kernels.gpu.attention_prefill import Launch, attend
    from wkvm.kernels.gpu.paged import heads_of

    case = case_of("a prompt behind others", "one shared").on(device)
    case.run(reference)
    heads = heads_of(case.q, case.k, case.v, case.pages[:, 1], None)
    found = attend(
        case.q,
        case.pages[:, 1],
        case.table,
        case.lengths,
        case.rows,
        heads,
        scale=0.3,
        launch=Launch(16, 32, 4, 1),
    )
    assert (found.cpu() - case.expected()).abs().max() < BARS[torch.float32]


@starts_the_interpreter
def test_attention_passes_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter")
