"""What the states ask of the loop that turns the engine; ``EngineLoop`` is one."""

from collections.abc import Callable, Container, Mapping
from typing import Protocol

from wkvm.core.layout import StateLayout
from wkvm.core.request import Event, RequestSpec
from wkvm.engine.interface import EngineInfo


class StepLoop(Protocol):
    """Turns an engine. Used from one thread."""

    deliver: Callable[[list[Event]], None]
    """Called once a step with what happened in it; never from within a call."""

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        ...

    @property
    def layout(self) -> StateLayout:
        """Of one state."""
        ...

    def reserve(self, n: int) -> tuple[int, ...]:
        """Ids for a spec of ``n`` choices that is submitted later, or never."""
        ...

    def submit(
        self, spec: RequestSpec, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Queue all choices of a spec or none; their ids, those reserved if given.

        Raises:
            RequestError, CapacityError: it is refused.
        """
        ...

    def cancel(self, request_id: int) -> None:
        """End a request. Its EndEvent follows; unknown and ended requests are ignored."""
        ...

    def interrupt(self, request_id: int) -> None:
        """End a request as cancelled once what is in flight has run, with its state if it saves.

        Unknown and ended requests are ignored.
        """
        ...

    def snapshot(self, request_id: int) -> bool:
        """Whether a SavedEvent of a request will come, unless it ends before."""
        ...

    def grant(self, request_id: int, n_tokens: int) -> None:
        """Add to a request's credit."""
        ...

    def hold(self, request_id: int) -> None:
        """Produce nothing more for a request until released."""
        ...

    def release(self, request_id: int) -> None:
        """End a hold."""
        ...

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...

    def cancel_all(self, but: Container[int] = ()) -> None:
        """End all requests but these."""
        ...

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; wait for the ends; cancel what is left after ``grace_s``."""
        ...
