"""Random arguments of ``gated_delta``, whose state is one tensor of a wider record."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.cases import N_SLOTS
from wkvm.kernels.rows import Rows

SHAPES = {"one head": (1, 1, 3, 5), "shared keys": (2, 6, 8, 12), "wide keys": (3, 3, 16, 4)}
"""Hk, Hv, K and V: key heads and value heads, and the sizes of each."""


@dataclass(frozen=True)
class DeltaCase:
    """``inputs`` are q, k, v, g and beta; ``state`` is a view of ``records``."""

    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    records: Tensor
    state: Tensor

    def of_tokens(self, start: int, end: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The inputs of some tokens."""
        q, k, v, g, beta = (each[start:end] for each in self.inputs)
        return q, k, v, g, beta


def delta_case(
    rows: Rows,
    shape: tuple[int, int, int, int],
    *,
    by_channel: bool,
    dtype: torch.dtype = torch.float64,
    state_dtype: torch.dtype | None = None,
    strength: float = 1.0,
    seed: int = 0,
) -> DeltaCase:
    """Arguments in ``dtype``, decays down to ``exp(-strength)``; slots without a row hold NaN."""
    draw = torch.Generator().manual_seed(seed)
    exact = torch.promote_types(dtype, torch.float32)
    Hk, Hv, K, V = shape
    T = rows.n_tokens

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=draw).to(dtype)

    g = torch.rand(*((T, Hv, K) if by_channel else (T, Hv)), generator=draw)
    beta = 2 * torch.rand(T, Hv, generator=draw)
    size = Hv * K * V
    records = torch.randn(N_SLOTS, 2 * size + 3, generator=draw).to(state_dtype or exact)
    records[[slot for slot in range(N_SLOTS) if slot not in rows.host_slots]] = float("nan")
    state = records[:, 3 : 3 + size].view(N_SLOTS, Hv, K, V)
    inputs = (normal(T, Hk, K), normal(T, Hk, K), normal(T, Hv, V))
    return DeltaCase((*inputs, -strength * g.to(exact).pow(4), beta.to(exact)), records, state)
