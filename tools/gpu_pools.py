"""Pages of a guest pool on a GPU, full of random tokens, and what attention to them is exactly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wkvm.core.layout import PAGE_TOKENS
from wkvm.kernels.rows import Rows


@dataclass(frozen=True)
class Shape:
    """Heads of queries and of keys, and their size; the size of a value that is part of its key."""

    name: str
    Hq: int
    Hkv: int
    D: int
    latent: int | None = None

    @property
    def n_parts(self) -> int:
        """Keys and values, or latents alone."""
        return 1 if self.latent else 2

    @property
    def Dv(self) -> int:  # noqa: N802
        """Elements of a value."""
        return self.latent or self.D

    @property
    def token_bytes(self) -> int:
        """Of bfloat16, in one layer."""
        return 2 * self.n_parts * self.Hkv * self.D

    @property
    def scale(self) -> float:
        """Of the scores."""
        return float(self.D**-0.5)


QWEN = Shape("Qwen3.5", 16, 4, 256)
LATENTS = Shape("MLA", 32, 1, 576, 512)
LLAMA = Shape("heads of 128", 32, 8, 128)
SMALL = Shape("heads of 80", 15, 3, 80)


@dataclass(frozen=True)
class Pool:
    """Pages of some slots, in any order, and how many tokens each slot holds."""

    shape: Shape
    pages: Tensor
    table: Tensor
    lengths: Tensor

    def layer(self, index: int) -> Tensor:
        """The pages of one layer."""
        return self.pages[:, index]

    def held(self, slot: int, n: int, layer: int = 0) -> tuple[Tensor, Tensor]:
        """The first ``n`` keys and values of a slot: ``[n, Hkv, D]`` and ``[n, Hkv, Dv]``."""
        n_pages = -(-n // PAGE_TOKENS)
        blocks = self.layer(layer)[self.table[slot, :n_pages].long()]
        keys = blocks[:, 0].flatten(0, 1)[:n]
        return keys, blocks[:, -1].flatten(0, 1)[:n, :, : self.shape.Dv]


def pool_of(shape: Shape, held: list[int], room: int, dtype: torch.dtype, n_layers: int) -> Pool:
    """Slots that hold so many random tokens, with pages for ``room`` more; the rest is NaN."""
    counts = [-(-(n + room) // PAGE_TOKENS) for n in held]
    size = (sum(counts) + 1, n_layers, shape.n_parts, PAGE_TOKENS, shape.Hkv, shape.D)
    pages = torch.randn(size, dtype=dtype, device="cuda")
    order = torch.randperm(sum(counts), device="cuda").int() + 1
    table = torch.full((len(held), max(counts)), -1, dtype=torch.int32, device="cuda")
    start = 0
    for slot, count in enumerate(counts):
        table[slot, :count] = order[start : start + count]
        start += count
        whole, rest = divmod(held[slot], PAGE_TOKENS)
        for block in range(whole, count):
            pages[table[slot, block], :, :, rest if block == whole else 0 :] = float("nan")
    lengths = torch.full((len(held), 3), 7, dtype=torch.int32, device="cuda")
    lengths[:, 1] = torch.tensor(held, dtype=torch.int32)
    return Pool(shape, pages, table, lengths[:, 1])


def tokens_of(
    shape: Shape, T: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """q, k and v of so many tokens; queries with gates between their heads."""
    draw = torch.Generator("cuda").manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=draw, device="cuda").to(dtype)

    q = normal(T, shape.Hq, 2 * shape.D)[:, :, : shape.D]
    k = normal(T, shape.Hkv, shape.D)
    return q, k, None if shape.latent else normal(T, shape.Hkv, shape.D)


def rows_of(slots: list[int], lengths: list[int]) -> Rows:
    """Such rows, on the device."""
    on_device = torch.tensor(slots, dtype=torch.int32, device="cuda")
    return Rows(on_device, tuple(slots), tuple(lengths))


def exact(pool: Pool, q: Tensor, slot: int, before: int, window: int | None) -> Tensor:
    """What the last ``len(q)`` tokens of a slot, whose pages hold them, see: in float64."""
    n = before + len(q)
    keys, values = pool.held(slot, n)
    group = pool.shape.Hq // pool.shape.Hkv
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("thd,jhd->htj", q.double(), keys) * pool.shape.scale
    own = torch.arange(before, n, device="cuda")[:, None]
    others = torch.arange(n, device="cuda")
    hidden = others > own
    if window is not None:
        hidden |= others <= own - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(2)
    return torch.einsum("htj,jhv->thv", weights, values)
