"""The matrix products of a model, as they are made on its device."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from wkvm.kernels.linear import Head, Linear, head_of, linear
from wkvm.kernels.weight import Weight, quantised

if TYPE_CHECKING:
    from wkvm.kernels.gpu.products import Scratch


@dataclass(slots=True)
class Products:
    """Makes the products of one model.

    Attributes:
        device: ``cpu`` or ``cuda``.
        quantization: of matrices, on a GPU: ``none``, ``fp8`` or ``int8``.
        saved_bytes: how many bytes less matrices take since they are quantised.
    """

    device: str
    quantization: str = "none"
    saved_bytes: int = 0
    _scratch: "Scratch | None" = None

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The map ``x -> x @ weight.T + bias``; the matrix quantised if that is asked for."""
        if self.device == "cpu":
            return linear(weight, bias)
        from wkvm.kernels.gpu import products

        if self.quantization == "none":
            return products.linear(weight, bias)
        if self._scratch is None:
            self._scratch = products.Scratch(weight.dtype)
        return products.quantised_linear(self.held(weight), bias, self._scratch)

    def logits(self, table: Tensor) -> Head:
        """The map ``x -> x @ table.T``, never quantised; summed in float32 on a GPU."""
        if self.device == "cpu":
            return head_of(table)
        from wkvm.kernels.gpu import products

        return products.logits_of(table)

    def held(self, weight: Tensor) -> Weight:
        """A matrix, or a stack of them, as it is held."""
        made = quantised(weight, self.quantization)
        self.saved_bytes += weight.nbytes - made.nbytes
        return made
