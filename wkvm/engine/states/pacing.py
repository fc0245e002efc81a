"""Requests that are told no faster than their clients grant, though they run as they like.

A request goes on without a limit while its client is away. When the client comes back, with a
credit, it gets the ids that it has missed, and those that come, as the credit lets it; its end
comes after them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from wkvm.core.request import EndEvent, Event, Logprobs, Status, TokensEvent


@dataclass(slots=True, eq=False)
class _Paced:
    """A request whose client came back.

    Attributes:
        outputs: its ids so far; more are appended by others, before they are passed on here.
        n_told: how many of them its client has had.
        limit: how many it may have.
        logprobs: of ids that wait, by their place in the output.
        end: once there is one.
        is_held: whether its client does not read.
        is_cancelled: whether its client wants no more of it.
    """

    request_id: int
    outputs: Sequence[int]
    n_told: int
    limit: int
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])
    end: EndEvent | None = None
    is_held: bool = False
    is_cancelled: bool = False

    def take(self) -> list[Event]:
        """What can be told now."""
        end = self.end
        n_all = len(self.outputs)
        if end is not None and _is_kept(end):
            n_all = min(n_all, end.n_output)
        told = list[Event]()
        if not self.is_held and not self.is_cancelled:
            n = max(min(n_all, self.limit), self.n_told)
            told += map(self._token, range(self.n_told, n))
            self.n_told = n
        if end is None:
            return told
        if not _is_kept(end):
            # What it has not had is lost with it.
            return [*told, replace(end, n_output=min(end.n_output, self.n_told))]
        if self.n_told >= n_all or self.is_cancelled:
            return [*told, end]
        return told

    def _token(self, index: int) -> TokensEvent:
        logprobs = self.logprobs.pop(index, None)
        event = TokensEvent((self.request_id,), (index,), (self.outputs[index],))
        return event if logprobs is None else replace(event, logprobs={0: logprobs})


def _is_kept(end: EndEvent) -> bool:
    """Whether the ids before an end are part of what was made, here or elsewhere."""
    state = end.state
    has_state = state is not None and (state.ref is not None or state.moved is not None)
    return has_state or end.status in (Status.LENGTH, Status.STOPPED)


class Pacer:
    """Passes events on, those of some requests as their clients' credit lets them.

    Args:
        deliver: takes events.
    """

    def __init__(self, deliver: Callable[[list[Event]], None]) -> None:
        self._deliver = deliver
        self._paced = dict[int, _Paced]()

    def begin(self, request_id: int, outputs: Sequence[int], *, n_told: int, credit: int) -> None:
        """Pace a request from now on. ``tell`` begins with what was missed."""
        self._paced[request_id] = _Paced(request_id, outputs, n_told, n_told + credit)

    def drop(self, request_id: int) -> None:
        """Pace it no more: nobody listens, or there is no limit."""
        self._paced.pop(request_id, None)

    def grant(self, request_id: int, n_tokens: int) -> int | None:
        """Its client may have more; ``tell`` tells it.

        Returns:
            How many ids the client may have in all; None for a request that is not paced.
        """
        paced = self._paced.get(request_id)
        if paced is None:
            return None
        paced.limit += n_tokens
        return paced.limit

    def hold(self, request_id: int, *, is_held: bool) -> bool:
        """Its client does not read, or reads again. False for a request that is not paced."""
        paced = self._paced.get(request_id)
        if paced is not None:
            paced.is_held = is_held
        return paced is not None

    def cancel(self, request_id: int) -> bool:
        """Its client wants no more ids, and its end as soon as there is one. False as ``hold``."""
        paced = self._paced.get(request_id)
        if paced is not None:
            paced.is_cancelled = True
        return paced is not None

    def pass_on(self, events: Sequence[Event]) -> None:
        """Deliver events, but for what has to wait."""
        if not self._paced:
            self._deliver(list(events))
            return
        others, touched = list[Event](), dict[int, None]()
        for event in events:
            if isinstance(event, TokensEvent):
                rest = self._without(event, touched)
                if rest is not None:
                    others.append(rest)
            elif isinstance(event, EndEvent) and event.request_id in self._paced:
                self._paced[event.request_id].end = event
                touched[event.request_id] = None
            else:
                others.append(event)
        if others:
            self._deliver(others)
        for request_id in touched:
            self.tell(request_id)

    def tell(self, request_id: int) -> None:
        """Tell a request's client what it may have."""
        paced = self._paced.get(request_id)
        if paced is None:
            return
        events = paced.take()
        if events and isinstance(events[-1], EndEvent):
            del self._paced[request_id]
        if events:
            self._deliver(events)

    def _without(self, event: TokensEvent, touched: dict[int, None]) -> TokensEvent | None:
        """What of a step's ids does not wait; None if all do."""
        if self._paced.keys().isdisjoint(event.request_ids):
            return event
        places = list[int]()
        for at, request_id in enumerate(event.request_ids):
            paced = self._paced.get(request_id)
            if paced is None:
                places.append(at)
                continue
            touched[request_id] = None
            if at in event.logprobs:
                paced.logprobs[event.indices[at]] = event.logprobs[at]
        if not places:
            return None
        return TokensEvent(
            [event.request_ids[at] for at in places],
            [event.indices[at] for at in places],
            [event.token_ids[at] for at in places],
            {to: event.logprobs[at] for to, at in enumerate(places) if at in event.logprobs},
        )
