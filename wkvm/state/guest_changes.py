"""What attention layers keep of tokens, where states are changed: it is carried, or it is refused.

Keys and values are of tokens at positions. They cannot be weakened, reset or averaged as a memory
of fixed size can: who asks for that is told why, and what there is instead.
"""

from collections.abc import Sequence

from wkvm.core.errors import InvalidParameterError
from wkvm.core.kinds import KINDS, TensorKind
from wkvm.core.layout import GUEST_PAGES, GUEST_TOKENS, StateLayout
from wkvm.state.image import StateImage
from wkvm.state.operations import StateTensors

_NAMES = frozenset({TensorKind.GUEST.value, "pages", GUEST_PAGES, GUEST_TOKENS})

_INSTEAD = "go back by tokens with a rollback, or absorb other ones in a new state"


def without_guest(image: StateImage) -> StateTensors:
    """The tensors of a state but for what attention layers keep: what operations get."""
    views = image.views()
    return {name: view for name, view in views.items() if not is_of_guest(name)}


def is_of_guest(name: str) -> bool:
    """Whether a tensor belongs to the attention layers."""
    return KINDS.get(name) is TensorKind.GUEST


def check_tensors(operation: str, tensors: Sequence[str], layout: StateLayout) -> None:
    """Check that an operation is not to change what attention layers keep.

    Raises:
        InvalidParameterError: it is.
    """
    named = sorted(_NAMES.intersection(tensors))
    if layout.guest is None or not named:
        return
    why = (
        "attention layers cannot forget their tokens and keep their positions"
        if operation == "reset"
        else "keys and values belong to tokens at positions, and are carried unchanged"
    )
    raise InvalidParameterError("tensors", f"{named[0]!r}: {why}; {_INSTEAD}")


def check_parents(operation: str, parents: Sequence[StateImage]) -> None:
    """Check that states that become one have the same pages. Compares them, about 0.1 ms a MiB.

    Raises:
        InvalidParameterError: they have absorbed different tokens.
    """
    first = parents[0]
    if any(not have_same_pages(first, other) for other in parents[1:]):
        raise InvalidParameterError(
            "parents",
            f"{operation} would have to join what attention layers keep of different tokens, and "
            "there is no mean of two histories. Parents with the same tokens, such as forks of one "
            "version, can be joined; transplant takes layers of the recurrence alone",
        )


def have_same_pages(one: StateImage, other: StateImage) -> bool:
    """Whether attention layers keep the same in two states of one layout."""
    start = one.layout.record_bytes
    return one.carried.n_computed == other.carried.n_computed and bool(
        one.record[start:].equal(other.record[start:])
    )
