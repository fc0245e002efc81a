"""What the module of an architecture makes of a checkpoint's headers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Head
from wkvm.models.parameters import Parameters
from wkvm.models.parts.residual import RmsNorm
from wkvm.models.parts.step import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is said of any model; see ``ModelInfo``."""

    architecture: str
    vocab_size: int
    n_layers: int
    width: int
    n_heads: int
    head_size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """All layers of a model, on their device.

    Attributes:
        table: ``[V, C]``: the embedding.
        embedding_scale: what its rows are multiplied by.
        stream_dtype: of the activations between the blocks.
        blocks: in order.
        norm: the last one.
        head: the last product.
        logit_scale: what logits are multiplied by.
    """

    table: Tensor
    embedding_scale: float = 1.0
    stream_dtype: torch.dtype
    blocks: tuple[Part, ...]
    norm: RmsNorm
    head: Head
    logit_scale: float = 1.0


class Blueprint(Protocol):
    """A checkpoint as its architecture reads it. Nothing but headers was read for it."""

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        ...

    @property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of all tensors that ``build`` takes, in the order in which it does."""
        ...

    def is_unused(self, name: str) -> bool:
        """Whether a stored tensor that is not among ``weights`` is known, and of no use here."""
        ...

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state of a model of that ``dtype``."""
        ...

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        ...
