"""What the server asks of others.

``wkvm.engine.loop.EngineLoop`` is a Loop, ``wkvm.assembly.http.HttpDoor`` a Door.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from wkvm.core.request import Event, RequestSpec
from wkvm.engine.interface import EngineInfo


class Loop(Protocol):
    """Turns an engine, and hands over what it produces. Used from one thread."""

    deliver: Callable[[list[Event]], None]
    """Called once a step with what happened in it; and when a call, such as cancel, made events."""

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        ...

    def submit(self, spec: RequestSpec) -> tuple[int, ...]:
        """Queue all choices of a spec or none; their ids. Raises RequestError or CapacityError."""
        ...

    def cancel(self, request_id: int) -> None:
        """End a request. Its EndEvent follows; unknown and ended requests are ignored."""
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

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; wait for the ends; cancel what is left after ``grace_s``."""
        ...


class Door(Protocol):
    """Another way to the engine, beside the binary protocol, in the same process."""

    @property
    def max_connections(self) -> int:
        """How many connections it may have open at once."""
        ...

    async def start(self) -> None:
        """Let clients in. The server serves already; if this raises, ``close`` follows."""
        ...

    def begin_drain(self) -> None:
        """Refuse what is new from now on; what is open may go on to its end."""
        ...

    async def close(self) -> None:
        """End everything, in bounded time. The engine has ended already; its lanes have as well."""
        ...
