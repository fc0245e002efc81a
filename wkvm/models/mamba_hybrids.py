"""What hybrids of Mamba-2 and attention share: the layout of states, and the order of layers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wkvm.core.errors import UnsupportedModelError
from wkvm.core.layout import StateLayout, StateOptions, TensorSpec, guest_tokens
from wkvm.models.attention_mixers import AttentionMixers
from wkvm.models.mamba2_mixers import Mamba2Mixers
from wkvm.models.weights import Checkpoint

MAMBA, ATTENTION = "mamba", "attention"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a hybrid.

    Attributes:
        kind: such as ``MAMBA`` or ``ATTENTION``.
        place: how many layers of its kind are before it: those of a state are counted so.
    """

    kind: str
    place: int


def in_order(kinds: Iterable[str]) -> tuple[Layer, ...]:
    """The layers of these kinds."""
    seen, layers = Counter[str](), list[Layer]()
    for kind in kinds:
        layers.append(Layer(kind, seen[kind]))
        seen[kind] += 1
    return tuple(layers)


def known(checkpoint: Checkpoint, names: Iterable[str], kinds: Mapping[str, str]) -> list[str]:
    """The kinds of layers that a checkpoint names.

    Args:
        kinds: by each name that is run, its kind.

    Raises:
        UnsupportedModelError: another name.
    """
    found = list[str]()
    for name in names:
        if name not in kinds:
            why = f"config.json has a layer of kind {name!r}; run are {', '.join(kinds)}"
            raise UnsupportedModelError(str(checkpoint.path), why)
        found.append(kinds[name])
    return found


def layout_of(
    layers: Iterable[Layer],
    mamba: Mamba2Mixers,
    attention: AttentionMixers,
    dtype: str,
    state: StateOptions,
) -> StateLayout:
    """The record of one state of such layers, and its pages."""
    counts = Counter(layer.kind for layer in layers)
    tensors: tuple[TensorSpec, ...] = ()
    if counts[MAMBA]:
        tensors = mamba.sizes.tensors(counts[MAMBA], dtype, state.dtype)
    if not counts[ATTENTION]:
        return StateLayout(tensors)
    return StateLayout((*tensors, guest_tokens()), attention.sizes.guest(counts[ATTENTION], dtype))
