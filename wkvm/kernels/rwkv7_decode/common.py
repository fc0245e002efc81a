"""What the kernels of a decode step have in common."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

NONE, SQUARED_RELU, TANH, SIGMOID = 0, 1, 2, 3
"""What is applied to a product."""

AHEAD_BYTES = 3 << 20
"""Of weights that are brought into the L2 cache ahead of their use, at a time."""


@triton.jit
def applied(x, what):  # type: ignore[no-untyped-def]
    """``x`` after the activation of that number."""
    if what == 1:
        x = tl.maximum(x, 0.0)
        x = x * x
    elif what == 2:
        # Of the exponential of a negative number: it cannot overflow.
        e = tl.exp(-2.0 * tl.abs(x))
        x = tl.where(x < 0, e - 1.0, 1.0 - e) / (1.0 + e)
    elif what == 3:
        x = tl.sigmoid(x)
    return x


_ASSEMBLES = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter knows no assembly: there a plain cast does the same."""


@triton.jit  # type: ignore[untyped-decorator]
def widened(values, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weights in ``dtype``, exactly: casts that the hardware is fast at.

    int8 is put in the low end of a mantissa, and away with what it stands on. From float8 there
    is an instruction to float16, and one from there to float32, but none to bfloat16.
    """
    if _ASSEMBLES and values.dtype == tl.int8 and dtype == tl.float32:
        values = tl.inline_asm_elementwise(
            "{ .reg .b32 u; xor.b32 u, $4, 0x80808080; "
            "prmt.b32 $0, u, 0x4B000000, 0x7440; prmt.b32 $1, u, 0x4B000000, 0x7441; "
            "prmt.b32 $2, u, 0x4B000000, 0x7442; prmt.b32 $3, u, 0x4B000000, 0x7443; "
            "add.f32 $0, $0, 0fCB000080; add.f32 $1, $1, 0fCB000080; "
            "add.f32 $2, $2, 0fCB000080; add.f32 $3, $3, 0fCB000080; }",
            "=&f,=&f,=&f,=&f,r",
            [values],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    elif _ASSEMBLES and values.dtype == tl.int8 and dtype == tl.float16:
        values = tl.inline_asm_elementwise(
            "{ .reg .b32 u, a, b, m; xor.b32 u, $2, 0x80808080; mov.b32 m, 0xE480E480; "
            "prmt.b32 a, u, 0x64646464, 0x4140; prmt.b32 b, u, 0x64646464, 0x4342; "
            "add.f16x2 $0, a, m; add.f16x2 $1, b, m; }",
            "=&r,=r,r",
            [values],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    elif values.dtype == tl.float8e4nv and dtype == tl.bfloat16:
        values = values.to(tl.float16).to(tl.float32).to(tl.bfloat16)
    else:
        values = values.to(dtype)
    return values


@triton.jit  # type: ignore[untyped-decorator]
def normalized(x, inside, weight, bias, eps, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Layer norm of one row in registers."""
    mean = tl.sum(x, 0) / C
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / C
    return centred * tl.rsqrt(variance + eps) * weight + bias


@triton.jit  # type: ignore[untyped-decorator]
def prefetch(ahead, program, n_programs, N_CHUNKS: tl.constexpr, N_THREADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bring chunks of 4 KiB into the L2 cache, shared out among all programs."""
    chunk = tl.arange(0, N_THREADS) * n_programs + program
    address = ahead.to(tl.int64) + chunk.to(tl.int64) * 4096
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.s32 p, $2, 1; "
        "@!p cp.async.bulk.prefetch.L2.global [$1], 4096; mov.b32 $0, 0; }",
        "=r,l,r",
        [address, (chunk < N_CHUNKS).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A token shift to overwrite, ``[N, C]``, and the ``[B, C]`` to overwrite its slots with.

    It is done one launch after the last one that reads the old: in there, programs would race.
    """

    shift: Tensor
    normed: Tensor


def ahead_chunks(ahead: Tensor | None) -> int:
    """Chunks of 4 KiB to bring into the cache."""
    if ahead is None:
        return 0
    return min(ahead.numel() * ahead.element_size(), AHEAD_BYTES) // 4096


def launch_options(pdl: bool) -> dict[str, bool]:
    """Options of a launch. Where it is off it is not named: the interpreter does not know it."""
    return {"launch_pdl": True} if pdl else {}
