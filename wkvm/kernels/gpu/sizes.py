"""Sizes and dtypes that kernels of several modules take alike."""

import torch
import triton
import triton.language as tl

LEAST = 16
"""The smallest side of a matrix product."""

LOG2_E = tl.constexpr(1.4426950408889634)
"""Logarithms to base 2 for each natural one: the hardware's powers are of 2."""

STATE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What states are kept in."""


def block_of(n: int) -> int:
    """The side of a matrix product that holds ``n``."""
    return max(LEAST, int(triton.next_power_of_2(n)))
