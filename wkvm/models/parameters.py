"""Weights on their way from a checkpoint into the layers of a model.

They arrive in the order in which they will be asked for, so that little is held twice.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.kernels.linear import Linear
from wkvm.models.products import Products
from wkvm.models.weights import Checkpoint

Scale: TypeAlias = float | Tensor
"""A number, or one for each output: ``[out]`` float32."""

N_NAMED = 4
"""How many of several missing or unknown tensors an error names."""


def check_weights(
    checkpoint: Checkpoint,
    architecture: str,
    weights: Mapping[str, tuple[int, ...]],
    is_unused: Callable[[str], bool],
) -> int:
    """Check that a checkpoint has these tensors and no others.

    Returns:
        The elements of all of them.

    Raises:
        CorruptCheckpointError: one is missing or has another shape.
        UnsupportedModelError: there is one that the architecture does not have.
    """
    path, shapes = str(checkpoint.path), checkpoint.shapes
    if missing := [name for name in weights if name not in shapes]:
        raise CorruptCheckpointError(path, f"{_listed(missing)} missing")
    for name, expected in weights.items():
        if shapes[name] != expected:
            why = f"{name} has shape {list(shapes[name])}, expected {list(expected)}"
            raise CorruptCheckpointError(path, why)
    if unknown := sorted(name for name in shapes.keys() - weights.keys() if not is_unused(name)):
        why = f"{_listed(unknown)} unknown to {architecture}"
        raise UnsupportedModelError(path, why)
    return sum(map(prod, weights.values()))


class Parameters:
    """The weights of a checkpoint, each to be taken once.

    Args:
        weights: their names, in the order in which they are likely to be taken.
        dtype: of matrices.
        quantization: of those that ``linear`` is given, on a GPU.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Mapping[str, tuple[int, ...]],
        *,
        device: str,
        dtype: torch.dtype,
        quantization: str = "none",
    ) -> None:
        self.device, self.dtype = device, dtype
        self.products = Products(device, quantization)
        self._arriving = zip(weights, checkpoint.load_all(list(weights), device), strict=True)
        self._waiting = dict[str, Tensor]()

    def stored(self, name: str) -> Tensor:
        """A tensor in the dtype it is stored in.

        Raises:
            KeyError: it is not among the weights, or was taken.
            CorruptCheckpointError: its file changed or ended while it was read.
        """
        while name not in self._waiting:
            try:
                arrived, tensor = next(self._arriving)
            except StopIteration:
                raise KeyError(name) from None
            self._waiting[arrived] = tensor
        return self._waiting.pop(name)

    def exact(self, name: str) -> Tensor:
        """A tensor in float32: what is not an operand of a matrix product."""
        return self.stored(name).float()

    def matrix(self, *names: str, scales: Sequence[Scale] = ()) -> Tensor:
        """A matrix ``[out, in]`` in the model's dtype; several become one, outputs in order.

        Args:
            scales: what each is multiplied by, before it is rounded to the model's dtype; none
                for none.
        """
        each = scales or (1.0,) * len(names)
        parts = [
            scaled(self.stored(name), scale).to(self.dtype)
            for name, scale in zip(names, each, strict=True)
        ]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def vector(self, *names: str, scales: Sequence[Scale] = ()) -> Tensor:
        """Likewise of vectors."""
        return self.matrix(*names, scales=scales)

    def linear(
        self,
        *names: str,
        biases: tuple[str, ...] = (),
        scales: Sequence[Scale] = (),
        bias_scales: Sequence[Scale] = (),
    ) -> Linear:
        """The product with one matrix, or with several that share their input.

        Args:
            names: of the matrices, ``[out, in]``; what comes of them lies in that order.
            biases: of as many vectors; none for none.
            scales: of the matrices, as in ``matrix``.
            bias_scales: of the biases.
        """
        weight = self.matrix(*names, scales=scales)
        bias = self.vector(*biases, scales=bias_scales) if biases else None
        return self.products.linear(weight, bias)

    def stack(self, names: Sequence[tuple[str, ...]]) -> Tensor:
        """Matrices of one shape on top of each other, as experts have them: ``[E, out, in]``.

        Each layer is what ``matrix`` makes of one of ``names``; no weight is held twice.
        """
        first = self.matrix(*names[0])
        stacked = first.new_empty(len(names), *first.shape)
        stacked[0] = first
        for into, parts in zip(stacked[1:], names[1:], strict=True):
            at = 0
            for part in map(self.stored, parts):
                into[at : at + part.shape[0]] = part
                at += part.shape[0]
        return stacked

    def head(self, table: Tensor, name: str | None) -> Linear:
        """The product with the output matrix ``name``; with the embedding for None, if tied."""
        if name is None:
            return self.products.logits(table, is_counted=True)
        return self.products.logits(self.matrix(name), is_counted=False)


def scaled(weight: Tensor, scale: Scale) -> Tensor:
    """``weight`` with its outputs, the first axis, times ``scale``: in float32, if at all."""
    if isinstance(scale, Tensor):
        by_output = scale.to(weight.device).view(-1, *[1] * (weight.dim() - 1))
        return weight.float() * by_output
    return weight if scale == 1.0 else weight.float() * scale


def _listed(names: list[str]) -> str:
    some, rest = names[:N_NAMED], len(names) - N_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    is_one = len(names) == 1
    return f"tensor{'' if is_one else 's'} {', '.join(some)}{more} {'is' if is_one else 'are'}"
