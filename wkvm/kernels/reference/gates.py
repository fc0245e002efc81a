"""Sigmoid gates on what a layer gives."""

import torch
from torch import Tensor


def open_gate(y: Tensor, gate: Tensor) -> Tensor:
    """``sigmoid(gate) * y``.

    Args:
        y, gate: ``[T, H, D]``, any strides but the last.

    Returns:
        ``[T, H, D]``, the dtype of ``y``, contiguous; the arithmetic is at least float32.
    """
    exact = torch.promote_types(y.dtype, torch.float32)
    return (y.to(exact) * torch.sigmoid(gate.to(exact))).to(y.dtype)


def add_shared(y: Tensor, shared: Tensor, gate: Tensor | None) -> Tensor:
    """``y + sigmoid(gate) * shared``; without a gate, their sum.

    Args:
        y, shared: ``[T, C]``.
        gate: ``[T, 1]``, or None.

    Returns:
        ``[T, C]``, the dtype of ``y``; the arithmetic is at least float32.
    """
    if gate is None:
        return y + shared
    exact = torch.promote_types(y.dtype, torch.float32)
    return torch.addcmul(y.to(exact), torch.sigmoid(gate.to(exact)), shared.to(exact)).to(y.dtype)
