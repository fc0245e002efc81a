"""What a turn starts from: found, checked and loaded in a thread, and made a start of."""

from collections.abc import Sequence

import torch

from wkvm.core.errors import (
    StaleVersionError,
    StateNotFoundError,
)
from wkvm.core.registry import VersionRecord
from wkvm.core.start import Saved, Start
from wkvm.core.states import StateUse
from wkvm.engine.states.backing import MAX_MOVED, Backing
from wkvm.engine.states.commits import expected_of
from wkvm.engine.states.turns import Origin, Turn
from wkvm.state.image import StateImage


def is_at_hand(backing: Backing, turn: Turn) -> bool:
    """Give a turn what it starts from if that is in memory and nothing else is to be asked.

    On the loop's thread: it takes some microseconds. What is not as simple is for ``load_origin``.
    """
    use, ref = turn.use, turn.use.state
    if ref is None or len(backing.moved) >= MAX_MOVED:
        return False
    if use.save_as is not None and (use.save_as != ref.name or ref.version is not None):
        return False
    loaded = backing.store.at_hand(turn.spec.tenant, ref, identity=backing.identity)
    if loaded is None:
        return False
    # It is the head, so this is what a commit would find.
    if use.save_as is not None and use.expected_version not in (None, loaded.record.version):
        return False
    turn.origin = _origin(loaded.image, loaded.record)
    return True


def load_origin(backing: Backing, turn: Turn) -> None:
    """Load what a turn starts from, and give it to the turn. In a thread: it may read a disk.

    Raises:
        StateNotFoundError: the tenant has no such state.
        StateMismatchError, BadStateFileError, StateNotFiniteError, StateDamagedError,
            StoreFailedError: it is no state of this model, or cannot be read.
        StateMovedError: it is at another engine.
        StaleVersionError: what it would be committed to has moved on already.
    """
    use, tenant = turn.use, turn.spec.tenant
    origin = None
    names = {use.save_as, None if use.state is None else use.state.name}
    for name in names - {None}:
        backing.check_kept_here(tenant, name or "")
    if use.state is not None:
        loaded = backing.store.load(tenant, use.state, identity=backing.identity)
        origin = _origin(loaded.image, loaded.record)
    elif use.inline is not None:
        image = read_file(backing, use.inline)
        origin = _origin(image, None)
    turn.origin = origin
    # A commit that was made before, under the same key, is no reason to refuse it.
    if use.save_as is not None and use.idempotency_key is None:
        check_expected(backing, tenant, use.save_as, expected_of(turn))


def read_file(backing: Backing, file: bytes) -> StateImage:
    """The state in a file that somebody has sent.

    Raises:
        StateMismatchError, StateNotFiniteError, BadStateFileError: it is none, or none of this
            model.
    """
    receiver = backing.receiver(len(file))
    receiver.feed(file)
    return receiver.finish().image


def check_expected(backing: Backing, tenant: str, name: str, expected: int | None) -> None:
    """Check early what a commit would be refused for. In a thread.

    Raises:
        StaleVersionError: the head of ``name`` is not the one that is expected.
    """
    if expected is None:
        return
    try:
        head = backing.store.get(tenant, name).version
    except StateNotFoundError:
        head = 0
    if head != expected:
        raise StaleVersionError(name, expected, head)


def start_of(origin: Origin) -> Start:
    """The start of a request from a state."""
    image = origin.image
    return Start(
        record=image.record,
        n_computed=image.carried.n_computed,
        pending=origin.pending,
        memory=image.carried.sampler,
        log=image.ids(),
    )


def untouched(backing: Backing, origin: Origin | None, pending: Sequence[int]) -> Saved:
    """What is saved of a turn that absorbs nothing, and ends with ``pending``."""
    if origin is None:
        record = torch.zeros(backing.layout.record_bytes, dtype=torch.uint8)
        return Saved(record=record, n_computed=0, absorbed=(), pending=tuple(pending), memory=None)
    carried = origin.image.carried
    return Saved(
        record=origin.image.record,
        n_computed=carried.n_computed,
        absorbed=(),
        pending=tuple(pending),
        memory=carried.sampler,
    )


def is_fork(use: StateUse, n_choices: int) -> bool:
    """Whether a request draws random numbers of its own, and not those that its start would."""
    if use.keeps_key:
        return False
    is_same_handle = use.state is not None and use.state.name == use.save_as
    is_only_copy = use.inline is not None
    return n_choices > 1 or not (is_same_handle or is_only_copy)


def _origin(image: StateImage, record: VersionRecord | None) -> Origin:
    return Origin(image, record, image.carried.pending)
