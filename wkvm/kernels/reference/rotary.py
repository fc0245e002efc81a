"""Positions as angles by which the elements of queries and keys are turned."""

import torch
from torch import Tensor


def rotary(
    q: Tensor, k: Tensor, frequencies: Tensor, positions: Tensor, scaling: float = 1.0
) -> None:
    """Turn the heads of each token by its position, in place.

    Of the first 2 R elements of a head, element i and element R + i are one pair; it is turned by
    the angle ``position * frequencies[i]``, and multiplied by ``scaling``. The others stay.

    Args:
        q, k: ``[T, Hq, D]`` and ``[T, Hkv, D]``, any strides but the last. Both are overwritten;
            the arithmetic is at least float32.
        frequencies: ``[R]`` float32, radians a token; 2 R is at most D.
        positions: ``[T]``, integers.

    Source: Su et al., "RoFormer", arXiv:2104.09864; which elements are a pair, transformers'
    ``rotate_half``.
    """
    R = frequencies.shape[0]
    exact = torch.promote_types(q.dtype, torch.float32)
    angles = (positions.to(exact).unsqueeze(1) * frequencies.to(exact)).unsqueeze(1)
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    for heads in (q, k):
        first, second = heads[..., :R], heads[..., R : 2 * R]
        turned = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(turned)
