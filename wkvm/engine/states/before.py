"""Turns that were committed under their idempotency key before this process began."""

from array import array
from dataclasses import replace

from wkvm.core.errors import KeyReusedError
from wkvm.core.registry import VersionRecord, parse_ref
from wkvm.core.request import EndEvent, Status
from wkvm.core.states import StateEnd
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.tellings import end_event
from wkvm.engine.states.turns import Turn
from wkvm.state.image import StateImage, encode_image


def end_before(
    backing: Backing, turn: Turn, eos_ids: tuple[int, ...]
) -> "tuple[array[int], EndEvent] | None":
    """The ids and the end of the turn that was committed under the key of this one, if one was.

    What it produced is in the token log of its version. In a thread.

    Args:
        eos_ids: of the model.

    Raises:
        KeyReusedError: the key stands for something else.
        StateNotFoundError: the version was deleted since.
    """
    spec, use = turn.spec, turn.use
    name, key = use.save_as or "", use.idempotency_key or ""
    record = backing.store.committed(spec.tenant, name, key)
    if record is None:
        return None
    backing.check_kept_here(spec.tenant, name)
    image = backing.store.load(spec.tenant, record.ref).image
    ids = [*image.ids(), *image.carried.pending]
    n_output = record.provenance.parameters.get("n_output")
    if not isinstance(n_output, int) or record.provenance.operation != use.operation:
        raise KeyReusedError
    first = len(ids) - n_output
    if list(spec.prompt) != ids[max(first - len(spec.prompt), 0) : first]:
        raise KeyReusedError
    outputs = array("i", ids[first:])
    stop_ids = {*spec.params.stop_ids, *(() if spec.params.ignore_eos else eos_ids)}
    status, stop_id = Status.LENGTH, None
    if image.carried.pending and outputs and outputs[-1] in stop_ids:
        status, stop_id = Status.STOPPED, outputs.pop()
    elif n_output < spec.params.max_tokens:
        status = Status.CANCELLED
    (request_id,) = turn.ids
    end = end_event(turn, request_id, status, backing.clock())
    state = _state_of(backing, record, image, returns_state=use.returns_state)
    return outputs, replace(end, stop_id=stop_id, n_output=len(outputs), state=state)


def _state_of(
    backing: Backing, record: VersionRecord, image: StateImage, *, returns_state: bool
) -> StateEnd:
    parents = record.provenance.parents
    return StateEnd(
        start=parse_ref(parents[0].ref) if parents and parents[0].ref else None,
        ref=record.ref,
        ack=backing.told(record).ack,
        cached_tokens=record.provenance.n_before,
        n_computed=image.carried.n_computed,
        pending=image.carried.pending,
        inline=encode_image(image).tobytes() if returns_state else None,
    )
