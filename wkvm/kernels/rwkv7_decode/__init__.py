"""The RWKV-7 decode step for a GPU, in Triton: one token a row, few kernels a layer.

Importing this module imports Triton. Three kinds of kernel make a step:

- ``mix``: residual sum, layer norm, token shift by slot in place, and the mixes of both;
- ``product`` and ``gemv``: matrix products with weights as ``[out, in]``, for tens to hundreds of
  rows and for a handful;
- ``wkv``: all between the products of the time mix, with the state updated in place by slot.

All arithmetic but the operands of matrix products is float32. Every kernel is written for
programmatic dependent launch: what no earlier kernel of the step writes (weights, states) is read
before the wait for that kernel, everything else after it, and nothing is stored before it. So a
launch may begin while the one before it runs, and still sees all that it wrote. Slots, and rows in
the order of their rings, are read before the wait too: the first launch of a step must not begin
before what wrote them has ended.

No kernel here is ever autotuned: each trial run would apply its update to the states once more.
"""

from wkvm.kernels.rwkv7_decode.common import NONE, SIGMOID, SQUARED_RELU, TANH, Move
from wkvm.kernels.rwkv7_decode.deferred import (
    Ring,
    begin_ring,
    begin_ring_kernel,
    empty_kernel,
    fold,
    fold_kernel,
)
from wkvm.kernels.rwkv7_decode.few_rows import Before, gemv, gemv_kernel
from wkvm.kernels.rwkv7_decode.many_rows import (
    Blocks,
    Group,
    Tiles,
    product,
    product_kernel,
    tiles_of,
)
from wkvm.kernels.rwkv7_decode.mapped import Mapped, mapped_kernel, mapped_product
from wkvm.kernels.rwkv7_decode.mixing import mix, mix_kernel
from wkvm.kernels.rwkv7_decode.recurrence import wkv, wkv_kernel

__all__ = [
    "NONE",
    "SIGMOID",
    "SQUARED_RELU",
    "TANH",
    "Before",
    "Blocks",
    "Group",
    "Mapped",
    "Move",
    "Ring",
    "Tiles",
    "begin_ring",
    "begin_ring_kernel",
    "empty_kernel",
    "fold",
    "fold_kernel",
    "gemv",
    "gemv_kernel",
    "mapped_kernel",
    "mapped_product",
    "mix",
    "mix_kernel",
    "product",
    "product_kernel",
    "tiles_of",
    "wkv",
    "wkv_kernel",
]
