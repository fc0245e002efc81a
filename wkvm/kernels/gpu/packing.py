"""Which tokens a program of a kernel over packed rows is for."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.rows import Rows


@triton.jit  # type: ignore[untyped-decorator]
def piece_of(offsets, n_rows, piece, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row of a piece, and which of the row's pieces it is, where rows are cut into ``SIZE`` tokens.

    Found in ``offsets``, ``[n_rows + 1]``, a block of rows at a time: so nothing but them need be
    on the device, and no kernel is compiled again for another number of rows.
    """
    row = 0
    before = 0
    total = 0
    at = tl.arange(0, BLOCK)
    for base in range(0, n_rows, BLOCK):
        inside = base + at < n_rows
        starts = tl.load(offsets + base + at, mask=inside, other=0)
        ends = tl.load(offsets + base + at + 1, mask=inside, other=0)
        counts = (ends - starts + SIZE - 1) // SIZE
        is_before = inside & (total + tl.cumsum(counts, 0) <= piece)
        row += tl.sum(is_before.to(tl.int32), 0)
        before += tl.sum(tl.where(is_before, counts, 0), 0)
        total += tl.sum(counts, 0)
    return row, piece - before


def n_pieces(rows: Rows, size: int) -> int:
    """How many pieces of ``size`` tokens the rows are cut into, each from its start."""
    return sum(-(-length // size) for length in rows.lengths)
