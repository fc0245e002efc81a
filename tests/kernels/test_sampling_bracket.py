"""The guess of where a filter cuts, at the sizes of service: what may lie around it can be listed.

On a GPU, and a few rows in Triton's interpreter, in a process of its own.
"""

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter

VOCAB = 248_320
"""More than 131,072: four times the list, twice the samples."""

CASES = [(1.0, 0.9), (0.1, 0.5)]
"""The standard deviation of logits, and top-p: of those below these two list most."""

if not INTERPRETED:
    CASES = [(std, p) for std in (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0) for p in (0.5, 0.9, 0.99)]


def as_scanned(logits: Tensor, scratch: Any, n_tops: int) -> None:
    """What the first kernel leaves of such rows: groups' largest logits, and every so manieth."""
    n_rows, n_groups = len(logits), scratch.n_chunks * n_tops
    padded = torch.full((n_rows, scratch.n_chunks * scratch.chunk), -float("inf"))
    padded[:, :VOCAB] = logits
    groups = padded.view(n_rows, n_groups, scratch.chunk // n_tops)
    scratch.tops.copy_(groups.amax(2))
    some = groups[:, :, :: scratch.stride].transpose(1, 2)
    of_line = (1 << (scratch.n_chunks - 1).bit_length()) * n_tops
    for row, lines in enumerate(some):
        scratch.samples[row, : len(lines) * of_line].view(-1, of_line)[:, :n_groups] = lines


@pytest.mark.parametrize("device", DEVICES)
def test_what_may_lie_around_the_cut_of_a_wide_row_is_listed_and_holds_the_cut(device: str) -> None:
    launch = importlib.import_module("wkvm.kernels.device_sampling.launch")
    bracket = importlib.import_module("wkvm.kernels.device_sampling.bracket")
    fields = importlib.import_module("wkvm.kernels.device_sampling.records")
    n_rows, temperature = len(CASES), 0.8
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(n_rows, VOCAB, generator=draw)
    logits *= torch.tensor([std for std, _ in CASES])[:, None]
    top_p = torch.tensor([p for _, p in CASES], dtype=torch.float64)
    scratch = launch.Scratch(n_rows, VOCAB, device)
    as_scanned(logits, scratch, bracket.TOPS.value)
    records = torch.zeros(n_rows, fields.WORDS, dtype=torch.int64)
    reals = records.view(torch.float64)
    reals[:, fields.SCALE] = math.log2(math.e) / temperature
    reals[:, fields.TOP_P] = top_p
    records[:, fields.TOP_K] = VOCAB
    bracket.bracket_kernel[n_rows,](
        torch.arange(n_rows, dtype=torch.int32, device=device),
        records.to(device),
        *(scratch.samples, scratch.tops, scratch.brackets),
        *(VOCAB, scratch.n_chunks),
        CHUNK=scratch.chunk,
        CHUNKS=1 << (scratch.n_chunks - 1).bit_length(),
        LIST=scratch.list,
        STRIDE=scratch.stride,
        PDL=False,
        num_warps=launch.BRACKET_WARPS * scratch.times,
    )
    low, high = scratch.brackets.cpu()[:, :, None].unbind(1)
    n_listed = ((logits >= low) & (logits < high)).sum(1)
    assert n_listed.max() <= scratch.list, n_listed
    probabilities, order = torch.softmax(logits.double() / temperature, 1).sort(descending=True)
    n_kept = (probabilities.cumsum(1) < top_p[:, None]).sum(1)
    cut = logits.gather(1, order).gather(1, n_kept[:, None])
    assert ((low <= cut) & (cut < high)).all()


@starts_the_interpreter
def test_the_guess_passes_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter")
