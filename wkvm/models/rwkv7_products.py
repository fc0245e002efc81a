"""The large matrix products of prompts: through the library, or own where it cannot make them."""

import torch
from torch import Tensor

from wkvm.kernels import rwkv7_decode as kernels
from wkvm.kernels.dequantise import plain
from wkvm.kernels.rwkv7_decode import Blocks
from wkvm.kernels.weight import Weight
from wkvm.models.rwkv7_packed import Rwkv7Decode

LIBRARY_MIN_TOKENS = 1024
"""From here on it is faster to write quantised matrices out and to multiply by the library."""


class Products:
    """Those of one model.

    The library takes another kernel for another number of tokens: a deterministic model uses its
    own products alone, in which no bit of a token depends on the others.
    """

    def __init__(self, model: Rwkv7Decode) -> None:
        self._model = model
        # As much shared memory with a wider dtype.
        self._blocks = Blocks(128, 128, 64 * 2 // model.dtype.itemsize, 1, 8, 3)

    def rkv(self, mixed: Tensor, first: Weight, out: Tensor) -> None:
        """r, k and v: ``out[i] = mixed[i] @ W_i.T``.

        Args:
            mixed: ``[3, T, C]``, contiguous.
            first: as in ``PackedLayer``.
            out: ``[3, T, C]``, overwritten.
        """
        C = mixed.shape[-1]
        if self._is_own(mixed.shape[1], first):
            for i in range(3):
                part = first.rows(i * C, (i + 1) * C)
                self._own(mixed[i], part, out[i], adds=False)
            return
        weights = plain(first.rows(0, 3 * C), self._model.scratch).view(3, C, C)
        torch.bmm(mixed, weights.transpose(1, 2), out=out)

    def add(self, x: Tensor, y: Tensor, weight: Weight) -> None:
        """``x += y @ weight.T``, summed and added in float32: ``[T, N]`` and ``[T, K]``."""
        if self._is_own(len(y), weight):
            self._own(y, weight, x, adds=True)
            return
        matrix = plain(weight, self._model.scratch).t()
        if y.dtype == torch.float32:
            torch.addmm(x, y, matrix, out=x)
        else:
            torch.addmm(x, y, matrix, out_dtype=torch.float32, out=x)

    def logits(self, x: Tensor, out: Tensor) -> None:
        """``out = x @ head.T``: ``[R, V]`` float32 and ``[R, C]``."""
        head = self._model.head
        if self._is_own(len(x), head):
            self._own(x, head, out, adds=False)
        elif x.dtype == torch.float32:
            torch.mm(x, head.values.t(), out=out)
        else:
            torch.mm(x, head.values.t(), out_dtype=torch.float32, out=out)

    def _is_own(self, n_tokens: int, weight: Weight) -> bool:
        if self._model.deterministic:
            return True
        return weight.scales is not None and n_tokens < LIBRARY_MIN_TOKENS

    def _own(self, x: Tensor, weight: Weight, out: Tensor, *, adds: bool) -> None:
        kernels.product(x, weight.values, out, self._blocks, scales=weight.scales, adds=adds)
