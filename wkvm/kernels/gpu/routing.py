"""Which experts a token goes through, one launch for all tokens; and gates, one launch each."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.gpu.norms import strides_of
from wkvm.kernels.reference.routing import Shared


@triton.jit  # type: ignore[untyped-decorator]
def route_kernel(  # type: ignore[no-untyped-def]
    logits,
    bias,
    shares,
    ids,
    stride,
    scale,
    GROUPS: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr,
    EACH: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALISED: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program per token, which has all experts in registers; see the two functions below.

    Whatever logits hold, ids are of experts that there are.
    """
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BLOCK_G)
    places = tl.arange(0, BLOCK_E)
    inside = (groups < GROUPS)[:, None] & (places < EACH)[None, :]
    experts = groups[:, None] * EACH + places[None, :]
    at = logits + token * stride + experts
    logit = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        score = tl.sigmoid(logit)
        choice = score + tl.load(bias + experts, mask=inside, other=0.0)
        choice = tl.where(inside, choice, float("-inf"))
    else:
        largest = tl.max(tl.max(logit, 1), 0)
        score = tl.exp(logit - largest)
        score = score / tl.sum(tl.sum(score, 1), 0)
        choice = logit
    if CHOSEN_GROUPS < GROUPS:
        best = tl.argmax(choice, 1)
        others = tl.where(places[None, :] == best[:, None], float("-inf"), choice)
        merit = tl.max(choice, 1) + tl.max(others, 1)
        is_open = groups < 0
        for _ in range(CHOSEN_GROUPS):
            winner = tl.argmax(merit, 0)
            is_open = is_open | (groups == winner)
            merit = tl.where(groups == winner, float("-inf"), merit)
        choice = tl.where(is_open[:, None], choice, float("-inf"))
    lanes = tl.arange(0, BLOCK_G * BLOCK_E)
    choice = tl.reshape(choice, [BLOCK_G * BLOCK_E])
    score = tl.reshape(score, [BLOCK_G * BLOCK_E])
    experts = tl.reshape(experts, [BLOCK_G * BLOCK_E])
    places_of_chosen = tl.arange(0, BLOCK_K)
    share = tl.zeros([BLOCK_K], tl.float32)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    for place in range(CHOSEN):
        is_winner = lanes == tl.argmax(choice, 0)
        is_here = places_of_chosen == place
        share = tl.where(is_here, tl.sum(tl.where(is_winner, score, 0.0), 0), share)
        chosen = tl.where(is_here, tl.sum(tl.where(is_winner, experts, 0), 0), chosen)
        choice = tl.where(is_winner, float("-inf"), choice)
    if RENORMALISED:
        share = share / (tl.sum(share, 0) + 1e-20)
    share *= scale
    chosen = tl.minimum(chosen, GROUPS * EACH - 1)
    n_choices: tl.constexpr = CHOSEN if SHARED == "none" else CHOSEN + 1
    if SHARED != "none":
        of_shared = 1.0
        if SHARED == "gated":
            gate = tl.load(logits + token * stride + GROUPS * EACH).to(tl.float32)
            of_shared = tl.sigmoid(gate)
        share = tl.where(places_of_chosen == CHOSEN, of_shared, share)
        chosen = tl.where(places_of_chosen == CHOSEN, GROUPS * EACH, chosen)
    is_chosen = places_of_chosen < n_choices
    at = token * n_choices + places_of_chosen
    tl.store(shares + at, share, mask=is_chosen)
    tl.store(ids + at, chosen.to(tl.int64), mask=is_chosen)


@triton.jit  # type: ignore[untyped-decorator]
def open_gate_kernel(  # type: ignore[no-untyped-def]
    y,
    gate,
    out,
    y_token_stride,
    y_head_stride,
    gate_token_stride,
    gate_head_stride,
    H,
    D,
    BLOCK: tl.constexpr,
):
    """One program per token and ``BLOCK`` elements of all its heads."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < H * D
    head, place = columns // D, columns % D
    at_y = y + token * y_token_stride + head * y_head_stride + place
    at_gate = gate + token * gate_token_stride + head * gate_head_stride + place
    value = tl.load(at_y, mask=inside, other=0.0).to(tl.float32)
    value *= tl.sigmoid(tl.load(at_gate, mask=inside, other=0.0).to(tl.float32))
    tl.store(out + token * H * D + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def add_shared_kernel(  # type: ignore[no-untyped-def]
    y, shared, gate, out, C, gate_stride, HAS_GATE: tl.constexpr, BLOCK: tl.constexpr
):
    """One program per token and ``BLOCK`` elements."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < C
    added = tl.load(shared + token * C + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_GATE:
        added *= tl.sigmoid(tl.load(gate + token * gate_stride).to(tl.float32))
    total = tl.load(y + token * C + columns, mask=inside, other=0.0).to(tl.float32) + added
    tl.store(out + token * C + columns, total.to(out.dtype.element_ty), mask=inside)


def route_softmax(
    logits: Tensor, n_chosen: int, *, is_renormalised: bool, shared: Shared = "none"
) -> tuple[Tensor, Tensor]:
    """``reference.route_softmax``."""
    return _route(logits, None, n_chosen, 1, 1, is_renormalised, 1.0, shared)


def route_sigmoid(
    logits: Tensor,
    bias: Tensor,
    n_chosen: int,
    *,
    n_groups: int,
    n_chosen_groups: int,
    is_renormalised: bool,
    scale: float,
    shared: Shared = "none",
) -> tuple[Tensor, Tensor]:
    """``reference.route_sigmoid``."""
    groups = (n_groups, n_chosen_groups)
    return _route(logits, bias, n_chosen, *groups, is_renormalised, scale, shared)


def _route(
    logits: Tensor,
    bias: Tensor | None,
    n_chosen: int,
    n_groups: int,
    n_chosen_groups: int,
    is_renormalised: bool,
    scale: float,
    shared: Shared,
) -> tuple[Tensor, Tensor]:
    T = logits.shape[0]
    E = logits.shape[1] - (shared == "gated")
    n_choices = n_chosen + (shared != "none")
    shares = torch.empty(T, n_choices, dtype=torch.float32, device=logits.device)
    ids = torch.empty(T, n_choices, dtype=torch.int64, device=logits.device)
    route_kernel[(T,)](
        logits,
        logits if bias is None else bias,
        shares,
        ids,
        logits.stride(0),
        scale,
        GROUPS=n_groups,
        CHOSEN_GROUPS=n_chosen_groups,
        EACH=E // n_groups,
        CHOSEN=n_chosen,
        SIGMOID=bias is not None,
        RENORMALISED=is_renormalised,
        SHARED=shared,
        BLOCK_G=triton.next_power_of_2(n_groups),
        BLOCK_E=triton.next_power_of_2(E // n_groups),
        BLOCK_K=triton.next_power_of_2(n_choices),
        num_warps=1 if E <= 128 else 2,
    )
    return shares, ids


def open_gate(y: Tensor, gate: Tensor) -> Tensor:
    """``reference.open_gate``."""
    T, H, D = y.shape
    _, y_token_stride, y_head_stride = strides_of(y)
    _, gate_token_stride, gate_head_stride = strides_of(gate)
    out = torch.empty(T, H, D, dtype=y.dtype, device=y.device)
    block = min(1024, triton.next_power_of_2(H * D))
    open_gate_kernel[(T, triton.cdiv(H * D, block))](
        y,
        gate,
        out,
        y_token_stride,
        y_head_stride,
        gate_token_stride,
        gate_head_stride,
        H,
        D,
        BLOCK=block,
        num_warps=4,
    )
    return out


def add_shared(y: Tensor, shared: Tensor, gate: Tensor | None) -> Tensor:
    """``reference.add_shared``, of contiguous tensors.

    Raises:
        ValueError: they are not.
    """
    if not (y.is_contiguous() and shared.is_contiguous()) or y.shape != shared.shape:
        raise ValueError(f"y {tuple(y.shape)} and shared {tuple(shared.shape)}, strided")
    T, C = y.shape
    out = torch.empty_like(y)
    block = min(1024, triton.next_power_of_2(C))
    add_shared_kernel[(T, triton.cdiv(C, block))](
        y,
        shared,
        shared if gate is None else gate,
        out,
        C,
        0 if gate is None else gate.stride(0),
        HAS_GATE=gate is not None,
        BLOCK=block,
        num_warps=4,
    )
    return out
