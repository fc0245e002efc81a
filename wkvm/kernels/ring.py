"""The ring of deferred writes in plain torch: for states in host memory, and to compare with.

See ``wkvm.kernels.rwkv7_decode.deferred``, whose ``fold`` this is on any device, slowly.
"""

from math import exp

import torch
from torch import Tensor

LOG_DECAY = -exp(-0.5)
"""The lowest log decay: a decay is exp of this times a sigmoid."""


def fold(state: Tensor, ring: Tensor, fill: Tensor, vectors: Tensor, slots: Tensor) -> None:
    """Take the rings of some slots into their states, of all layers, and leave them empty.

    About 20 ms for a record of 12.8 MB on a core.

    Args:
        state: ``[N, L, H, K, K]`` float32, float16 or bfloat16, ``[key, value]``; rounded once.
        ring: ``[N, L, H, R - 1, 4, K]``: k, w, a and v of each entry. Not written.
        fill: ``[N, 1]`` int32: entries in use, of all layers and heads.
        vectors: ``[L, 8, C]`` float32; of each layer w0, a0, v0, k_k, k_a and three that are not
            used here.
        slots: ``[B]`` int32, distinct where not negative. No other slot is read or written.
    """
    _, L, H, K, _ = state.shape
    by_head = vectors.view(L, 8, H, K)
    w0, a0, k_k, k_a = (by_head[:, at] for at in (0, 1, 3, 4))
    for slot in slots.tolist():
        if slot < 0:
            continue
        S = state[slot].float()
        n = min(int(fill[slot, 0]), ring.shape[3])
        for entry in ring[slot, :, :, :n].float().unbind(2):
            k, w, a, v = entry.unbind(2)
            decay = ((w0 + w).sigmoid() * LOG_DECAY).exp()
            a = (a0 + a).sigmoid()
            kap = k * k_k
            kap = kap / torch.linalg.vector_norm(kap, dim=-1, keepdim=True).clamp(min=1e-12)
            k = k * (1 + (a - 1) * k_a)
            removed = (S * kap[..., None]).sum(2)
            S = (
                decay[..., None] * S
                - (kap * a)[..., None] * removed[..., None, :]
                + k[..., None] * v[..., None, :]
            )
        state[slot] = S
        fill[slot] = 0
