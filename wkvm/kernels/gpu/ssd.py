"""The recurrence of Mamba-2 for a GPU: which kernels a step takes."""

from torch import Tensor

from wkvm.kernels.gpu.conv import causal_conv
from wkvm.kernels.gpu.ssd_decode import (
    Convolution,
    RawSteps,
    conv_ssd_decode,
    decode_cut,
    ssd_decode,
)
from wkvm.kernels.gpu.ssd_prefill import ssd_prefill
from wkvm.kernels.reference.ssd import heads_of
from wkvm.kernels.rows import Rows


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.ssd``. The first strides of x, B and C are free."""
    kernel = ssd_decode if rows.is_decode else ssd_prefill
    return kernel(x, dt, A, B, C, D, state, rows)


def ssd_mix(
    projected: Tensor,
    dt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    conv_state: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float],
    A: Tensor,
    D: Tensor,
    state: Tensor,
    rows: Rows,
    arrivals: Tensor | None = None,
) -> Tensor:
    """See ``reference.ssd_mix``. One or two launches for rows of one token, else three or four.

    Rows of one token are launched dependently: each launch may begin while the one before it runs,
    and reads the states, which nothing before it in a step writes, before it waits for that.
    """
    raw = RawSteps(dt_bias, *dt_limits)
    pdl = projected.is_cuda and rows.is_decode
    n_rows = len(rows.lengths)
    has_room = arrivals is not None and n_rows <= arrivals.shape[0]
    if arrivals is not None and has_room and rows.is_decode and decode_cut(n_rows).fuses:
        conv = Convolution(conv_weight, conv_bias, conv_state, arrivals)
        return conv_ssd_decode(projected, dt, A, D, state, rows, raw=raw, conv=conv, pdl=pdl)
    convolved = causal_conv(projected, conv_weight, conv_bias, conv_state, rows, pdl=pdl)
    x, B, C = heads_of(convolved, state)
    if rows.is_decode:
        return ssd_decode(x, dt, A, B, C, D, state, rows, raw=raw, pdl=pdl)
    return ssd_prefill(x, dt, A, B, C, D, state, rows, raw=raw)
