"""What hybrids of a recurrence and attention share: the order of layers, the layout of states."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from wkvm.core.errors import UnsupportedModelError
from wkvm.core.layout import GuestSpec, StateLayout, StateOptions, TensorSpec, guest_tokens
from wkvm.models.config_file import shown
from wkvm.models.weights import Checkpoint

RECURRENT, ATTENTION = "recurrent", "attention"


class Layer(NamedTuple):
    """One layer of a hybrid.

    Attributes:
        kind: such as ``RECURRENT`` or ``ATTENTION``.
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
            why = f"config.json has a layer of kind {shown(name)}; run are {', '.join(kinds)}"
            raise UnsupportedModelError(str(checkpoint.path), why)
        found.append(kinds[name])
    return found


class Recurrent(Protocol):
    """The sizes of mixers whose states have a fixed size."""

    def tensors(self, n_layers: int, dtype: str, state_dtype: str) -> tuple[TensorSpec, ...]:
        """What so many of them have in a state."""
        ...


class Attending(Protocol):
    """The sizes of mixers that keep something of each token."""

    def guest(self, n_layers: int, dtype: str) -> GuestSpec:
        """What so many of them keep."""
        ...


def layout_of(
    layers: Iterable[Layer],
    recurrent: Recurrent,
    attending: Attending,
    dtype: str,
    state: StateOptions,
) -> StateLayout:
    """The record of one state of such layers, and its pages. There may be none of one kind."""
    counts = Counter(layer.kind for layer in layers)
    tensors: tuple[TensorSpec, ...] = ()
    if counts[RECURRENT]:
        tensors = recurrent.tensors(counts[RECURRENT], dtype, state.dtype)
    if not counts[ATTENTION]:
        return StateLayout(tensors)
    return StateLayout((*tensors, guest_tokens()), attending.guest(counts[ATTENTION], dtype))
