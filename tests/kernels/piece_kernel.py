"""A kernel that gives out which piece of which row a program is for."""

import triton
import triton.language as tl

from wkvm.kernels.gpu.packing import piece_of


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def piece_kernel(offsets, n_rows, found, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """``found``: row and piece of each program, ``[n, 2]`` int32."""
    program = tl.program_id(0)
    row, piece = piece_of(offsets, n_rows, program, SIZE, BLOCK)
    tl.store(found + 2 * program, row)
    tl.store(found + 2 * program + 1, piece)
