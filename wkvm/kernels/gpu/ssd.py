"""The recurrence of Mamba-2 for a GPU: which kernels a step takes."""

from torch import Tensor

from wkvm.kernels.gpu.conv import causal_conv
from wkvm.kernels.gpu.ssd_decode import RawSteps, ssd_decode
from wkvm.kernels.gpu.ssd_prefill import ssd_prefill
from wkvm.kernels.reference.ssd import heads_of
from wkvm.kernels.rows import Rows


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.ssd``."""
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
) -> Tensor:
    """See ``reference.ssd_mix``. Two launches for rows of one token, else three or four.

    Rows of one token are launched dependently, see ``ssd_decode``: what made ``projected`` must not
    have been.
    """
    pdl = rows.is_decode and projected.is_cuda
    raw = RawSteps(dt_bias, *dt_limits)
    convolved = causal_conv(projected, conv_weight, conv_bias, conv_state, rows, pdl=pdl)
    x, B, C = heads_of(convolved, state)
    if rows.is_decode:
        return ssd_decode(x, dt, A, B, C, D, state, rows, raw=raw, pdl=pdl)
    return ssd_prefill(x, dt, A, B, C, D, state, rows, raw=raw)
