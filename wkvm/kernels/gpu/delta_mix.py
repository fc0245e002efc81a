"""A short convolution of queries, keys and values, and the gated delta rule, on a GPU."""

from torch import Tensor

from wkvm.kernels.gpu.conv import causal_conv
from wkvm.kernels.gpu.delta_decode import RawGates, delta_step
from wkvm.kernels.gpu.delta_prefill import gated_delta
from wkvm.kernels.gpu.elementwise import delta_gates
from wkvm.kernels.reference.delta import heads_of
from wkvm.kernels.rows import Rows


def delta_mix(
    projected: Tensor,
    decay: Tensor,
    strength: Tensor,
    conv_weight: Tensor,
    conv_state: Tensor,
    A: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    rows: Rows,
    n_key_heads: int,
    *,
    max_strength: float = 1.0,
) -> Tensor:
    """See ``reference.delta_mix``. Two launches for rows of one token, else four or five.

    Rows of one token are launched dependently, see ``gated_delta_decode``: what made ``projected``
    must not have been, since states are read before it is known to have ended.
    """
    if not rows.is_decode:
        g, beta = delta_gates(decay, strength, A, dt_bias, max_strength)
        convolved = causal_conv(projected, conv_weight, None, conv_state, rows)
        return gated_delta(*heads_of(convolved, state, n_key_heads), g, beta, state, rows)
    pdl = projected.is_cuda
    gates = RawGates(decay, strength, A, dt_bias, max_strength)
    convolved = causal_conv(projected, conv_weight, None, conv_state, rows, pdl=pdl)
    heads = heads_of(convolved, state, n_key_heads)
    return delta_step(*heads, gates, state, rows.slots, pdl=pdl)
