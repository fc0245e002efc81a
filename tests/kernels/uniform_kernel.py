"""A kernel that gives out the sampler's random numbers, which no kernel of the sampler does."""

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import WORDS, uniform


@triton.jit
def uniform_kernel(records, numbers):  # type: ignore[no-untyped-def]
    """Of each record one number, float64."""
    row = tl.program_id(0)
    tl.store(numbers + row, uniform(records + row * WORDS))
