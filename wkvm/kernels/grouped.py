"""Products of the rows of a matrix with one of several weights each, as experts have them."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

GroupedLinear: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``(x [M, in], ends [E] int32)`` to ``[M, out]``, in the dtype of the weights. The rows of
group e are ``[ends[e - 1], ends[e])``, those of the first begin at 0, and the last ends at M."""


def grouped_linear(weight: Tensor) -> GroupedLinear:
    """The map of each group's rows x to ``x @ weight[e].T``.

    On a GPU one launch that waits for nothing on the host, so that a graph can capture it. On a CPU
    one product for each group that has rows.

    Args:
        weight: ``[E, out, in]``, contiguous, kept.
    """
    if weight.device.type != "cpu":
        transposed = weight.transpose(1, 2)

        def at_once(x: Tensor, ends: Tensor) -> Tensor:
            return grouped_mm(x, transposed, offs=ends)

        return at_once

    def one_by_one(x: Tensor, ends: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], weight.shape[1])
        start = 0
        for group, end in enumerate(ends.tolist()):
            if end > start:
                torch.mm(x[start:end], weight[group].t(), out=out[start:end])
                start = end
        return out

    return one_by_one
