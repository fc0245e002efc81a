"""Paged attention on a CPU against plain softmax over sequences that were never cut into pages."""

import pytest
import torch

from tests.kernels.attention_cases import SHAPES, STEPS, case_of
from wkvm.core.layout import PAGE_TOKENS
from wkvm.kernels import cpu, reference
from wkvm.kernels.interface import Kernels


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", STEPS)
def test_meets_softmax_over_the_whole_sequence(step: str, shape: str, kernels: Kernels) -> None:
    case = case_of(step, shape)
    assert (case.run(kernels) - case.expected()).abs().max() < 2e-6


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("window", [1, 64, 65, 1000])
@pytest.mark.parametrize("step", ["decode across the border of a page", "a prompt behind others"])
def test_a_token_sees_a_window_of_itself_and_those_before(
    step: str, window: int, kernels: Kernels
) -> None:
    case = case_of(step, "grouped")
    assert (case.run(kernels, window) - case.expected(window)).abs().max() < 2e-6


@pytest.mark.parametrize("window", [40, 129])
def test_a_window_holds_where_a_prompt_attends_in_parts(window: int) -> None:
    case = case_of("a prompt that attends in parts", "grouped")
    assert (case.run(cpu, window) - case.expected(window)).abs().max() < 2e-6


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("shape", ["narrow values", "latents"])
@pytest.mark.parametrize("step", STEPS)
def test_writes_its_tokens_into_their_places_and_nothing_else(
    step: str, shape: str, kernels: Kernels
) -> None:
    case = case_of(step, shape)
    expected, lengths = case.pages.clone(), case.lengths.clone()
    for row, slot in enumerate(case.rows.host_slots):
        for place in range(case.rows.lengths[row] if slot >= 0 else 0):
            block, at = divmod(int(lengths[slot]) + place, PAGE_TOKENS)
            token = case.rows.host_offsets[row] + place
            page = expected[case.table[slot, block], 1]
            page[0, at] = case.k[token]
            if case.v is not None:
                page[1, at, :, : case.v.shape[2]] = case.v[token]
    case.run(kernels)
    assert torch.equal(case.pages.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(case.lengths, lengths)


def test_pad_rows_output_zeros() -> None:
    case = case_of("both with pad rows", "grouped")
    assert not case.run(cpu)[5:8].any()


@pytest.mark.parametrize("kernels", [cpu, reference])
def test_half_precision_is_computed_in_float32(kernels: Kernels) -> None:
    case = case_of("both with pad rows", "grouped", torch.bfloat16)
    assert (case.run(kernels) - case.expected()).abs().max() < 2e-2


def test_a_token_without_a_page_is_refused() -> None:
    case = case_of("decode across the border of a page", "grouped")
    case.table[1, 2] = -1
    with pytest.raises(ValueError, match="slot 1 has no page for position 130"):
        case.run(cpu)
