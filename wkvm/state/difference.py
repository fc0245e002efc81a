"""How far two states are from each other, layer by layer, in plain numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from wkvm.core.errors import StateNotFiniteError
from wkvm.core.kinds import KINDS, TensorKind, of_kind
from wkvm.core.layout import GUEST_PAGES, PAGE_TOKENS, pages_for
from wkvm.state.arithmetic import not_finite
from wkvm.state.folding import Fold, folded
from wkvm.state.guest_changes import without_guest
from wkvm.state.image import StateImage

DOUBLES_AT_ONCE = 2**18
"""Elements of pages that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Between two arrays a and b.

    Attributes:
        relative: the norm of a - b in units of the larger one of a's and b's, so it is in [0, 2]:
            0 for equal, 1 where one of them is zero, 2 for opposite ones.
        max_abs: the largest difference between two elements.
    """

    relative: float
    max_abs: float


@dataclass(frozen=True, slots=True)
class LayerDistance:
    """Of one tensor in one layer.

    Attributes:
        layer: its number.
        whole: all of it.
        heads: of each head's matrix; empty where there are no heads.
    """

    layer: int
    whole: Distance
    heads: tuple[Distance, ...]


@dataclass(frozen=True, slots=True)
class TensorDistance:
    """Of one tensor: all of it, and layer by layer."""

    name: str
    whole: Distance
    layers: tuple[LayerDistance, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two states.

    Attributes:
        equal: whether all tensors are the same in every bit.
        n_common: how many ids their token logs have in common, from the start.
        tensors: in the order of the layout, without the rings, which are taken in. At last, of
            states with attention layers, ``guest.pages``: what they keep of those tokens of which
            both have something, whichever these are, by layers and heads of their own.
    """

    equal: bool
    n_common: int
    tensors: tuple[TensorDistance, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def difference(one: StateImage, other: StateImage, *, fold: Fold | None = None) -> Difference:
    """Compare two states. Takes about 70 ms for two of 12.8 MB, on the calling thread.

    Pages are compared a few at a time, and take no memory to speak of.

    Args:
        one, other: the order matters nothing.
        fold: takes the tokens in a ring into the matrices.

    Raises:
        StateMismatchError: they belong to different models or have different layouts.
        InvalidParameterError: a ring is not empty, and there is no ``fold``.
        StateNotFiniteError: one of them holds NaN or infinity, from which nothing has a distance.
    """
    other.check_fits(one.identity)
    equal = one.record.equal(other.record)
    views, others = _compared(one, fold), _compared(other, fold)
    pages = [image.views().get(GUEST_PAGES) for image in (one, other)]
    named = [{} if of is None else {GUEST_PAGES: of} for of in pages]
    if (name := next(filter(None, map(not_finite, (views, others, *named))), None)) is not None:
        raise StateNotFiniteError(name)
    tensors = [_tensor(name, view, others[name]) for name, view in views.items()]
    if pages[0] is not None and pages[1] is not None:
        n_tokens = min(one.carried.n_computed, other.carried.n_computed)
        tensors.append(_guest(pages[0], pages[1], n_tokens))
    return Difference(
        equal=equal,
        n_common=sum(1 for _ in takewhile(_same, zip(one.ids(), other.ids(), strict=False))),
        tensors=tuple(tensors),
    )


def _compared(image: StateImage, fold: Fold | None) -> dict[str, Tensor]:
    """The tensors of the record. Of what is left of an empty ring nobody takes notice."""
    rings = {spec.name for spec in of_kind(image.layout, TensorKind.RING, TensorKind.RING_FILL)}
    views = without_guest(folded(image, fold))
    return {name: view for name, view in views.items() if name not in rings}


def _same(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of parts of two arrays a and b, ``[P]`` each: all that distances are made of."""

    of_a: Tensor
    of_b: Tensor
    between: Tensor
    max_abs: Tensor

    def whole(self) -> Distance:
        """Of all parts together."""
        larger = max(float(self.of_a.sum()), float(self.of_b.sum())) ** 0.5
        between = float(self.between.sum()) ** 0.5
        return Distance(between / larger if larger else 0.0, float(self.max_abs.max()))

    def part(self, index: int) -> "_Sums":
        """Of one part."""
        only = slice(index, index + 1)
        return _Sums(self.of_a[only], self.of_b[only], self.between[only], self.max_abs[only])


def _tensor(name: str, a: Tensor, b: Tensor) -> TensorDistance:
    has_heads = KINDS.get(name) is TensorKind.MATRIX
    return _by_layer(name, [_sums(x, y, has_heads) for x, y in zip(a, b, strict=True)], has_heads)


def _guest(a: Tensor, b: Tensor, n_tokens: int) -> TensorDistance:
    """Of the pages of two states, over the first ``n_tokens`` tokens."""
    n_pages, n_layers, n_heads = pages_for(n_tokens), a.shape[1], a.shape[4]
    sums = torch.zeros(3, n_layers, n_heads, dtype=torch.float64)
    max_abs = torch.zeros(n_layers, n_heads, dtype=torch.float64)
    at_once = max(1, DOUBLES_AT_ONCE // a[0].numel())
    for start in range(0, n_pages, at_once):
        end = min(start + at_once, n_pages)
        x, y = a[start:end].double(), b[start:end].double()
        if end * PAGE_TOKENS > n_tokens:
            behind = n_tokens % PAGE_TOKENS
            x[-1, :, :, behind:] = y[-1, :, :, behind:] = 0.0
        between = x - y
        for total, of in zip(sums, (x, y, between), strict=True):
            total += (of * of).sum((0, 2, 3, 5))
        max_abs = torch.maximum(max_abs, between.abs().amax((0, 2, 3, 5)))
    of_a, of_b, of_both = sums
    layers = zip(of_a, of_b, of_both, max_abs, strict=True)
    return _by_layer(GUEST_PAGES, [_Sums(*one) for one in layers], has_heads=True)


def _by_layer(name: str, sums: Sequence[_Sums], has_heads: bool) -> TensorDistance:
    layers = [
        LayerDistance(
            layer,
            of_layer.whole(),
            tuple(of_layer.part(head).whole() for head in range(len(of_layer.of_a)))
            if has_heads
            else (),
        )
        for layer, of_layer in enumerate(sums)
    ]
    together = _Sums(
        *(
            torch.cat(parts)
            for parts in zip(
                *((one.of_a, one.of_b, one.between, one.max_abs) for one in sums), strict=True
            )
        )
    )
    return TensorDistance(name, together.whole(), tuple(layers))


def _sums(a: Tensor, b: Tensor, has_heads: bool) -> _Sums:
    """Of one layer: by head, or of all of it."""
    n_parts = len(a) if has_heads else 1
    a, b = a.reshape(n_parts, -1).double(), b.reshape(n_parts, -1).double()
    between = a - b
    return _Sums((a * a).sum(1), (b * b).sum(1), (between * between).sum(1), between.abs().amax(1))
