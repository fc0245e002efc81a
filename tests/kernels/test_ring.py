"""The fold of a ring in plain torch, against the recurrence token by token."""

import pytest
import torch
from torch import Tensor

from tests.models.float64_step import relative
from wkvm.kernels import reference
from wkvm.kernels.ring import LOG_DECAY, fold
from wkvm.kernels.rows import Rows

N, L, H, K, R = 3, 2, 2, 16, 8
TOLERANCE = 1e-6
"""Relative norm, float32."""


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


VECTORS = random(L, 8, H * K, seed=1) * 0.5
RING = random(N, L, H, R - 1, 4, K, seed=2)
STATE = random(N, L, H, K, K, seed=3)


def token_by_token(slot: int, n: int) -> Tensor:
    """The state after ``n`` entries, by the reference kernel in float64: ``[L, H, K, V]``."""
    results = list[Tensor]()
    for layer in range(L):
        w0, a0, _, k_k, k_a = VECTORS[layer, :5].double().view(5, H, K)
        k, w, a, v = RING[slot, layer, :, :n].double().permute(2, 1, 0, 3)
        decay = (LOG_DECAY * torch.sigmoid(w0 + w)).exp()
        rate = torch.sigmoid(a0 + a)
        kap = torch.nn.functional.normalize(k * k_k, dim=-1)
        key = k * (1 + (rate - 1) * k_a)
        state = STATE[slot, layer].double()[None].clone()
        rows = Rows(torch.tensor([0], dtype=torch.int32), (0,), (n,))
        reference.wkv7(torch.zeros_like(k), decay, key, v, kap, rate, state, rows)
        results.append(state[0])
    return torch.stack(results)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_a_folded_state_is_that_of_the_tokens_one_by_one(n: int) -> None:
    state, fill = STATE.clone(), torch.full((N, 1), n, dtype=torch.int32)
    fold(state, RING, fill, VECTORS, torch.tensor([2, -1], dtype=torch.int32))
    assert relative(state[2], token_by_token(2, n)) < TOLERANCE
    assert fill.flatten().tolist() == [n, n, 0]
    assert torch.equal(state[:2], STATE[:2])


def test_an_empty_ring_changes_no_bit() -> None:
    state, fill = STATE.clone(), torch.zeros(N, 1, dtype=torch.int32)
    fold(state, torch.full_like(RING, torch.nan), fill, VECTORS, torch.tensor([0, 1, 2]))
    assert torch.equal(state, STATE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_state_of_two_bytes_is_rounded_once(dtype: torch.dtype) -> None:
    given = STATE.to(dtype)
    state, wide = given.clone(), given.float()
    for one in (state, wide):
        fill = torch.full((N, 1), 5, dtype=torch.int32)
        fold(one, RING, fill, VECTORS, torch.tensor([1]))
    assert torch.equal(state[1], wide[1].to(dtype))
