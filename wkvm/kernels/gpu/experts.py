"""The products of a mixture of experts: each token with the few experts it was given.

Assignments of tokens to experts are put in order by expert, in tiles that the products take one by
one. Nothing of it is decided on the host, so a graph can capture it.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.rwkv7_decode.common import widened
from wkvm.kernels.weight import Weight

ASSIGNMENTS = 256
"""Of one program that counts or places them."""

MAX_EXPERTS = 1024

FEW_ASSIGNMENTS = 4096
"""As many as one program puts in order: all of a decode step, whose launches are what costs."""


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """How the products are cut up.

    Attributes:
        t, n, k: tokens, outputs and terms of the sum in one block.
        n_warps, n_stages: of one program; blocks that are under way at a time.
    """

    t: int
    n: int
    k: int
    n_warps: int = 4
    n_stages: int = 4


def blocks_for(n_assignments: int, n_experts: int) -> ExpertBlocks:
    """What suits so many assignments, if they are spread evenly."""
    each = n_assignments / n_experts
    if each <= 16:
        return ExpertBlocks(16, 64, 128)
    if each <= 64:
        return ExpertBlocks(64, 64, 64)
    return ExpertBlocks(128, 128, 64, n_warps=8, n_stages=3)


@triton.jit  # type: ignore[untyped-decorator]
def count_kernel(ids, counts, n_assignments, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many assignments each expert has: ``counts`` starts as zeros."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_assignments
    expert = tl.load(ids + at, mask=inside, other=0)
    tl.atomic_add(counts + expert, 1, mask=inside, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def cut_into_tiles(  # type: ignore[no-untyped-def]
    expert, inside, count, start, tiles, BLOCK_T: tl.constexpr
):
    """Cut the assignments of each expert into tiles.

    ``tiles`` begins with how many there are; then come, for each: expert, first place, tokens.
    """
    n_tiles = tl.cdiv(count, BLOCK_T)
    first = tl.cumsum(n_tiles, 0) - n_tiles
    tl.store(tiles, tl.sum(n_tiles, 0))
    for at in range(tl.max(n_tiles, 0)):
        place = tiles + 1 + (first + at) * 3
        has = inside & (at < n_tiles)
        tl.store(place, expert, mask=has)
        tl.store(place + 1, start + at * BLOCK_T, mask=has)
        tl.store(place + 2, tl.minimum(count - at * BLOCK_T, BLOCK_T), mask=has)


@triton.jit  # type: ignore[untyped-decorator]
def plan_kernel(  # type: ignore[no-untyped-def]
    counts, cursors, tiles, n_experts, BLOCK_T: tl.constexpr, EXPERTS: tl.constexpr
):
    """Where the assignments of each expert begin, and their tiles."""
    expert = tl.arange(0, EXPERTS)
    inside = expert < n_experts
    count = tl.load(counts + expert, mask=inside, other=0)
    start = tl.cumsum(count, 0) - count
    tl.store(cursors + expert, start, mask=inside)
    cut_into_tiles(expert, inside, count, start, tiles, BLOCK_T)


@triton.jit  # type: ignore[untyped-decorator]
def order_kernel(  # type: ignore[no-untyped-def]
    ids,
    cursors,
    order,
    tiles,
    n_assignments,
    n_experts,
    BLOCK_T: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All that the other three do, by one program that has every assignment.

    Its threads hand one another numbers through memory: each of them is read past the first
    cache, which might have it as it was before.
    """
    expert = tl.arange(0, EXPERTS)
    inside = expert < n_experts
    tl.store(cursors + expert, tl.zeros([EXPERTS], tl.int32), mask=inside)
    tl.debug_barrier()
    at = tl.arange(0, BLOCK)
    has = at < n_assignments
    own = tl.load(ids + at, mask=has, other=0)
    rank = tl.atomic_add(cursors + own, 1, mask=has, sem="relaxed")
    tl.debug_barrier()
    count = tl.load(cursors + expert, mask=inside, other=0, volatile=True)
    start = tl.cumsum(count, 0) - count
    tl.debug_barrier()
    tl.store(cursors + expert, start, mask=inside)
    cut_into_tiles(expert, inside, count, start, tiles, BLOCK_T)
    tl.debug_barrier()
    place = rank + tl.load(cursors + own, mask=has, other=0, volatile=True)
    tl.store(order + place, at, mask=has)


@triton.jit  # type: ignore[untyped-decorator]
def place_kernel(ids, cursors, order, n_assignments, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Put each assignment into the next place of its expert.

    Which one comes first is left to chance; no product depends on it.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_assignments
    expert = tl.load(ids + at, mask=inside, other=0)
    place = tl.atomic_add(cursors + expert, 1, mask=inside, sem="relaxed")
    tl.store(order + place, at, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def expert_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    scales,
    out,
    order,
    tiles,
    N,
    K,
    n_choices,
    x_stride,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FIRST: tl.constexpr,
    SWIGLU: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per tile and block of outputs.

    The first product reads tokens and writes in the order of tiles; the second the reverse, an
    output for each assignment. The weights are the left operand, so that few tokens still fill the
    matrix units.
    """
    n_blocks = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0) // n_blocks
    if tile >= tl.load(tiles):
        return
    block = tl.program_id(0) % n_blocks
    expert = tl.load(tiles + 1 + tile * 3).to(tl.int64)
    start = tl.load(tiles + 2 + tile * 3)
    n_tokens = tl.load(tiles + 3 + tile * 3)
    t = tl.arange(0, BLOCK_T)
    has = t < n_tokens
    place = start + t
    assignment = tl.load(order + place, mask=has, other=0)
    source = assignment // n_choices if FIRST else place
    target = place if FIRST else assignment
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    n_inside = n < N
    k = tl.arange(0, BLOCK_K)
    n_rows = 2 * N if SWIGLU else N
    at_weight = weight + expert * n_rows * K + n[:, None] * K + k[None, :]
    at_x = x + source.to(tl.int64)[None, :] * x_stride + k[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    up_total = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for at in range(0, K, BLOCK_K):
        k_inside = k < K - at
        left_inside = n_inside[:, None] & k_inside[None, :]
        right = tl.load(at_x, mask=k_inside[:, None] & has[None, :], other=0.0)
        left = tl.load(at_weight, mask=left_inside, other=0.0)
        if HAS_SCALES:
            left = widened(left, right.dtype)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        if SWIGLU:
            up = tl.load(at_weight + N * K, mask=left_inside, other=0.0)
            if HAS_SCALES:
                up = widened(up, right.dtype)
            up_total = tl.dot(up, right, up_total, input_precision=PRECISION)
        at_weight += BLOCK_K
        at_x += BLOCK_K
    if HAS_SCALES:
        total *= tl.load(scales + expert * n_rows + n, mask=n_inside, other=0.0)[:, None]
        if SWIGLU:
            up_total *= tl.load(scales + expert * n_rows + N + n, mask=n_inside, other=0.0)[:, None]
    if SWIGLU:
        total = total * tl.sigmoid(total) * up_total
    elif FIRST:
        total = tl.maximum(total, 0.0)
        total = total * total
    at_out = out + target.to(tl.int64)[:, None] * N + n[None, :]
    value = tl.trans(total).to(out.dtype.element_ty)
    tl.store(at_out, value, mask=has[:, None] & n_inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def share_kernel(  # type: ignore[no-untyped-def]
    parts, shares, out, C, n_choices, BLOCK: tl.constexpr
):
    """The sum of a token's experts by their shares, in the order of its choices."""
    token = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < C
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(n_choices):
        at = token * n_choices + choice
        part = tl.load(parts + at * C + c, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(shares + at)
    tl.store(out + token * C + c, total.to(out.dtype.element_ty), mask=inside)


def experts(
    x: Tensor,
    first: Weight,
    second: Weight,
    ids: Tensor,
    shares: Tensor,
    *,
    activation: ExpertActivation,
    blocks: ExpertBlocks | None = None,
    n_few: int = FEW_ASSIGNMENTS,
) -> Tensor:
    """See ``reference.experts``. Reads the weights of each expert in use about once.

    Args:
        blocks: how the products are cut; None for what suits the sizes.
        n_few: as many assignments as one program puts in order.

    Raises:
        ValueError: there are more than ``MAX_EXPERTS`` experts.
    """
    T, C = x.shape
    n_experts, n_choices = len(first.values), ids.shape[1]
    if n_experts > MAX_EXPERTS:
        raise ValueError(f"{n_experts} experts; at most {MAX_EXPERTS} are run")
    F = second.values.shape[2]
    n_assignments = T * n_choices
    blocks = blocks or blocks_for(n_assignments, n_experts)
    order, tiles, n_tiles = _in_order(ids, n_experts, blocks.t, n_few)
    hidden = torch.empty(n_assignments, F, dtype=x.dtype, device=x.device)
    parts = torch.empty(n_assignments, C, dtype=torch.float32, device=x.device)
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    for is_first, source, weight, out in ((True, x, first, hidden), (False, hidden, second, parts)):
        N, K = out.shape[1], source.shape[1]
        expert_kernel[(n_tiles * triton.cdiv(N, blocks.n),)](
            source,
            weight.values,
            source if weight.scales is None else weight.scales,
            out,
            order,
            tiles,
            N,
            K,
            n_choices,
            source.stride(0),
            BLOCK_T=blocks.t,
            BLOCK_N=blocks.n,
            BLOCK_K=blocks.k,
            FIRST=is_first,
            SWIGLU=is_first and activation == "swiglu",
            HAS_SCALES=weight.scales is not None,
            PRECISION=precision,
            num_warps=blocks.n_warps,
            num_stages=blocks.n_stages,
        )
    out = torch.empty(T, C, dtype=x.dtype, device=x.device)
    block = min(triton.next_power_of_2(C), 1024)
    share_kernel[(T, triton.cdiv(C, block))](parts, shares, out, C, n_choices, BLOCK=block)
    return out


def _in_order(ids: Tensor, n_experts: int, block_t: int, n_few: int) -> tuple[Tensor, Tensor, int]:
    """The assignments by expert, their tiles, and the most tiles that there can be."""
    n_assignments = ids.numel()
    n_tiles = min(n_assignments, n_experts) + n_assignments // block_t
    cursors = torch.empty(n_experts, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(1 + 3 * n_tiles, dtype=torch.int32, device=ids.device)
    order = torch.empty(n_assignments, dtype=torch.int32, device=ids.device)
    all_experts = triton.next_power_of_2(n_experts)
    if n_assignments <= n_few:
        order_kernel[(1,)](
            ids,
            cursors,
            order,
            tiles,
            n_assignments,
            n_experts,
            BLOCK_T=block_t,
            EXPERTS=all_experts,
            BLOCK=triton.next_power_of_2(n_assignments),
            num_warps=8,
        )
        return order, tiles, n_tiles
    counts = torch.zeros_like(cursors)
    grid = (triton.cdiv(n_assignments, ASSIGNMENTS),)
    count_kernel[grid](ids, counts, n_assignments, BLOCK=ASSIGNMENTS)
    plan_kernel[(1,)](
        counts,
        cursors,
        tiles,
        n_experts,
        BLOCK_T=block_t,
        EXPERTS=all_experts,
        num_warps=8,
    )
    place_kernel[grid](ids, cursors, order, n_assignments, BLOCK=ASSIGNMENTS)
    return order, tiles, n_tiles
