"""Softmax attention with grouped queries, over the pages of the guest pool."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wkvm.core.layout import GUEST_PAGES, GuestSpec
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parts.rotary import Rotary
from wkvm.models.parts.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """The sizes of a mixer.

    Attributes:
        n_heads: Hq, of queries.
        n_shared: Hkv, of keys and values; each serves Hq / Hkv in order.
        head_size: D.
        is_gated: whether each head has a gate beside its query.
    """

    n_heads: int
    n_shared: int
    head_size: int
    is_gated: bool = False

    @property
    def queries(self) -> int:
        """Channels of all queries."""
        return self.n_heads * self.head_size

    @property
    def projected_queries(self) -> int:
        """Outputs of the product with the weights of queries: they may have gates with them."""
        return 2 * self.queries if self.is_gated else self.queries

    @property
    def keys(self) -> int:
        """Channels of all keys, and of all values."""
        return self.n_shared * self.head_size

    def guest(self, n_layers: int, dtype: str) -> GuestSpec:
        """What ``n_layers`` such mixers keep of each token."""
        return GuestSpec(n_layers, 2, self.n_shared, self.head_size, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """A norm of queries, or of keys, by the root of the mean square.

    Attributes:
        weight: float32; ``[D]`` for a norm of each head, ``[H D]`` for one of all heads together.
    """

    kernels: Kernels
    weight: Tensor
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        """``[T, H, D]`` to the same."""
        if self.weight.shape[0] == heads.shape[2]:
            return self.kernels.rms_norm(heads, self.weight, self.eps)
        flat = self.kernels.rms_norm(heads.flatten(1), self.weight, self.eps)
        return flat.view(heads.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attention:
    """One mixer.

    Attributes:
        layer: its index among the layers of the guest.
        project: ``[T, C]`` to queries, keys and values, heads in order. With gates, each head of
            the queries is query and gate: ``[T, Hq, D | D]``.
        output: from ``[T, Hq D]`` to ``[T, C]``.
        scale: of the scores.
        query_norm, key_norm: None for none.
        rotary: None where positions are not told.
        window: tokens that one sees, itself among them; None for all.

    Source: Vaswani et al., arXiv:1706.03762; Ainslie et al., "GQA", arXiv:2305.13245; of gates,
    Qiu et al., "Gated Attention for Large Language Models", arXiv:2505.06708.
    """

    kernels: Kernels
    sizes: AttentionSizes
    layer: int
    project: Linear
    output: Linear
    scale: float
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None
    rotary: Rotary | None = None
    window: int | None = None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        sizes = self.sizes
        queries, keys, values = torch.split(
            self.project(x), [sizes.projected_queries, sizes.keys, sizes.keys], dim=1
        )
        q = queries.view(x.shape[0], sizes.n_heads, -1)
        q, gate = q.chunk(2, dim=2) if sizes.is_gated else (q, None)
        by_head = (x.shape[0], sizes.n_shared, sizes.head_size)
        k, v = keys.view(by_head), values.view(by_head)
        if self.query_norm is not None:
            q = self.query_norm(q)
        if self.key_norm is not None:
            k = self.key_norm(k)
        if self.rotary is not None:
            self.kernels.rotary(q, k, self.rotary.frequencies, step.positions, self.rotary.scaling)
        y = self.kernels.attention(
            q,
            k,
            v,
            step.states[GUEST_PAGES][:, self.layer],
            step.guest_table,
            step.guest_lengths,
            step.rows,
            scale=self.scale,
            window=self.window,
        )
        if gate is not None:
            y = self.kernels.open_gate(y, gate)
        return self.output(y.flatten(1))
