"""One operation on states, and the connection that asked for it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from wkvm_protocol import messages as wire

from wkvm.server.lanes import Lane
from wkvm.server.state_bytes import Download, Upload


class StateClient(Protocol):
    """A connection that is open, as operations see it."""

    tenant: str
    lanes: dict[int, Lane]

    @property
    def max_frame_bytes(self) -> int:
        """Longest message that it takes."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether more than a little of what was sent to it waits to be read."""
        ...

    def send(self, messages: Sequence[wire.ServerMessage]) -> None:
        """Send messages with one write; nothing happens once it closes."""
        ...

    def room(self, request_id: int) -> int:
        """How many bytes of a state may be sent on a lane, as the client granted them."""
        ...

    async def output_room(self) -> int:
        """How many bytes may wait to be sent behind what is urgent, once it is one at least."""
        ...


class Operation:
    """One operation on states: whose it is, its task, and the bytes that go with it."""

    __slots__ = (
        "client",
        "download",
        "has_begun",
        "is_cancelled",
        "is_large",
        "is_transfer",
        "names",
        "request_id",
        "task",
        "tenant",
        "upload",
    )

    def __init__(
        self,
        client: StateClient,
        request_id: int,
        *,
        is_transfer: bool,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.client = client
        self.tenant = client.tenant
        self.request_id = request_id
        self.names = names
        self.is_transfer = is_transfer
        self.is_large = False
        self.has_begun = False
        self.is_cancelled = False
        self.upload: Upload | None = None
        self.download: Download | None = None
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel its task, once: a second time would cut off what it does at its end.

        A task that has not begun would never be, and nothing would answer.
        """
        if not self.is_cancelled and self.has_begun and self.task is not None:
            self.task.cancel()
        self.is_cancelled = True

    @property
    def received(self) -> Upload:
        """What comes, of one that takes bytes."""
        if self.upload is None:
            raise RuntimeError("it takes no bytes")
        return self.upload

    @property
    def sent(self) -> Download:
        """What goes, of one that sends bytes."""
        if self.download is None:
            raise RuntimeError("it sends no bytes")
        return self.download
