"""The large matrix products of prompts: through the library, or own where it cannot make them."""

import torch
from torch import Tensor

from wkvm.kernels import rwkv7_decode as kernels
from wkvm.kernels.dequantise import plain
from wkvm.kernels.rwkv7_decode import Blocks, tiles_of
from wkvm.kernels.rwkv7_prefill import SquaredCut, squared_product
from wkvm.kernels.weight import Weight
from wkvm.models.rwkv7_packed import Rwkv7Decode

LIBRARY_MIN_TOKENS = 1024
"""From here on it is faster to write quantised matrices out and to multiply by the library."""

SQUARED_MIN_TOKENS, SMALL_TOKENS = 257, 512
SMALL_CUT = SquaredCut(t=64, n=128, n_warps=4, n_stages=4, n_programs=264)
LARGE_CUT = SquaredCut(n_parts=2)
"""Of the first product of the channel mix: from how many tokens on, and up to how many."""

SECOND_MIN_TOKENS = 4096
"""From here on the library's four products are faster than one launch of own ones."""


class Products:
    """Those of one model.

    The library takes another kernel for another number of tokens: a deterministic model uses its
    own products alone, in which no bit of a token depends on the others.
    """

    def __init__(self, model: Rwkv7Decode) -> None:
        self._model = model
        # Its own, since prompts are absorbed beside a decode step.
        self._scratch = None if model.scratch is None else torch.empty_like(model.scratch)
        # As much shared memory with a wider dtype.
        self._blocks = Blocks(128, 128, 64 * 2 // model.dtype.itemsize, 1, 8, 3)
        k, groups = self._blocks.k, model.second_groups()
        self._second_blocks = Blocks(64, 128, k, 1, 4, 3)
        self._second_tiles = tiles_of(groups, self._second_blocks.n, model.device)

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
        weights = plain(first.rows(0, 3 * C), self._scratch).view(3, C, C)
        torch.bmm(mixed, weights.transpose(1, 2), out=out)

    def squared(self, x: Tensor, weight: Weight, out: Tensor, blocks: Blocks) -> None:
        """``out = relu(x @ weight.T) ** 2``, rounded once: ``[T, K]`` and ``[T, N]``.

        The library would round before the square, which doubles the error.

        Args:
            blocks: for few tokens, and for weights that tensor maps are not made of.
        """
        is_own = self._is_own(len(x), weight) or x.dtype == torch.float32
        if is_own or len(x) < SQUARED_MIN_TOKENS:
            kernels.product(
                x,
                weight.values,
                out.unsqueeze(0),
                blocks,
                scales=weight.scales,
                what=kernels.SQUARED_RELU,
            )
            return
        cut = SMALL_CUT if len(x) <= SMALL_TOKENS else LARGE_CUT
        squared_product(x, plain(weight, self._scratch), out, cut)

    def second(self, hidden: Tensor, second: Tensor, out: Tensor) -> None:
        """The second stages of the low-rank maps.

        Args:
            hidden: ``[T, ranks]``.
            second: as in ``PackedLayer``.
            out: ``[T, 4, C]``, overwritten.
        """
        model, C = self._model, self._model.shape.width
        if model.deterministic or len(hidden) < SECOND_MIN_TOKENS:
            kernels.product(
                hidden,
                second,
                out,
                self._second_blocks,
                tiles=self._second_tiles,
            )
            return
        at, column = 0, 0
        for index, rank in enumerate(model.ranks):
            weight = second[at : at + rank * C].view(C, rank)
            torch.mm(hidden[:, column : column + rank], weight.t(), out=out[:, index])
            at, column = at + rank * C, column + rank

    def add(self, x: Tensor, y: Tensor, weight: Weight) -> None:
        """``x += y @ weight.T``, summed and added in float32: ``[T, N]`` and ``[T, K]``."""
        if self._is_own(len(y), weight):
            self._own(y, weight, x, adds=True)
            return
        matrix = plain(weight, self._scratch).t()
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
