"""One response that is asked for over a WebSocket, from its frame to its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from wkvm.gateway.responses.websocket.frames import Create
from wkvm.gateway.responses.websocket.steering import Steer


@dataclass(slots=True)
class Work:
    """A response that is asked for.

    Attributes:
        create: as it was read.
        n_bytes: that it counts for its tenant.
        steers: what was put in before it; ``create`` has it.
        n_events: that were sent.
        next_steers: what is put in after it.
    """

    create: Create
    n_bytes: int
    steers: Sequence[Steer] = ()
    n_events: int = 0
    next_steers: list[Steer] = field(default_factory=list[Steer])

    @property
    def lane(self) -> str | None:
        """Where it was asked for."""
        return self.create.stream_id
