"""Matrix products with weights that never change, plain and quantised."""

from dataclasses import dataclass, field

import torch
import triton
from torch import Tensor

from wkvm.kernels.dequantise import plain
from wkvm.kernels.linear import Head, Linear
from wkvm.kernels.rwkv7_decode import Blocks, product
from wkvm.kernels.weight import Weight

LIBRARY_MIN_ROWS = 512
"""From here on it is faster to write a quantised matrix out and to multiply by the library."""


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The map ``x -> x @ weight.T + bias``, through the library.

    Args:
        weight: ``[out, in]``. Kept.
        bias: ``[out]``.
    """
    transposed = weight.t()

    def plain_product(x: Tensor) -> Tensor:
        return torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)

    return plain_product


def logits_of(weight: Tensor) -> Head:
    """The map ``x -> x @ weight.T`` in float32: what is summed is not rounded to ``x``'s dtype."""
    transposed = weight.t()

    def product_in_float32(x: Tensor, out: Tensor | None = None) -> Tensor:
        if x.dtype == torch.float32:
            return torch.mm(x, transposed, out=out)
        return torch.mm(x, transposed, out_dtype=torch.float32, out=out)

    return product_in_float32


@dataclass(slots=True)
class Scratch:
    """Room for the largest quantised matrix of a model, written out; made when first needed."""

    dtype: torch.dtype
    n_values: int = 0
    memory: Tensor | None = field(default=None)

    def reserve(self, weight: Weight) -> None:
        """See to it that this one fits."""
        self.n_values = max(self.n_values, weight.values.numel())

    def get(self, device: torch.device) -> Tensor:
        """``[n_values]``."""
        if self.memory is None:
            self.memory = torch.empty(self.n_values, dtype=self.dtype, device=device)
        return self.memory


def quantised_linear(weight: Weight, bias: Tensor | None, scratch: Scratch) -> Linear:
    """As ``linear``, of a quantised matrix.

    Values are widened in registers, and sums are float32. Many rows share one that is written out
    in the model's dtype.
    """
    scratch.reserve(weight)
    n_out = weight.values.shape[0]

    def quantised_product(x: Tensor) -> Tensor:
        n_rows = x.shape[0]
        if n_rows >= LIBRARY_MIN_ROWS:
            wide = plain(weight, scratch.get(x.device)).t()
            return torch.mm(x, wide) if bias is None else torch.addmm(bias, x, wide)
        out = torch.empty(n_rows, n_out, dtype=x.dtype, device=x.device)
        product(x, weight.values, out, blocks_for(n_rows), scales=weight.scales)
        return out if bias is None else out.add_(bias)

    return quantised_product


def blocks_for(n_rows: int) -> Blocks:
    """How a product with a quantised matrix is cut: what measured best for RWKV-7's."""
    if n_rows <= 32:
        return Blocks(64, max(16, triton.next_power_of_2(n_rows)), 128, 1, 2, 6)
    if n_rows <= 64:
        return Blocks(64, 64, 128, 1, 4, 4)
    if n_rows <= 128:
        return Blocks(64, 128, 64, 1, 4, 5)
    return Blocks(64, 256, 64, 1, 8, 4)
