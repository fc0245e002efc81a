"""Chunks of prompts against the recurrence token by token in float64, where decays are extreme.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

from math import exp

import pytest
import torch
from torch import Tensor

from tests.interpreter import INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.models.float64_step import relative

GROUP_EPS = 64e-5

GPU_CASES = [
    pytest.param("cuda", torch.float32, 16, 64, id="float32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, 64, 64, id="bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, 64, 48, id="heads of 48", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, 64, 128, id="heads of 128", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, 16, 128, id="float32 of 128", marks=pytest.mark.gpu),
]
CASES = [pytest.param("cpu", torch.float32, 64, 16, id="cpu")] if INTERPRETED else GPU_CASES
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-3}

DECAYS = {"fast": 12.0, "slow": -12.0, "mixed": 0.0}
"""What is added to each channel's w0: decays of 0.545, of 1, and of all in between."""


def case(kind: str, T: int, H: int, K: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Random outputs of the products of a layer. ``same``: one key again and again."""
    draw = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    C = H * K
    rkv, second, vectors = normal(3, T, C), normal(T, 4, C), normal(8, C) * 0.3
    vectors[0] += 4 * normal(C) if kind == "mixed" else DECAYS.get(kind, -8.0)
    vectors[3] += 1
    vectors[4] += 1
    vectors[6] += 1
    if kind == "same":
        rkv[1] = rkv[1, 0] + 0.01 * normal(T, C)
        second[:, 2] += 4
    state = normal(3, H, K, K)
    state[[0, 2]] = float("nan")
    tensors = {"rkv": rkv.to(dtype), "second": second.to(dtype), "v_first": normal(T, C).to(dtype)}
    return {**tensors, "vectors": vectors, "state": state}


def exact(c: dict[str, Tensor], H: int, K: int) -> tuple[Tensor, Tensor]:
    """Outputs and last state, token by token in float64."""
    r, k, v = c["rkv"].double()
    lerp, w, a, g = c["second"].double().unbind(1)
    w0, a0, v0, k_k, k_a, r_k, norm_w, norm_b = c["vectors"].double()
    decay = torch.exp(-exp(-0.5) * torch.sigmoid(w0 + w))
    a = torch.sigmoid(a0 + a)
    v = v + (c["v_first"].double() - v) * torch.sigmoid(v0 + lerp)
    kap = torch.nn.functional.normalize((k * k_k).view(-1, H, K), dim=-1)
    k = k * (1 + (a - 1) * k_a)
    r, decay, k, v, a = (t.view(-1, H, K) for t in (r, decay, k, v, a))
    S = c["state"][1].double()
    ys = list[Tensor]()
    for t in range(len(r)):
        removed = torch.einsum("hkv,hk->hv", S, kap[t])
        S = (
            decay[t].unsqueeze(2) * S
            - (kap[t] * a[t]).unsqueeze(2) * removed.unsqueeze(1)
            + k[t].unsqueeze(2) * v[t].unsqueeze(1)
        )
        ys.append(torch.einsum("hkv,hk->hv", S, r[t]))
    y = torch.stack(ys)
    y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + GROUP_EPS).sqrt()
    y = y.flatten(1) * norm_w + norm_b
    bonus = (r * k * r_k.view(H, K)).sum(-1, keepdim=True) * v
    return (y + bonus.flatten(1)) * g, S


def absorbed(
    d: dict[str, Tensor], chunk: int, lengths: tuple[int, ...], slots: tuple[int, ...]
) -> Tensor:
    """Outputs of packed rows; states in place."""
    from wkvm.kernels import rwkv7_prefill as kernels

    rkv, device = d["rkv"].clone(), d["rkv"].device
    T, C = rkv.shape[1:]
    H, K = d["state"].shape[1:3]
    tables = kernels.tables_of(slots, lengths, chunk, device)
    n, narrow = len(tables.chunks), torch.float32 if rkv.dtype == torch.float32 else torch.float16

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=device)

    effects = kernels.Effects(
        empty(T, C, dtype=narrow),
        empty(T, C),
        empty(n, H, K, K, dtype=narrow),
        empty(n, H, K, K),
        empty(n, H, K),
        empty(T, H),
    )
    entering, y = empty(n, H, K, K, dtype=narrow), empty(T, C, dtype=rkv.dtype)
    kernels.within(rkv, d["v_first"], d["second"], d["vectors"], effects, tables)
    kernels.pass_states(effects, entering, d["state"], tables)
    gate = d["second"][:, 3]
    kernels.outputs(effects, entering, rkv[2], gate, d["vectors"], y, GROUP_EPS, tables)
    return y


@pytest.mark.parametrize(("device", "dtype", "chunk", "K"), CASES)
@pytest.mark.parametrize("kind", ["fast", "slow", "mixed", "same"])
def test_chunks_meet_the_recurrence_in_float64(
    kind: str, device: str, dtype: torch.dtype, chunk: int, K: int
) -> None:
    H, T = (1, 66) if INTERPRETED else (3, 300)
    c = case(kind, T, H, K, dtype)
    expected_y, expected_state = exact(c, H, K)
    d = {name: tensor.to(device) for name, tensor in c.items()}
    y = absorbed(d, chunk, (T,), (1,))
    # The same key again and again makes small differences of what was large.
    tolerance = TOLERANCE[dtype] * (4 if kind == "same" else 1)
    assert relative(d["state"][1], expected_state) < tolerance
    assert relative(y, expected_y) < tolerance
    assert d["state"][[0, 2]].isnan().all()


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("device", "dtype", "chunk", "K"), CASES)
def test_no_bit_depends_on_cuts_at_multiples_of_64_or_on_who_else_is_packed(
    device: str, dtype: torch.dtype, chunk: int, K: int, state_dtype: torch.dtype
) -> None:
    H, T, cut = (1, 66, 64) if INTERPRETED else (3, 300, 192)
    d = {name: tensor.to(device) for name, tensor in case("mixed", T, H, K, dtype).items()}
    d["state"] = d["state"].to(state_dtype)

    def part(*tokens: slice) -> dict[str, Tensor]:
        def of(tensor: Tensor, axis: int = 0) -> Tensor:
            return torch.cat([tensor.movedim(axis, 0)[some] for some in tokens]).movedim(0, axis)

        packed = {"rkv": of(d["rkv"], 1).contiguous(), "second": of(d["second"])}
        return {**d, **packed, "v_first": of(d["v_first"]), "state": d["state"].clone()}

    whole = part(slice(0, T))
    y = absorbed(whole, chunk, (T,), (1,))
    first = part(slice(5, 12), slice(0, cut))
    y_first = absorbed(first, chunk, (7, cut), (-1, 1))[7:]
    second = {**part(slice(cut, T), slice(0, 3)), "state": first["state"]}
    y_second = absorbed(second, chunk, (T - cut, 3), (1, -1))[: T - cut]
    assert torch.equal(torch.cat([y_first, y_second]), y)
    assert torch.equal(second["state"][1], whole["state"][1])


@starts_the_interpreter
def test_the_chunks_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter")
