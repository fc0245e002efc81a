"""Weights on their way from a checkpoint into the layers of a model.

They arrive in the order in which they will be asked for, so that little is held twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.kernels.linear import Head, Linear
from wkvm.kernels.weight import Weight
from wkvm.models.products import Products
from wkvm.models.weights import Checkpoint

Weights: TypeAlias = dict[str, tuple[int, ...]]
"""Names and shapes of stored tensors, in the order in which they are taken."""

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
    """The weights of a model, each to be taken once.

    Args:
        names: of all, in the order in which they are likely to be taken.
        tensors: as many, as they are stored; each is asked for when it, or one behind it, is taken.
        device: ``cpu`` or ``cuda``, where the tensors are.
        dtype: of matrices.
        quantization: of those that ``linear`` is given, on a GPU.
    """

    def __init__(
        self,
        names: Iterable[str],
        tensors: Iterable[Tensor],
        *,
        device: str,
        dtype: torch.dtype,
        quantization: str = "none",
    ) -> None:
        self.device, self.dtype = device, dtype
        self.products = Products(device, quantization)
        self._arriving = zip(names, tensors, strict=True)
        self._waiting = dict[str, Tensor]()
        self._taken_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Of all that was taken, as it is held."""
        return self._taken_bytes - self.products.saved_bytes

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
        return self._counted(self.stored(name).float())

    def decays(self, name: str) -> Tensor:
        """The negative rates of decay, float32, of which the logarithms are stored, ``A_log``."""
        return -torch.exp(self.exact(name))

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
        return self._counted(parts[0].contiguous() if len(parts) == 1 else torch.cat(parts))

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

    def experts(self, names: Sequence[tuple[str, ...]], n_experts: int | None = None) -> Weight:
        """Matrices of one shape on top of each other, ``[E, out, in]``, held as the model's are.

        Each is quantised by itself as it arrives, so that they are never held twice.

        Args:
            names: for each expert its tensors, whose outputs become those of its matrix in order;
                or a single name, of a tensor that is the matrices of several experts.
            n_experts: E; None for as many as names, or as a tensor has that is the only one.
        """
        if n_experts is None and len(names) == 1 and len(names[0]) == 1:
            only = self._each(names[0])
            return _stacked(map(self.products.held, only), len(only))
        matrices = (matrix for parts in names for matrix in self._each(parts))
        return _stacked(map(self.products.held, matrices), n_experts or len(names))

    def _each(self, parts: tuple[str, ...]) -> Sequence[Tensor]:
        """The matrix that is made of some tensors, or those that are in one."""
        if len(parts) != 1:
            return [self.matrix(*parts)]
        stored = self._counted(self.stored(*parts).to(self.dtype))
        return [stored.contiguous()] if stored.dim() == 2 else stored.unbind()

    def head(self, table: Tensor, name: str | None) -> Head:
        """The product with the output matrix ``name``; with the embedding for None, if tied."""
        return self.products.logits(table if name is None else self.matrix(name))

    def _counted(self, tensor: Tensor) -> Tensor:
        self._taken_bytes += tensor.nbytes
        return tensor


def scaled(weight: Tensor, scale: Scale) -> Tensor:
    """``weight`` with its outputs, the first axis, times ``scale``: in float32, if at all."""
    if isinstance(scale, Tensor):
        by_output = scale.to(weight.device).view(-1, *[1] * (weight.dim() - 1))
        return weight.float() * by_output
    return weight if scale == 1.0 else weight.float() * scale


def _stacked(matrices: Iterable[Weight], n_matrices: int) -> Weight:
    stack: Weight | None = None
    index = -1
    for index, matrix in enumerate(matrices):
        if stack is None:
            values = matrix.values.new_empty(n_matrices, *matrix.values.shape)
            scales = matrix.scales
            if scales is not None:
                scales = scales.new_empty(n_matrices, *scales.shape)
            stack = Weight(values, scales)
        stack.values[index] = matrix.values
        if stack.scales is not None and matrix.scales is not None:
            stack.scales[index] = matrix.scales
    if stack is None or index + 1 != n_matrices:
        raise ValueError(f"a stack of {n_matrices} matrices was promised")
    return stack


def _listed(names: list[str]) -> str:
    some, rest = names[:N_NAMED], len(names) - N_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    is_one = len(names) == 1
    return f"tensor{'' if is_one else 's'} {', '.join(some)}{more} {'is' if is_one else 'are'}"
