"""Tokens that wait in a ring beside a state: whoever looks at its matrices takes them in first."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.core.errors import InvalidParameterError
from wkvm.core.kinds import TensorKind, of_kind
from wkvm.kernels.ring import fold as ring_fold
from wkvm.state.image import StateImage, views_of

Fold: TypeAlias = Callable[[StateImage], StateImage]
"""Takes the tokens in a state's ring into its matrices, which needs the model's weights. The same
log and position; the ring comes back empty, in zeros."""


def fold_with(vectors: Tensor) -> Fold:
    """The fold of RWKV-7 over states in host memory.

    Args:
        vectors: of the model; see ``wkvm.kernels.ring.fold``.
    """

    def fold(image: StateImage) -> StateImage:
        record = image.record.clone()
        views = views_of(image.layout, record)
        state, ring, fill = (
            views[one.name][None]
            for kind in (TensorKind.MATRIX, TensorKind.RING, TensorKind.RING_FILL)
            for one in of_kind(image.layout, kind)
        )
        ring_fold(state, ring, fill, vectors, torch.zeros(1, dtype=torch.int32))
        ring.zero_()
        return replace(image, record=record)

    return fold


def n_waiting(image: StateImage) -> int:
    """How many tokens are in the image's ring; 0 where its layout has none."""
    views = image.views()
    return sum(int(views[spec.name].max()) for spec in of_kind(image.layout, TensorKind.RING_FILL))


def folded(image: StateImage, fold: Fold | None) -> StateImage:
    """The same state with all its tokens in its matrices.

    Raises:
        InvalidParameterError: it has tokens in its ring, and there is no ``fold``.
    """
    waiting = n_waiting(image)
    if waiting == 0:
        return image
    if fold is None:
        raise InvalidParameterError(
            "parents", f"{waiting} tokens wait in a state's ring, and no model is here to fold them"
        )
    whole = fold(image)
    if n_waiting(whole) != 0 or whole.layout != image.layout:
        raise ValueError("the fold left tokens in the ring, or changed the layout")
    return whole
