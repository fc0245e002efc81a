"""What turns take in host memory, where states grow with their tokens."""

from wkvm.core.errors import InvalidParameterError
from wkvm.core.layout import StateLayout
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.gate import NO_PLACE, Place
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.turns import Turn
from wkvm.state.exchange import MAX_INLINE_BYTES


def max_start_bytes(loop: StepLoop) -> int | None:
    """How many bytes of states of a tenant may wait for slots: twice what the device holds.

    None where states have no pages: their number says it.
    """
    layout, info = loop.layout, loop.info
    if layout.guest is None:
        return None
    return 2 * (info.n_slots * layout.record_bytes + info.n_pages * layout.guest.page_bytes)


async def place_of(backing: Backing, turn: Turn) -> Place:
    """What the state that a turn starts from takes, where states differ in that.

    Raises:
        WkvmError: there is no such state.
    """
    use, tenant = turn.use, turn.spec.tenant
    if backing.layout.guest is None:
        return NO_PLACE
    if use.state is None:
        return Place(f"inline {id(turn)}", len(use.inline or b""))
    ref = use.state
    loaded = backing.store.at_hand(tenant, ref, identity=backing.identity)
    record = (
        await backing.threads.read(lambda: backing.store.get(tenant, ref))
        if loaded is None
        else loaded.record
    )
    return Place(record.content_id, backing.layout.image_bytes(record.n_computed))


def check_returned(turn: Turn, n_fed: int, layout: StateLayout, max_model_len: int | None) -> None:
    """Check that a state that is to go out with the end of a turn will not be too large.

    Args:
        n_fed: ids that the turn begins with.

    Raises:
        InvalidParameterError: it may be.
    """
    if not turn.use.returns_state or layout.guest is None:
        return
    n_tokens = turn.n_start + n_fed + turn.spec.params.max_tokens
    n_bytes = layout.image_bytes(
        n_tokens if max_model_len is None else min(n_tokens, max_model_len)
    )
    if n_bytes > MAX_INLINE_BYTES:
        raise InvalidParameterError(
            "want_inline",
            f"the state may have {n_bytes:,} bytes by its end, and the limit is "
            f"{MAX_INLINE_BYTES:,}; save it under a name and export that",
        )
