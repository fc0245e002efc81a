"""Feed-forward layers of which each token goes through a few, or all tokens through one."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import relu, silu

from wkvm.kernels.weight import Weight

ExpertActivation: TypeAlias = Literal["swiglu", "relu2"]


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``.

    Args:
        gate_up: ``[T, F | F]``, any first stride.

    Returns:
        ``[T, F]``, the dtype of ``gate_up``; the arithmetic is at least float32.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
    """
    exact = torch.promote_types(gate_up.dtype, torch.float32)
    gate, up = gate_up.to(exact).chunk(2, dim=1)
    return (silu(gate) * up).to(gate_up.dtype)


def experts(
    x: Tensor,
    first: Weight,
    second: Weight,
    ids: Tensor,
    shares: Tensor,
    *,
    activation: ExpertActivation,
) -> Tensor:
    """The sum of what some experts make of each token, by their shares.

    Args:
        x: ``[T, C]``, any first stride.
        first: ``[E, F, C]``; with ``swiglu`` ``[E, F | F, C]``, gates and ups.
        second: ``[E, C, F]``.
        ids: ``[T, k]`` int64: the experts of a token, distinct.
        shares: ``[T, k]`` float32: what the output of each is multiplied by.
        activation: between the products: ``swiglu``, or ``relu2``, the square of relu.

    Returns:
        ``[T, C]``, the dtype of ``x``; the arithmetic is at least float32. What comes of a token
        depends on no other.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    y = torch.zeros_like(x)
    for token in range(x.shape[0]):
        total = torch.zeros(x.shape[1], dtype=exact)
        for expert, share in zip(ids[token].tolist(), shares[token], strict=True):
            hidden = _matrix(first, expert, exact) @ x[token].to(exact)
            if activation == "swiglu":
                hidden = swiglu(hidden.unsqueeze(0))[0]
            else:
                hidden = relu(hidden).square()
            total += share * (_matrix(second, expert, exact) @ hidden)
        y[token] = total.to(x.dtype)
    return y


def _matrix(stack: Weight, expert: int, dtype: torch.dtype) -> Tensor:
    values = stack.values[expert].to(dtype)
    return values if stack.scales is None else values * stack.scales[expert].unsqueeze(1)
