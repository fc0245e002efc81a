"""Steps of paged attention, and plain softmax over sequences that were never cut into pages."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wkvm.core.layout import PAGE_TOKENS
from wkvm.kernels.interface import Kernels
from wkvm.kernels.rows import Rows

N_SLOTS = 5
MAX_PAGES = 5
N_PAGES = 17

STEPS = {
    "decode from nothing": ((2,), (1,), (0,)),
    "decode across the border of a page": ((3, 0, 4, 1), (1, 1, 1, 1), (63, 64, 65, 130)),
    "decode with pad rows": ((-1, 3, -1), (1, 1, 1), (0, 70, 0)),
    "a prompt": ((1,), (130,), (0,)),
    "a prompt behind others": ((4,), (67,), (100,)),
    "both with pad rows": ((2, -1, 0, 3), (5, 3, 1, 64), (62, 0, 127, 64)),
    "a prompt that attends in parts": ((1,), (140,), (170,)),
}
"""Slots, tokens of a row, and tokens that its slot holds before."""

SHAPES = {
    "many heads": (4, 4, 16, 16),
    "grouped": (6, 2, 24, 24),
    "one shared": (5, 1, 8, 8),
    "narrow values": (4, 2, 24, 10),
    "latents": (3, 1, 20, None),
}
"""Hq, Hkv, D and Dv; None for the values that are a part of the keys, 12 wide."""

LATENT = 12


@dataclass(frozen=True)
class Case:
    """One step over pages that hold some tokens already, and the whole sequences of its rows."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    pages: Tensor
    table: Tensor
    lengths: Tensor
    rows: Rows
    keys: dict[int, Tensor]
    values: dict[int, Tensor]

    def on(self, device: str) -> "Case":
        """The same, its tensors on a device."""
        return replace(
            self,
            q=self.q.to(device),
            k=self.k.to(device),
            v=None if self.v is None else self.v.to(device),
            pages=self.pages.to(device),
            table=self.table.to(device),
            lengths=self.lengths.to(device),
            rows=Rows(self.rows.slots.to(device), self.rows.slot_list, self.rows.lengths),
        )

    def run(self, kernels: Kernels, window: int | None = None, scale: float = 0.3) -> Tensor:
        """Attend, in place."""
        value_dim = LATENT if self.v is None else None
        return kernels.attention(
            self.q,
            self.k,
            self.v,
            self.pages[:, 1],
            self.table,
            self.lengths,
            self.rows,
            scale=scale,
            window=window,
            value_dim=value_dim,
        )

    def expected(self, window: int | None = None, scale: float = 0.3) -> Tensor:
        """The same in float64 on the host, over the sequences as they are."""
        heads = self.q.shape[1]
        width = LATENT if self.v is None else self.v.shape[2]
        y = torch.zeros(self.q.shape[0], heads, width, dtype=torch.float64)
        for row, slot in enumerate(self.rows.host_slots):
            if slot < 0:
                continue
            tokens = slice(self.rows.host_offsets[row], self.rows.host_offsets[row + 1])
            keys, values = self.keys[slot].double(), self.values[slot].double()
            n, per_head = len(keys), heads // keys.shape[1]
            keys, values = (x.repeat_interleave(per_head, 1) for x in (keys, values))
            scores = scale * torch.einsum("thd,jhd->htj", self.q[tokens].cpu().double(), keys)
            own = torch.arange(n - self.rows.lengths[row], n).unsqueeze(1)
            hidden = torch.arange(n) > own
            if window is not None:
                hidden |= torch.arange(n) <= own - window
            weights = scores.masked_fill(hidden, float("-inf")).softmax(2)
            y[tokens] = torch.einsum("htj,jhv->thv", weights, values)
        return y


def case_of(step: str, shape: str, dtype: torch.dtype = torch.float32) -> Case:
    """Pages lie anywhere, in a pool of two layers; whatever nobody wrote is NaN."""
    slots, n_new, n_held = STEPS[step]
    Hq, Hkv, D, Dv = SHAPES[shape]
    draw = torch.Generator().manual_seed(len(step))

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=draw).to(dtype)

    rows = Rows(torch.tensor(slots, dtype=torch.int32), slots, n_new)
    parts = 1 if Dv is None else 2
    pages = torch.full((N_PAGES, 2, parts, PAGE_TOKENS, Hkv, D), float("nan"), dtype=dtype)
    table = torch.full((N_SLOTS, MAX_PAGES), -1, dtype=torch.int32)
    lengths = torch.full((N_SLOTS, 3), 9, dtype=torch.int32)[:, 1]
    free = torch.randperm(N_PAGES, generator=draw).tolist()
    k = torch.zeros(rows.n_tokens, Hkv, D, dtype=dtype)
    v = None if Dv is None else torch.zeros(rows.n_tokens, Hkv, Dv, dtype=dtype)
    keys, values = dict[int, Tensor](), dict[int, Tensor]()
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        before, n = n_held[row], n_held[row] + n_new[row]
        lengths[slot] = before
        keys[slot] = normal(n, Hkv, D)
        values[slot] = keys[slot][..., :LATENT] if Dv is None else normal(n, Hkv, Dv)
        tokens = slice(rows.host_offsets[row], rows.host_offsets[row + 1])
        k[tokens] = keys[slot][before:]
        if v is not None:
            v[tokens] = values[slot][before:]
        for block in range(-(-n // PAGE_TOKENS)):
            table[slot, block] = page = free.pop()
            here = slice(block * PAGE_TOKENS, min(before, (block + 1) * PAGE_TOKENS))
            n_here = max(0, here.stop - here.start)
            pages[page, 1, 0, :n_here] = keys[slot][here]
            if v is not None:
                pages[page, 1, 1, :n_here, :, : v.shape[2]] = values[slot][here]
    return Case(normal(rows.n_tokens, Hq, D), k, v, pages, table, lengths, rows, keys, values)
