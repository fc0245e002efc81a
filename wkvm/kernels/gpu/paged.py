"""Keys and values in pages of the guest pool: where they lie, and one tile of attention to them.

A program has some heads of queries that read one head of keys, of one token or of several: its
M rows. A key is loaded as a *main* part and a *tail*: of MLA's latents the main part is the value
as well, and the tail is what only the score sees; of anything else the main part is all.
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

from wkvm.core.layout import PAGE_TOKENS
from wkvm.kernels.gpu.sizes import block_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of keys, values and heads, as the kernels take them.

    Attributes:
        n_kv: heads of keys.
        group: heads of queries that read one of them.
        key: elements of a key.
        value: elements of a value.
        shared: whether a value is the first elements of its key.
    """

    n_kv: int
    group: int
    key: int
    value: int
    shared: bool

    @property
    def main(self) -> int:
        """Elements of the main part of a key."""
        return self.value if self.shared else self.key

    def constants(self) -> dict[str, int | bool]:
        """Those of every kernel that reads pages."""
        tail = self.key - self.main
        return {
            "HKV": self.n_kv,
            "GROUP": self.group,
            "D": self.key,
            "MAIN": self.main,
            "DV": self.value,
            "BLOCK_MAIN": block_of(self.main),
            "BLOCK_TAIL": block_of(tail) if tail else 0,
            "BLOCK_V": block_of(self.value),
            "SHARED": self.shared,
            "PAGE": PAGE_TOKENS,
        }


def heads_of(q: Tensor, k: Tensor, v: Tensor | None, pages: Tensor, value_dim: int | None) -> Heads:
    """See that the arguments of ``attention`` fit one another, and what sizes they have.

    Raises:
        ValueError: they do not, or a head of one of them, or a page of a layer, is in more than
            one piece.
    """
    T, n_q, D = q.shape
    n_kv = k.shape[1]
    n_parts, n_values = (1, value_dim or 0) if v is None else (2, v.shape[2])
    tensors = {"q": q, "k": k, "pages": pages} | ({} if v is None else {"v": v})
    due: dict[str, tuple[int, ...]] = {
        "k": (T, n_kv, D),
        "v": (T, n_kv, n_values),
        "q": (T, n_q, D),
    }
    due["pages"] = (pages.shape[0], n_parts, PAGE_TOKENS, n_kv, D)
    for name, tensor in tensors.items():
        # Heads of a token may be apart, such as queries that have gates between them.
        is_whole = tensor[0].is_contiguous() if name == "pages" else tensor.stride(2) == 1
        if tensor.shape != due[name] or not is_whole or tensor.dtype != q.dtype:
            raise ValueError(
                f"{name} {tuple(tensor.shape)}, {tensor.dtype}, strides {tensor.stride()}, where"
                f" {due[name]} of {q.dtype} is due"
            )
    if n_q % n_kv or not 0 < n_values <= D or q.dtype not in DTYPES:
        raise ValueError(f"{n_q} heads for {n_kv}, values of {n_values} of {D}, {q.dtype}")
    return Heads(n_kv, n_q // n_kv, D, n_values, v is None)


@triton.jit  # type: ignore[untyped-decorator]
def absorb_tile(  # type: ignore[no-untyped-def]
    query,
    query_tail,
    largest,
    total,
    acc,
    head_pages,
    table_row,
    tile,
    first,
    end,
    positions,
    page_stride,
    scale_log2,
    HKV: tl.constexpr,
    D: tl.constexpr,
    MAIN: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_MAIN: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
    BLOCK_V: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take the ``tile``-th ``BLOCK_N`` tokens of a slot into the softmax of M rows.

    Args:
        query, query_tail: ``[M, BLOCK_MAIN]``, and ``[M, BLOCK_TAIL]`` if that is not 0.
        largest, total, acc: ``[M]``, ``[M]``, ``[M, BLOCK_V]``: the largest score so far, in base
            2; the sum of the weights, and of the weighted values, relative to it.
        head_pages: the pool, at the head of keys.
        first, end: no token before the one or from the other on is read. What a page holds there
            may be anything.
        positions: ``[M]``: the last token that each row sees.
        MASKED: whether rows differ in what they see of the tile, or the tile is not whole.

    Returns:
        The three, with the tile.
    """
    places = tl.arange(0, BLOCK_N)
    mains = tl.arange(0, BLOCK_MAIN)
    seen_at = tile * BLOCK_N + places
    page = tl.load(table_row + tile * BLOCK_N // PAGE).to(tl.int64)
    # Scalars to the pointer, and 32 bits for the rest.
    tile_pages = head_pages + page * page_stride + (tile * BLOCK_N % PAGE) * (HKV * D)
    at = tile_pages + places[:, None] * (HKV * D)
    is_there = (seen_at >= first) & (seen_at < end)
    if MASKED and MAIN == BLOCK_MAIN:
        key = tl.load(at + mains[None, :], mask=is_there[:, None], other=0.0)
    elif MASKED:
        inside = is_there[:, None] & (mains < MAIN)[None, :]
        key = tl.load(at + mains[None, :], mask=inside, other=0.0)
    elif MAIN == BLOCK_MAIN:
        key = tl.load(at + mains[None, :])
    else:
        key = tl.load(at + mains[None, :], mask=(mains < MAIN)[None, :], other=0.0)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if BLOCK_TAIL > 0:
        tails = MAIN + tl.arange(0, BLOCK_TAIL)
        inside = (tails < D)[None, :]
        if MASKED:
            inside = inside & is_there[:, None]
        key_tail = tl.load(at + tails[None, :], mask=inside, other=0.0)
        scores = tl.dot(query_tail, tl.trans(key_tail), scores, input_precision=PRECISION)
    scores *= scale_log2
    if MASKED:
        sees = (seen_at[None, :] <= positions[:, None]) & is_there[None, :]
        if WINDOW > 0:
            sees = sees & (seen_at[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(sees, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    # A row that has seen nothing yet: any number but infinity.
    reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - reference[:, None])
    shrink = tl.exp2(largest - reference)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    if SHARED:
        value = key
    else:
        at_value = at + PAGE * HKV * D
        values = tl.arange(0, BLOCK_V)
        if MASKED:
            inside = is_there[:, None] & (values < DV)[None, :]
            value = tl.load(at_value + values[None, :], mask=inside, other=0.0)
        elif DV == BLOCK_V:
            value = tl.load(at_value + values[None, :])
        else:
            value = tl.load(at_value + values[None, :], mask=(values < DV)[None, :], other=0.0)
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision=PRECISION)
    return new_largest, total, acc
