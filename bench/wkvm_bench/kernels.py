"""Kernels on a CPU under their roofline: what the machine copies and multiplies, turn by turn.

Every turn times a kernel, a plain copy and a large matrix product. The roof over a kernel is what
the copy's speed allows at its operations a byte, or the product's speed where that is less; the
ratio is the kernel's share of it. Operations are those of the recurrence as it is written down,
token by token, and bytes those that nobody can do without: states read and written once, inputs
read once, outputs written once. A kernel that computes a prompt in chunks does others than are
counted, and one whose states lie in the processor's cache can be above the roof.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from wkvm.kernels.cpu.delta import gated_delta
from wkvm.kernels.cpu.rwkv7 import wkv7
from wkvm.kernels.cpu.ssd import ssd
from wkvm.kernels.rows import Rows
from wkvm_bench.harness import Comparison

COPY_BYTES = 1 << 28
SIDE = 1024
"""Of the large product."""
ROWS = (1, 16, 64)
N_PROMPT = 512
WIDTH = 2048
SECONDS = 0.05
"""A sample takes about so long."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is timed, and what is counted of it.

    Attributes:
        operations: multiplications and additions, each by itself.
        n_bytes: see the module.
    """

    name: str
    run: Callable[[], object]
    operations: float
    n_bytes: float


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark, in float32."""
    rows, n_prompt, width, n = ((2,), 8, 64, 1) if smoke else (ROWS, N_PROMPT, WIDTH, 9)
    n_threads_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        with torch.inference_mode():
            machine = _Machine((1 << 16, 32) if smoke else (COPY_BYTES, SIDE))
            return [
                _under_its_roof(kernel, machine, n)
                for kernel in _kernels(rows, n_prompt, width, is_tiny=smoke)
            ]
    finally:
        torch.set_num_threads(n_threads_before)


class _Machine:
    """What this machine does at best, measured again in each turn."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        n_bytes, side = sizes
        self._from, self._to = torch.ones(2, n_bytes // 8).unbind(0)
        self._n_bytes = n_bytes
        self._left, self._right = torch.randn(2, side, side).unbind(0)
        self._operations = 2.0 * side**3

    def rates(self) -> tuple[float, float]:
        """Bytes a second of a copy, read and written together; operations a second of a product."""
        return (
            self._n_bytes / _seconds(partial(self._to.copy_, self._from)),
            self._operations / _seconds(partial(torch.mm, self._left, self._right)),
        )


def _under_its_roof(kernel: Kernel, machine: _Machine, n: int) -> Comparison:
    """Turns of a kernel and of the machine, each pair in the other order than the one before."""
    kernel.run()
    per_byte = kernel.operations / kernel.n_bytes
    found, roofs, copies, products = list[float](), list[float](), list[float](), list[float]()
    for at in range(n):
        early = machine.rates() if at % 2 else None
        found.append(kernel.operations / _seconds(kernel.run))
        copy, product = early or machine.rates()
        roofs.append(min(copy * per_byte, product))
        copies.append(copy)
        products.append(product)
    besides = {
        "operations a byte": per_byte,
        "us": kernel.operations / sorted(found)[n // 2] * 1e6,
        "copy, GB/s": sorted(copies)[n // 2] / 1e9,
        "product, Gop/s": sorted(products)[n // 2] / 1e9,
    }
    a, b = (tuple(one / 1e9 for one in side) for side in (found, roofs))
    return Comparison(kernel.name, "kernel", "its roof", "Gop/s", a, b, None, besides)


def _seconds(run: Callable[[], object]) -> float:
    """Of one call, of as many as take ``SECONDS`` together."""
    n, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < SECONDS or not n:
        run()
        n += 1
    return taken / n


def _kernels(rows: Sequence[int], n_prompt: int, width: int, *, is_tiny: bool) -> Iterator[Kernel]:
    """All of them: recurrences by rows and with a prompt, and products by rows."""
    for n_rows in rows:
        yield from _recurrences(n_rows, 1, is_tiny=is_tiny)
    yield from _recurrences(1, n_prompt, is_tiny=is_tiny)
    weights = torch.randn(width, width)
    for n_rows in (*rows, n_prompt):
        x = torch.randn(n_rows, width)
        operations = 2.0 * n_rows * width**2
        n_bytes = 4.0 * (width**2 + 2 * n_rows * width)
        name = f"a product of {width:,} by {width:,}, {n_rows} rows"
        yield Kernel(name, partial(torch.mm, x, weights), operations, n_bytes)


def _recurrences(n_rows: int, n_tokens: int, *, is_tiny: bool) -> Iterator[Kernel]:
    """A layer of each family, in the shapes of released models."""
    rows = Rows(torch.arange(n_rows, dtype=torch.int32), tuple(range(n_rows)), (n_tokens,) * n_rows)
    T = rows.n_tokens
    load = f"{n_rows} rows" if n_tokens == 1 else f"a prompt of {n_tokens}"

    def kernel(
        name: str, run: Callable[[], Tensor], state: Tensor, each: int, inputs: Sequence[Tensor]
    ) -> Kernel:
        """Of so many operations for each number of a state and token."""
        n_values = state[0].numel()
        moved = 2 * state.nbytes + sum(one.nbytes for one in inputs)
        return Kernel(f"{name}, {load}", run, float(each * n_values * T), float(moved))

    H, K = (2, 8) if is_tiny else (32, 64)
    state = torch.randn(n_rows, H, K, K)
    r, k, v = torch.randn(3, T, H, K).unbind(0)
    w, a = torch.rand(2, T, H, K).unbind(0)
    kap = torch.nn.functional.normalize(torch.randn(T, H, K), dim=-1)
    # Decay 1, read 2, removal 2, key and value 2, output 2.
    inputs = (r, w, k, v, kap, a, v)
    yield kernel(
        f"RWKV-7, {H} heads of {K}",
        partial(wkv7, r, w, k, v, kap, a, state, rows),
        state,
        9,
        inputs,
    )

    H, P, N = (2, 8, 8) if is_tiny else (80, 64, 128)
    state = torch.randn(n_rows, H, P, N)
    x, dt, A = torch.randn(T, H, P), torch.rand(T, H), -torch.rand(H)
    B, C = torch.randn(2, T, 1, N).unbind(0)
    # Decay 1, input 2, output 2.
    run = partial(ssd, x, dt, A, B, C, torch.ones(H), state, rows)
    yield kernel(f"Mamba-2, {H} heads of {P} by {N}", run, state, 5, (x, dt, B, C, x))

    H, K = (2, 8) if is_tiny else (32, 128)
    state = torch.randn(n_rows, H, K, K)
    q, k, v = torch.randn(3, T, H, K).unbind(0)
    g, beta = -torch.rand(T, H), torch.rand(T, H)
    # Decay 1, read 2, correction 2, output 2.
    run = partial(gated_delta, q, k, v, g, beta, state, rows)
    yield kernel(f"gated delta rule, {H} heads of {K}", run, state, 7, (q, k, v, g, beta, v))
