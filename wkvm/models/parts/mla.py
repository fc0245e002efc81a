"""Multi-head latent attention without positions, over latents in the pages of the guest pool."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wkvm.core.errors import ConfigError
from wkvm.core.layout import GUEST_PAGES, ITEM_BYTES, GuestSpec
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parts.step import Step

NORM_EPS = 1e-6
"""Of the norms of latents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSizes:
    """The sizes of a mixer.

    Attributes:
        n_heads: H.
        latent: R, what keys and values of all heads are made of.
        own: elements of a key that are made for a head. shared: those that all heads have alike.
        value: elements of a value.
        query_latent: what queries are made of; 0 where they are made of the token itself.
    """

    n_heads: int
    latent: int
    own: int
    shared: int
    value: int
    query_latent: int = 0

    @property
    def queries(self) -> int:
        """Channels of all queries."""
        return self.n_heads * (self.own + self.shared)

    @property
    def kept(self) -> int:
        """What is kept of a token."""
        return self.latent + self.shared

    def guest(self, n_layers: int, dtype: str) -> GuestSpec:
        """What ``n_layers`` such mixers keep of each token: a latent, and what keys share.

        Raises:
            ConfigError: in that dtype a page does not end where memory is aligned.
        """
        if n_layers * self.kept % 2 and ITEM_BYTES[dtype] < ITEM_BYTES["float32"]:
            why = f"{self.kept} numbers of a token in each of {n_layers} layers are an odd number"
            raise ConfigError("dtype", f"{dtype}: {why}; float32 runs")
        return GuestSpec(n_layers, 1, 1, self.kept, dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MlaMixer:
    """One mixer, in absorbed form: heads attend to latents, and not to keys made of them.

    With ``k = [Wk c, r]`` and ``v = Wv c`` of a latent c and a shared part r, the score of a query
    ``[a, b]`` is ``(Wk^T a) . c + b . r``, and what a head attends to is Wv of the mean of latents.

    Attributes:
        layer: its index among the layers of the guest.
        project: ``[T, C]`` to ``[T, queries | latent | shared]``; where queries have a latent of
            their own, that comes first instead of them.
        query_norm: float32, of that latent. make_queries: from that latent to all queries, each
            own and shared elements. Both None where there is none.
        latent_norm: ``[R]`` float32, of the latent, before it is kept.
        to_keys: Wk, ``[H, own, R]``. to_values: Wv, transposed: ``[H, R, value]``.
        output: ``[T, H value]`` to ``[T, C]``.

    Source: DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434; without positions, Kimi Team, "Kimi
    Linear", arXiv:2510.26692.
    """

    kernels: Kernels
    sizes: MlaSizes
    layer: int
    project: Linear
    query_norm: Tensor | None
    make_queries: Linear | None
    latent_norm: Tensor
    to_keys: Tensor
    to_values: Tensor
    output: Linear

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        sizes = self.sizes
        first, latent, shared = torch.split(
            self.project(x),
            [sizes.query_latent or sizes.queries, sizes.latent, sizes.shared],
            dim=1,
        )
        if self.make_queries is not None and self.query_norm is not None:
            first = self.make_queries(self.kernels.rms_norm(first, self.query_norm, NORM_EPS))
        own, alike = torch.split(
            first.view(-1, sizes.n_heads, sizes.own + sizes.shared),
            [sizes.own, sizes.shared],
            dim=2,
        )
        absorbed = torch.bmm(own.transpose(0, 1), self.to_keys).transpose(0, 1)
        latent = self.kernels.rms_norm(latent, self.latent_norm, NORM_EPS)
        y = self.kernels.attention(
            torch.cat((absorbed, alike), 2),
            torch.cat((latent, shared), 1).unsqueeze(1),
            None,
            step.states[GUEST_PAGES][:, self.layer],
            step.guest_table,
            step.guest_lengths,
            step.rows,
            scale=(sizes.own + sizes.shared) ** -0.5,
            value_dim=sizes.latent,
        )
        values = torch.bmm(y.transpose(0, 1), self.to_values).transpose(0, 1)
        return self.output(values.flatten(1))
