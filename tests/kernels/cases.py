"""Random rows and tensors that every version of a kernel is tried on."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from wkvm.kernels.rows import Rows

ROWS = {
    "one token": ((2,), (1,)),
    "decode": ((5, 0, 3), (1, 1, 1)),
    "decode with pad rows": ((5, -1, 3, -1), (1, 1, 1, 1)),
    "prefill": ((1,), (7,)),
    "prefill and decode with pad rows": ((4, -1, 0, 2, -1), (5, 2, 1, 3, 1)),
    "only pad rows": ((-1, -1), (1, 2)),
}
"""Slots and lengths by what is special about them; slots are below ``N_SLOTS``."""

N_SLOTS = 6


def rows_of(name: str, device: str = "cpu") -> Rows:
    """One of ``ROWS``."""
    slots, lengths = ROWS[name]
    return Rows(torch.tensor(slots, dtype=torch.int32, device=device), slots, lengths)


@dataclass(frozen=True)
class Wkv7Case:
    """Arguments of ``wkv7`` without the rows. The state is one layer of a wider record."""

    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
    records: Tensor
    state: Tensor

    def exact_arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """``tensors`` in float64."""
        r, w, k, v, kap, a = (tensor.double() for tensor in self.tensors)
        return r, w, k, v, kap, a


def wkv7_case(rows: Rows, H: int, K: int, *, seed: int = 0) -> Wkv7Case:
    """Random arguments; the records of slots that ``rows`` does not name are NaN."""
    draw = torch.Generator().manual_seed(seed)
    device = rows.slots.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    T = rows.n_tokens
    r, k, v = (normal(T, H, K) for _ in range(3))
    w = torch.exp(-0.6065 * torch.rand(T, H, K, generator=draw))
    a = torch.rand(T, H, K, generator=draw)
    kap = normalize(normal(T, H, K), dim=-1)
    size = H * K * K
    records = normal(N_SLOTS, 3 * size)
    records[[slot for slot in range(N_SLOTS) if slot not in rows.host_slots]] = float("nan")
    records = records.to(device)
    state = records[:, size : 2 * size].view(N_SLOTS, H, K, K)
    r, w, k, v, kap, a = (tensor.to(device) for tensor in (r, w, k, v, kap, a))
    return Wkv7Case((r, w, k, v, kap, a), records, state)


def shift_case(
    rows: Rows, C: int, dtype: torch.dtype, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """``x``, the records, and the state within them; unnamed slots are NaN."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows.n_tokens, C, generator=draw).to(dtype)
    records = torch.randn(N_SLOTS, 3 * C, generator=draw).to(dtype)
    records[[slot for slot in range(N_SLOTS) if slot not in rows.host_slots]] = float("nan")
    x, records = x.to(rows.slots.device), records.to(rows.slots.device)
    return x, records, records[:, C : 2 * C]
