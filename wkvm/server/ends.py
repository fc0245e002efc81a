"""What the engine tells of a choice to messages: log probabilities, and ends."""

from collections.abc import Sequence

from wkvm_protocol import messages as wire
from wkvm_protocol.messages import pack_floats, pack_ids

from wkvm.core.request import EndEvent, Logprobs, Status
from wkvm.core.states import StateEnd
from wkvm.server.lanes import Choice

REASONS = {
    Status.STOPPED: wire.EndReason.STOP,
    Status.LENGTH: wire.EndReason.LENGTH,
    Status.CANCELLED: wire.EndReason.CANCELLED,
    Status.TIMED_OUT: wire.EndReason.TIMED_OUT,
}
"""The ends that are no failures."""


def reason_of(event: EndEvent) -> wire.EndReason | None:
    """Why a choice ended; None if it failed."""
    if event.state is not None and event.state.moved is not None:
        return wire.EndReason.MOVED
    return REASONS.get(event.status)


def end_of(choice: Choice, event: EndEvent, reason: wire.EndReason) -> wire.End | wire.EndOn:
    """The end of a choice that did not fail."""
    lane = choice.lane
    if lane.is_on_state:
        return _end_on(choice, event, reason, event.state or StateEnd())
    is_scored = lane.n_scored is not None
    return wire.End(
        request_id=lane.request_id,
        choice=choice.index,
        reason=reason,
        stop_id=event.stop_id,
        n_prompt=event.n_prompt if lane.n_scored is None else lane.n_scored,
        n_output=0 if is_scored else event.n_output,
        queue_us=_us(event.queue_s),
        first_token_us=0 if is_scored else _us(event.first_token_s),
        total_us=_us(event.total_s),
    )


def _end_on(choice: Choice, event: EndEvent, reason: wire.EndReason, state: StateEnd) -> wire.EndOn:
    moved = state.moved
    ref = state.ref if moved is None else moved.ref
    return wire.EndOn(
        request_id=choice.lane_id,
        choice=choice.index,
        reason=reason,
        stop_id=event.stop_id,
        n_prompt=event.n_prompt,
        n_output=event.n_output,
        queue_us=_us(event.queue_s),
        first_token_us=_us(event.first_token_s),
        total_us=_us(event.total_s),
        cached_tokens=state.cached_tokens,
        n_computed=state.n_computed,
        pending=pack_ids(state.pending),
        prompt_left=state.prompt_left,
        name="" if ref is None else ref.name,
        version=0 if ref is None else ref.version or 0,
        ack="" if state.ack is None else state.ack.value,
        target="" if moved is None else moved.target,
    )


def logprobs_of(
    choice: Choice, positions: Sequence[Logprobs], first: int, *, of_prompt: bool
) -> wire.Logprobs:
    """Log probabilities of consecutive positions of a choice."""
    tops = [top for position in positions for top in position.top]
    return wire.Logprobs(
        request_id=choice.lane_id,
        choice=choice.index,
        of_prompt=of_prompt,
        first=first,
        n_top=len(positions[0].top),
        ids=pack_ids(position.token_id for position in positions),
        logprobs=pack_floats(position.logprob for position in positions),
        ranks=pack_ids(position.rank for position in positions),
        top_ids=pack_ids(top.token_id for top in tops),
        top_logprobs=pack_floats(top.logprob for top in tops),
    )


def _us(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1e6)
