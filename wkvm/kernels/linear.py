"""Matrix products with weights that never change, arranged for the device they are on."""

import warnings
from collections.abc import Callable
from math import frexp, inf
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""``[T, in]`` to ``[T, out]``, in the dtype of the weights."""


class Head(Protocol):
    """``[R, in]`` to ``[R, V]`` float32: the last product of a model."""

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The product; in ``out`` if there is one."""
        ...


PACKED_MIN_ELEMENTS = 4096
"""Below this a product is over before packing could have saved anything."""

PACKED_TOLERANCE = 2.0**-22
"""How far float16 may be from a weight, in units of the largest weight of its matrix. That is
two units in the last place of a float32 of that size, which a float32 product loses as well."""

LARGEST_EXPONENT = 15
"""Values below 2 to this are well within float16, and so are those of a matrix brought up to it."""

MOST_EXPONENT = 64
"""Further up, a bias might leave float32; what is so small is no matrix of a model."""

THREADED_MIN_ROWS = 12
"""From here on sharing a product among threads saves more than starting them costs."""


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The map ``x -> x @ weight.T + bias``.

    On a CPU a float32 matrix whose values all fit float16, times a power of two if need be, is kept
    in float16, half the bytes, and is widened again in registers: products and sums are float32 as
    before. Matrices from bfloat16 and float16 checkpoints do fit. A decode of few rows waits for
    nothing but these bytes.

    Args:
        weight: ``[out, in]``. May be kept, or copied into another form.
        bias: ``[out]``.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        exponent = _float16_exponent(weight)
        if exponent is not None:
            return _packed(weight.contiguous(), bias, exponent)
    # Which of the two layouts a library walks faster depends on the longer side.
    transposed = weight.t()
    if weight.shape[0] >= weight.shape[1]:
        transposed = transposed.contiguous()

    def plain(x: Tensor) -> Tensor:
        return torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)

    return plain


def head_of(weight: Tensor) -> Head:
    """The map ``x -> x @ weight.T`` in float32, arranged as ``linear`` does."""
    plain_product = linear(weight)

    def product(x: Tensor, out: Tensor | None = None) -> Tensor:
        logits = plain_product(x).float()
        return logits if out is None else out.copy_(logits)

    return product


def _packed(weight: Tensor, bias: Tensor | None, exponent: int) -> Linear:
    """A product with the matrix in float16, times 2 to the ``exponent``."""
    scaled_bias = None if bias is None else _scaled(bias, exponent)
    scaled_product = _packed_as_it_is(_scaled(weight, exponent), scaled_bias)
    if exponent == 0:
        return scaled_product

    def product(x: Tensor) -> Tensor:
        # As exact as the multiplication was: both move nothing but the exponents of float32.
        return scaled_product(x).mul_(2.0**-exponent)

    return product


def _packed_as_it_is(weight: Tensor, bias: Tensor | None) -> Linear:
    """Two entries to the same routine: one lean and on one thread, one that shares the work.

    Each has a packing of its own, so that together they take the bytes of float32. Torch means to
    remove the lean one; without it the other does all.
    """
    shared_weight = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    shared_product = torch.ops.quantized.linear_dynamic_fp16.default

    def shared(x: Tensor) -> Tensor:
        product: Tensor = shared_product(x, shared_weight)
        return product

    if not hasattr(torch, "fbgemm_linear_fp16_weight_fp32_activation"):
        return shared
    lean_bias = torch.zeros(weight.shape[0]) if bias is None else bias
    lean_product = torch.fbgemm_linear_fp16_weight_fp32_activation
    with warnings.catch_warnings():
        # Torch says once in a process that it is deprecated; say it to nobody.
        warnings.simplefilter("ignore")
        lean_weight = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        lean_product(torch.zeros(1, weight.shape[1]), lean_weight, lean_bias)

    def lean_or_shared(x: Tensor) -> Tensor:
        if x.shape[0] < THREADED_MIN_ROWS or torch.get_num_threads() == 1:
            return lean_product(x, lean_weight, lean_bias)
        return shared(x)

    return lean_or_shared


def _float16_exponent(weight: Tensor) -> int | None:
    """The power of two times which a matrix fits float16, 0 if it does; None if none helps."""
    if weight.numel() < PACKED_MIN_ELEMENTS:
        return None
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    largest = float(weight.abs().max())
    if not largest < inf:
        return None
    # Where all values are small the smallest are below what float16 has, or have lost digits there.
    for exponent in (0, LARGEST_EXPONENT - frexp(largest)[1]):
        if abs(exponent) <= MOST_EXPONENT and _fits_float16(_scaled(weight, exponent)):
            return exponent
    return None


def _scaled(tensor: Tensor, exponent: int) -> Tensor:
    return tensor * 2.0**exponent if exponent else tensor


def _fits_float16(weight: Tensor) -> bool:
    largest = weight.abs().max()
    if not largest < torch.finfo(torch.float16).max:
        return False
    error = (weight.half().float() - weight).abs_().max()
    return bool(error <= PACKED_TOLERANCE * largest)
