"""The matrix products of a model, as they are made on its device."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from wkvm.kernels.linear import Linear, linear
from wkvm.kernels.weight import Weight, quantised

if TYPE_CHECKING:
    from wkvm.kernels.gpu.products import Scratch


@dataclass(slots=True)
class Products:
    """Makes the products of one model.

    Attributes:
        device: ``cpu`` or ``cuda``.
        quantization: of matrices, on a GPU: ``none``, ``fp8`` or ``int8``.
        held_bytes: of all weights that products were made of.
    """

    device: str
    quantization: str = "none"
    held_bytes: int = 0
    _scratch: "Scratch | None" = None

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The map ``x -> x @ weight.T + bias``; the matrix quantised if that is asked for."""
        if self.device == "cpu":
            self._count(weight, bias)
            return linear(weight, bias)
        from wkvm.kernels.gpu import products

        if self.quantization == "none":
            self._count(weight, bias)
            return products.linear(weight, bias)
        if self._scratch is None:
            self._scratch = products.Scratch(weight.dtype)
        held = self.held(weight)
        self._count(bias)
        return products.quantised_linear(held, bias, self._scratch)

    def logits(self, table: Tensor, *, is_counted: bool) -> Linear:
        """The map ``x -> x @ table.T``, never quantised; in float32 on a GPU.

        Args:
            is_counted: whether the matrix was counted before, as an embedding.
        """
        if not is_counted:
            self._count(table)
        if self.device == "cpu":
            return linear(table)
        from wkvm.kernels.gpu import products

        return products.logits_of(table)

    def held(self, weight: Tensor) -> Weight:
        """A matrix, or a stack of them, as it is held."""
        made = quantised(weight, self.quantization)
        self.held_bytes += made.nbytes
        return made

    def _count(self, *tensors: Tensor | None) -> None:
        self.held_bytes += sum(tensor.nbytes for tensor in tensors if tensor is not None)
