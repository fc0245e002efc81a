"""Whether the kernels of Mamba-2 are right on a GPU: what ``gpu_ssm.py check`` runs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tests.kernels.ssd_cases import LIMITS, Shape, SsdCase, exactly, ssd_case
from tests.models.float64_step import relative
from tools.gpu_findings import Finding
from wkvm.kernels import gpu
from wkvm.kernels.gpu.conv import causal_conv
from wkvm.kernels.gpu.ssd_decode import DecodeCut, RawSteps, decode_cut, ssd_decode
from wkvm.kernels.gpu.ssd_prefill import WHOLE, PrefillCut, prefill_cut, ssd_prefill
from wkvm.kernels.reference.ssd import heads_of
from wkvm.kernels.rows import Rows

SHAPES: dict[str, Shape] = {
    "mamba2-2.7B": (80, 64, 1, 128, 4),
    "nemotron-h-8B": (128, 64, 8, 128, 4),
    "falcon-h1-7B": (24, 128, 1, 256, 4),
    "odd": (6, 24, 2, 16, 2),
}
"""Heads, their size, groups, size of the state, taps."""

BARS = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
"""Relative norms of outputs and states against float64."""


def rows_on(device: str, slots: list[int], lengths: list[int]) -> Rows:
    """Packed rows."""
    on_device = torch.tensor(slots, dtype=torch.int32, device=device)
    return Rows(on_device, tuple(slots), tuple(lengths))


def decoded(
    case: SsdCase,
    window: Tensor,
    state: Tensor,
    rows: Rows,
    cut: DecodeCut,
    *,
    pdl: bool,
) -> Tensor:
    """A step of these states: the convolution, and the recurrence."""
    raw = RawSteps(case.dt_bias, *LIMITS)
    x, A, D = case.projected, case.A, case.D
    x, B, C = heads_of(
        causal_conv(x, case.conv_weight, case.conv_bias, window, rows, pdl=pdl), state
    )
    return ssd_decode(x, case.dt, A, B, C, D, state, rows, raw=raw, cut=cut, pdl=pdl)


def absorbed(case: SsdCase, state: Tensor, rows: Rows, cut: PrefillCut) -> Tensor:
    """The recurrence of prompts alone, of inputs as if they were convolved."""
    x, B, C = heads_of(case.projected, state)
    raw = RawSteps(case.dt_bias)
    return ssd_prefill(x, case.dt, case.A, B, C, case.D, state, rows, raw=raw, cut=cut)


def cut_of(shape: Shape, dtype: torch.dtype, rows: Rows) -> PrefillCut:
    """That of a prompt as the model has it."""
    H, P, _, N, _ = shape
    return prefill_cut(dtype, H, P, N, rows)


def check(device: str, shapes: list[str]) -> Iterator[Finding]:
    """Decode steps and prompts against float64; bits that must not depend on anything."""
    for name in shapes:
        for dtype in BARS:
            yield _steps(device, name, dtype)
            yield _prompts(device, name, dtype)
            yield _bits(device, name, dtype)


def _compared(case: SsdCase, y: Tensor, exact: SsdCase, right: Tensor, rows: Rows) -> Finding:
    """Errors of outputs and states; whether other slots and pad rows are as they should be."""
    kept = not y[rows.pad_tokens].any()
    errors = {"outputs": relative(y, right)}
    records = {"states": (case.records, exact.records)}
    records["windows"] = (case.conv_records, exact.conv_records)
    for part, (mine, theirs) in records.items():
        kept &= torch.equal(mine.isnan(), theirs.isnan())
        errors[part] = relative(mine.nan_to_num(0.0), theirs.nan_to_num(0.0))
    ok = kept and max(errors.values()) < BARS[case.projected.dtype]
    return {"ok": ok, "relative_errors": errors, "others_untouched": kept}


def _steps(device: str, name: str, dtype: torch.dtype) -> Finding:
    """Three steps of five rows, launched dependently on a GPU.

    The exact ones lie between, and are launches that are not dependent.
    """
    rows = rows_on(device, [5, -1, 3, 0, 2], [1] * 5)
    case = ssd_case(rows, SHAPES[name], dtype=dtype)
    right, exact = exactly(case, rows)
    step = partial(decoded, case, case.conv_state, case.state, rows, decode_cut(1))
    y = step(pdl=device == "cuda")
    for _ in range(2):
        right, exact = exactly(exact, rows)
        y = step(pdl=device == "cuda")
    found = _compared(case, y, exact, right, rows)
    return {"check": f"decode against float64, {name}, {dtype}", **found}


def _prompts(device: str, name: str, dtype: torch.dtype) -> Finding:
    """Prompts of several lengths, with their convolution."""
    n_long = 1600 if device == "cuda" else 40
    rows = rows_on(device, [5, -1, 3, 0, 2], [70, 9, 1, n_long, 64])
    case = ssd_case(rows, SHAPES[name], dtype=dtype)
    right, exact = exactly(case, rows)
    y = case.mixed(gpu.ssd_mix, rows)
    found = _compared(case, y, exact, right, rows)
    return {"check": f"prompts against float64, {name}, {dtype}", **found}


def _bits(device: str, name: str, dtype: torch.dtype) -> Finding:
    """A prompt whole, with spans, and cut at multiples of 64: always the same bits."""
    n, cuts = (1000, [64, 704]) if device == "cuda" else (70, [64])
    rows = rows_on(device, [4], [n])
    whole = ssd_case(rows, SHAPES[name], dtype=dtype)
    base = replace(cut_of(SHAPES[name], dtype, rows), span=WHOLE)
    spans = {span: whole.copied() for span in (64, 512)}
    cut = whole.copied()
    y = absorbed(whole, whole.state, rows, base)

    def is_same(case: SsdCase, out: Tensor) -> bool:
        same = torch.equal(case.records.nan_to_num(7.0), whole.records.nan_to_num(7.0))
        return same and torch.equal(out, y)

    same = {
        f"spans of {span}": is_same(
            case, absorbed(case, case.state, rows, replace(base, span=span))
        )
        for span, case in spans.items()
    }
    pieces = [
        absorbed(
            cut.of_tokens(slice(start, end)), cut.state, rows_on(device, [4], [end - start]), base
        )
        for start, end in zip([0, *cuts], [*cuts, n], strict=True)
    ]
    same["cut at multiples of 64"] = is_same(cut, torch.cat(pieces))
    return {"check": f"bits of a prompt, {name}, {dtype}", "ok": all(same.values()), "same": same}
