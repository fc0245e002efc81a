"""Streams that were cut off go on, for asyncio: see ``wkvm_client.legs``."""

import asyncio
from typing import Protocol

from wkvm_client.aio_connections import Connections
from wkvm_client.aio_states import States
from wkvm_client.errors import ClientClosedError, ClientError
from wkvm_client.lanes import Lane


class Place(Protocol):
    """A server, and the servers that it names."""

    @property
    def connections(self) -> Connections:
        """To it."""
        ...

    @property
    def followers(self) -> "Followers":
        """Of streams on it."""
        ...

    @property
    def states(self) -> States:
        """That it keeps."""
        ...

    def at(self, address: str) -> "Place":
        """Another server."""
        ...


class Followers:
    """Takes lanes of one client to where they go on, each in a task of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._tasks = set[asyncio.Task[None]]()

    def follow(self, lane: Lane) -> None:
        """Let a lane that was cut off go on, or fail."""
        task = asyncio.create_task(self._follow(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Fail all that are on their way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, lane: Lane) -> None:
        try:
            assert lane.cut is not None
            place = self._place.at(lane.cut.target) if lane.cut.target else self._place
            if lane.cut.n_tokens is not None:
                lane.cut = lane.cut.arrived(await place.states.get(lane.cut.name))
            link = await place.connections.ready()
            if not lane.is_over:
                lane.on_cut = place.followers.follow
                link.core.reopen(lane)
        except ClientError as error:
            lane.fail(error)
        except asyncio.CancelledError:
            lane.fail(ClientClosedError("the client was closed"))
            raise
