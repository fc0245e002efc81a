"""Matrix products with weights that never change, arranged for the device they are on."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""``[T, in]`` to ``[T, out]``, in the dtype of the weights."""

PACKED_MIN_ELEMENTS = 65536
"""Below this a product is over before packing could have saved anything."""

PACKED_TOLERANCE = 2.0**-22
"""How far float16 may be from a weight, in units of the largest weight of its matrix. That is
two units in the last place of a float32 of that size, which a float32 product loses as well."""


def linear(weight: Tensor) -> Linear:
    """The map ``x -> x @ weight.T``.

    On a CPU a float32 matrix whose values all fit float16 is kept in float16, half the bytes, and
    is widened again in registers: products and sums are float32 as before. Matrices from bfloat16
    and float16 checkpoints do fit. A decode of few rows waits for nothing but these bytes.

    Args:
        weight: ``[out, in]``. May be kept, or copied into another form.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _fits_float16(weight):
        packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), None)
        product = torch.ops.quantized.linear_dynamic_fp16.default

        def widening(x: Tensor) -> Tensor:
            result: Tensor = product(x, packed)
            return result

        return widening
    # Which of the two layouts a library walks faster depends on the longer side.
    transposed = weight.t()
    if weight.shape[0] >= weight.shape[1]:
        transposed = transposed.contiguous()

    def plain(x: Tensor) -> Tensor:
        return torch.mm(x, transposed)

    return plain


def _fits_float16(weight: Tensor) -> bool:
    if weight.numel() < PACKED_MIN_ELEMENTS or "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    largest = weight.abs().max()
    if not largest < torch.finfo(torch.float16).max:
        return False
    error = (weight.half().float() - weight).abs_().max()
    return bool(error <= PACKED_TOLERANCE * largest)
