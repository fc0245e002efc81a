"""What is told of turns beside what the engine tells."""

from collections.abc import Sequence
from dataclasses import replace

from wkvm.core.errors import WkvmError
from wkvm.core.request import EndEvent, Event, RequestSpec, Status, TokensEvent
from wkvm.core.start import Saved
from wkvm.core.states import StateEnd, StateUse
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.turns import Turn


def start_end(turn: Turn) -> StateEnd:
    """What is known of the states of a turn before it ends."""
    return StateEnd(start=turn.start, cached_tokens=turn.cached_tokens)


def parked_end(backing: Backing, turn: Turn) -> StateEnd:
    """What is told of a turn that ends where it is parked: at the version that was made there."""
    origin = turn.origin
    record = None if origin is None else origin.record
    return replace(
        start_end(turn),
        ref=None if record is None else record.ref,
        ack=None if record is None else backing.told(record).ack,
        n_computed=turn.n_start,
        pending=turn.pending,
        prompt_left=len(turn.spec.prompt),
    )


def end_event(
    turn: Turn, request_id: int, status: Status, now: float, *, saved: Saved | None = None
) -> EndEvent:
    """The end of a turn that the engine has never had."""
    return EndEvent(
        request_id=request_id,
        status=status,
        stop_id=None,
        error=None,
        n_prompt=len(turn.asked.prompt),
        n_output=0,
        queue_s=None,
        first_token_s=None,
        total_s=now - turn.began_at,
        saved=saved,
        state=start_end(turn),
    )


def failure(turn: Turn, event: EndEvent, error: WkvmError) -> EndEvent:
    """The end of a turn of which nothing was kept, for ``error``."""
    return replace(
        event,
        status=Status.FINISHED_ERROR,
        stop_id=None,
        error=error,
        saved=None,
        state=start_end(turn),
    )


def again(request_id: int, received: int, outputs: Sequence[int]) -> list[Event]:
    """The ids of a request that its client has not got."""
    return [
        TokensEvent((request_id,), (index,), (outputs[index],))
        for index in range(received, len(outputs))
    ]


def is_same(spec: RequestSpec, use: StateUse, other: RequestSpec, other_use: StateUse) -> bool:
    """Whether two requests with one key ask for the same."""
    return (
        list(spec.prompt) == list(other.prompt)
        and spec.params == other.params
        and replace(use, received=0) == replace(other_use, received=0)
    )
