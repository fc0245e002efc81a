"""Norms by the root of the mean square, as transformers have them."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import silu

GateActivation: TypeAlias = Literal["silu", "sigmoid"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis.

    Args:
        x: ``[..., C]``.
        weight: ``[C]`` float32.
        dtype: of what is returned; None for that of ``x``.

    Returns:
        ``[..., C]``; the arithmetic is at least float32.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return (weight * normed).to(dtype or x.dtype)


def add_rms_norm(
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    eps: float,
    *,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``rms_norm`` of ``x + scale * added``.

    Args:
        x, added: ``[..., C]``.
        weight, eps, dtype: as for ``rms_norm``.

    Returns:
        The sum in the dtype of ``x``, and its norm.
    """
    total = torch.add(x, added, alpha=scale).to(x.dtype)
    return total, rms_norm(total, weight, eps, dtype)


def gated_rms_norm(
    y: Tensor,
    z: Tensor,
    weight: Tensor,
    eps: float,
    *,
    group: int,
    gate: GateActivation = "silu",
    gate_first: bool,
) -> Tensor:
    """A norm of groups of the last axis, and a gate on it, before the norm or after.

    Args:
        y, z: ``[..., C]``, any strides but the last; ``z`` is the gate before its activation.
        weight: ``[C]`` float32.
        group: elements that share a mean; C is a multiple of it.
        gate: its activation, ``silu`` or ``sigmoid``.
        gate_first: whether the norm is of the gated ``y``.

    Returns:
        ``[..., C]``, the dtype of ``z``; the arithmetic is at least float32.
    """
    exact_dtype = torch.promote_types(y.dtype, torch.float32)
    exact, opening = y.to(exact_dtype), z.to(exact_dtype)
    opening = silu(opening) if gate == "silu" else torch.sigmoid(opening)
    if gate_first:
        exact = exact * opening
    grouped = exact.view(*exact.shape[:-1], -1, group)
    grouped = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + eps)
    normed = weight * grouped.view(exact.shape)
    return (normed if gate_first else normed * opening).to(z.dtype)
