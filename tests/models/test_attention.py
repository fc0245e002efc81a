"""Attention with all its options against a plain one over whole sequences in float64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.guests import arena_of
from wkvm.core.layout import StateLayout, guest_tokens
from wkvm.kernels import cpu
from wkvm.kernels.linear import linear
from wkvm.kernels.rows import Rows
from wkvm.models.parts.attention import Attention, AttentionSizes, HeadNorm
from wkvm.models.parts.rotary import Rotary
from wkvm.models.parts.step import Step

C, HQ, HKV, D = 10, 6, 2, 8
N_TOKENS = 75
EPS = 1e-5


@dataclass(frozen=True)
class Options:
    """What differs between architectures."""

    is_gated: bool = False
    norms: str = "none"
    n_turned: int = 0
    window: int | None = None


OPTIONS = {
    "plain": Options(),
    "gates, norms of heads, a part turned": Options(is_gated=True, norms="heads", n_turned=4),
    "norms of all heads": Options(norms="all"),
    "all turned": Options(n_turned=D),
    "a window": Options(n_turned=D, window=20),
}


def normal(*sizes: int) -> Tensor:
    return 0.4 * torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def weights(options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Matrices of the projections and the output, norms of queries and keys, and frequencies."""
    n_queries = HQ * D * (2 if options.is_gated else 1)
    sizes = (D, D) if options.norms == "heads" else (HQ * D, HKV * D)
    query_norm, key_norm = (1 + normal(size) for size in sizes)
    frequencies = 3.0 ** -torch.arange(options.n_turned // 2).float()
    return (
        normal(n_queries + 2 * HKV * D, C),
        normal(C, HQ * D),
        query_norm,
        key_norm,
        frequencies,
    )


def part_of(options: Options) -> Attention:
    project, output, query_norm, key_norm, frequencies = weights(options)
    has_norms = options.norms != "none"
    return Attention(
        kernels=cpu,
        sizes=AttentionSizes(n_heads=HQ, n_shared=HKV, head_size=D, is_gated=options.is_gated),
        layer=1,
        project=linear(project),
        output=linear(output),
        scale=0.3,
        query_norm=HeadNorm(cpu, query_norm, EPS) if has_norms else None,
        key_norm=HeadNorm(cpu, key_norm, EPS) if has_norms else None,
        rotary=Rotary(frequencies, 1.2) if options.n_turned else None,
        window=options.window,
    )


def turned(heads: Tensor, frequencies: Tensor) -> Tensor:
    """Pairs as complex numbers, turned by the index of their token."""
    R = len(frequencies)
    pairs = torch.complex(heads[..., :R], heads[..., R : 2 * R])
    angles = torch.arange(len(heads)).double().unsqueeze(1) * frequencies.double()
    pairs = 1.2 * pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    return torch.cat((pairs.real, pairs.imag, heads[..., 2 * R :]), -1)


def normed(heads: Tensor, weight: Tensor) -> Tensor:
    rows = heads if len(weight) == D else heads.flatten(1)
    rows = rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
    return rows.view(heads.shape)


def expected(x: Tensor, options: Options) -> Tensor:
    """All of a sequence at once, in float64."""
    project, output, query_norm, key_norm, frequencies = (w.double() for w in weights(options))
    y = x.double() @ project.t()
    n_queries = len(project) - 2 * HKV * D
    q = y[:, :n_queries].view(len(x), HQ, -1)
    gate, q = q[..., D:], q[..., :D]
    k = y[:, n_queries : n_queries + HKV * D].view(-1, HKV, D)
    v = y[:, n_queries + HKV * D :].view(-1, HKV, D)
    if options.norms != "none":
        q, k = normed(q, query_norm), normed(k, key_norm)
    if options.n_turned:
        q, k = turned(q, frequencies), turned(k, frequencies)
    k, v = (heads.repeat_interleave(HQ // HKV, 1) for heads in (k, v))
    scores = 0.3 * torch.einsum("thd,jhd->htj", q, k)
    ages = torch.arange(len(x)).unsqueeze(1) - torch.arange(len(x))
    hidden = (ages < 0) | (ages >= (options.window or len(x)))
    y = torch.einsum("htj,jhd->thd", scores.masked_fill(hidden, float("-inf")).softmax(2), v)
    if options.is_gated:
        y = y * gate.sigmoid()
    return y.flatten(1) @ output.t()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("cuts", [[], [1, 2, 64, 66], [33]])
def test_a_sequence_in_pieces_meets_attention_over_all_of_it(name: str, cuts: list[int]) -> None:
    options = OPTIONS[name]
    part, x = part_of(options), normal(N_TOKENS, C)
    layout = StateLayout((guest_tokens(),), part.sizes.guest(2, "float32"))
    arena = arena_of(layout, 3, n_tokens=N_TOKENS)
    arena.zero([1])
    slots, found = torch.tensor([1], dtype=torch.int32), list[Tensor]()
    for start, end in zip([0, *cuts], [*cuts, N_TOKENS], strict=True):
        step = Step(Rows(slots, (1,), (end - start,)), arena.views)
        found.append(part(x[start:end], step))
        step.advance()
    assert (torch.cat(found) - expected(x, options)).abs().max() < 1e-5
