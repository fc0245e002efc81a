"""Feed-forward layers of which each token goes through a few, on a CPU."""

import torch
from torch import Tensor
from torch.nn.functional import relu, silu

from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.weight import Weight


def swiglu(gate_up: Tensor) -> Tensor:
    """See ``reference.swiglu``."""
    gate, up = gate_up.chunk(2, dim=1)
    return silu(gate).mul_(up)


def experts(
    x: Tensor,
    first: Weight,
    second: Weight,
    ids: Tensor,
    shares: Tensor,
    *,
    activation: ExpertActivation,
) -> Tensor:
    """See ``reference.experts``. Two products for each expert that a token goes through.

    Raises:
        ValueError: the weights are quantised, which saves a CPU nothing.
    """
    if first.scales is not None or second.scales is not None:
        raise ValueError("quantised experts need a GPU")
    n_choices = ids.shape[1]
    in_order, order = ids.flatten().sort(stable=True)
    counts = torch.bincount(in_order, minlength=len(first.values)).tolist()
    rows = x.index_select(0, order // n_choices)
    out, start = torch.empty_like(rows), 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        here = slice(start, start + count)
        hidden = torch.mm(rows[here], first.values[expert].t())
        hidden = swiglu(hidden) if activation == "swiglu" else relu(hidden).square_()
        torch.mm(hidden, second.values[expert].t(), out=out[here])
        start += count
    parts = torch.empty_like(out).index_copy_(0, order, out).view(len(x), n_choices, -1)
    return torch.bmm(shares.to(x.dtype).unsqueeze(1), parts).squeeze(1)
