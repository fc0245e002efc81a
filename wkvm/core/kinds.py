"""What the tensors of a state are for, by their names.

Whoever changes or compares states asks here: a matrix of the recurrence may be scaled, the ring of
tokens that wait beside it may not.
"""

from enum import Enum

from wkvm.core.layout import GUEST_PAGES, GUEST_TOKENS, StateLayout, TensorSpec


class TensorKind(Enum):
    """The part that a tensor has in a state."""

    MATRIX = "matrices"
    """``[L, H, K, V]``: what the recurrence keeps of all tokens."""
    SHIFT = "shifts"
    """``[L, C]``, or ``[L, W - 1, C]`` of a convolution: what the last tokens left for the next
    one to be mixed with."""
    RING = "ring"
    """Tokens that are not in the matrices yet."""
    RING_FILL = "ring_fill"
    """How many those are."""
    GUEST = "guest"
    """What attention layers keep of each token, and of how many tokens."""


KINDS = {
    "rwkv7.wkv": TensorKind.MATRIX,
    "rwkv7.att_shift": TensorKind.SHIFT,
    "rwkv7.ffn_shift": TensorKind.SHIFT,
    "rwkv7.ring": TensorKind.RING,
    "rwkv7.ring_fill": TensorKind.RING_FILL,
    "mamba2.ssm": TensorKind.MATRIX,
    "mamba2.conv": TensorKind.SHIFT,
    "gdn.delta": TensorKind.MATRIX,
    "gdn.conv": TensorKind.SHIFT,
    "kda.delta": TensorKind.MATRIX,
    "kda.conv": TensorKind.SHIFT,
    GUEST_TOKENS: TensorKind.GUEST,
    GUEST_PAGES: TensorKind.GUEST,
}
"""Of the tensors of all families. A tensor that is not here cannot be changed. The first axis of a
matrix or a shift counts the layers of its family, not those of the model."""


def of_kind(layout: StateLayout, *kinds: TensorKind) -> tuple[TensorSpec, ...]:
    """The tensors of those kinds, in the order of ``layout``."""
    return tuple(spec for spec in layout.tensors if KINDS.get(spec.name) in kinds)


KEY_AXES = {"rwkv7.wkv": -2, "gdn.delta": -2, "kda.delta": -2, "mamba2.ssm": -1}
"""Of the matrices of recurrences, which axis is that of the keys."""
