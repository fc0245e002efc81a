"""A short convolution of queries, keys and values, and the gated delta rule, on a GPU."""

from torch import Tensor

from wkvm.kernels.gpu.conv import causal_conv
from wkvm.kernels.gpu.delta_decode import gated_delta_decode
from wkvm.kernels.gpu.delta_prefill import gated_delta
from wkvm.kernels.reference.delta import heads_of
from wkvm.kernels.rows import Rows


def delta_mix(
    projected: Tensor,
    conv_weight: Tensor,
    conv_state: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: Rows,
    n_key_heads: int,
    *,
    pdl: bool = False,
) -> Tensor:
    """See ``reference.delta_mix``. Two launches for rows of one token, else three or four.

    Queries and keys of a head are read by all programs of the value heads that it serves, so that
    none of them could move their window: the convolution is a launch of its own.

    Args:
        pdl: of rows of one token: launched dependently. See ``gated_delta_decode``.
    """
    if not rows.is_decode:
        convolved = causal_conv(projected, conv_weight, None, conv_state, rows)
        return gated_delta(*heads_of(convolved, state, n_key_heads), g, beta, state, rows)
    convolved = causal_conv(projected, conv_weight, None, conv_state, rows, pdl=pdl)
    heads = heads_of(convolved, state, n_key_heads)
    return gated_delta_decode(*heads, g, beta, state, rows.slots, pdl=pdl)
