"""The connections of an asyncio client: the one for new requests, and when to make another."""

import asyncio
import random
import time
from collections.abc import Callable

from wkvm_protocol.messages import Message, StateOperation, Stats

from wkvm_client.aio_link import Link, Where, open_link
from wkvm_client.backoff import Backoff, Pace
from wkvm_client.errors import ClientClosedError, ClientError, ReplyTimeoutError
from wkvm_client.replies import Reply


class Connections:
    """One connection at a time that takes requests, and the older ones that still end some.

    Args:
        reconnect_timeout_s: how long to try for another one; None for not at all.
        grace_s: see ``Link``.
    """

    def __init__(
        self,
        where: Where,
        *,
        api_key: str,
        connect_timeout_s: float,
        reconnect_timeout_s: float | None,
        grace_s: float,
    ) -> None:
        self._where = where
        self._api_key = api_key
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._grace_s = grace_s
        self._lock = asyncio.Lock()
        self.link: Link | None = None
        self._old_links: set[Link] = set()
        self._not_before_s = 0.0
        self._pace = Pace()
        self._closed = False

    async def aclose(self) -> None:
        """Close all of them. What is open fails with ClientClosedError, on the server too."""
        self._closed = True
        links = [link for link in (self.link, *self._old_links) if link is not None]
        self._old_links.clear()
        try:
            await asyncio.gather(*(link.aclose() for link in links))
        except asyncio.CancelledError:
            # some may not have begun
            for link in links:
                link.drop()
            raise

    async def ready(self) -> Link:
        """The connection for a new request: the one there is, or a new one."""
        while True:
            link = self.link
            if link is None or not link.core.takes_lanes:
                link = await self.connect()
            await link.writable()
            if link.core.takes_lanes:
                return link

    async def ask(self, message: Stats | StateOperation, timeout_s: float | None) -> Message:
        """Ask a question, or for an operation. If nobody waits any more, it is cancelled.

        Raises:
            ReplyTimeoutError: it took longer than ``timeout_s``.
            ClientError: it failed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                link = await self.ready()
                reply = link.core.ask(message)
                try:
                    return await answer_of(reply)
                except BaseException:
                    if not isinstance(message, Stats):
                        link.core.operations.abandon(reply)
                    raise
        except TimeoutError as error:
            raise ReplyTimeoutError(timeout_s or 0.0) from error

    async def connect(self) -> Link:
        """Connect: once, or where there was a connection as long as is to be tried."""
        async with self._lock:
            link = self.link
            if self._closed:
                raise ClientClosedError("the client was closed")
            if link is None:
                return await self._connect()
            if link.core.takes_lanes:
                return link
            why = link.core.error or link.core.gone()
            if self._reconnect_timeout_s is None:
                raise why.again()
            backoff = Backoff(
                now_s=time.monotonic(),
                timeout_s=self._reconnect_timeout_s,
                not_before_s=max(
                    self._not_before_s,
                    0.0 if link.core.was_of_use else self._pace.not_before_s,
                ),
                random=random.random,
            )
            while (pause_s := backoff.next_pause_s(time.monotonic())) is not None:
                await asyncio.sleep(pause_s)
                try:
                    return await self._connect()
                except ClientError as error:
                    if not error.retryable:
                        raise
                    why = error
            raise why.again()

    async def _connect(self) -> Link:
        if self._closed:
            raise ClientClosedError("the client was closed")
        link = await open_link(
            self._where,
            api_key=self._api_key,
            timeout_s=self._connect_timeout_s,
            on_going_away=self._going_away,
            grace_s=self._grace_s,
        )
        if self._closed:
            await link.aclose()
            raise ClientClosedError("the client was closed")
        self._pace.connected(
            time.monotonic(), was_of_use=self.link is None or self.link.core.was_of_use
        )
        self._old_links = {old for old in self._old_links if not old.is_closed}
        if self.link is not None and not self.link.is_closed:
            self._old_links.add(self.link)
        self.link = link
        return link

    def _going_away(self, link: Link) -> None:
        self._not_before_s = time.monotonic() + link.core.gone().retry_after_ms / 1000


async def answer_of(reply: Reply) -> Message:
    """Wait for an answer.

    Raises:
        ClientError: none can come any more.
    """
    await changed(reply, lambda: reply.is_over)
    if reply.error is not None:
        raise reply.error.again()
    assert reply.answer is not None
    return reply.answer


async def changed(reply: Reply, is_enough: Callable[[], bool]) -> None:
    """Wait until something has come of which enough is there."""
    event = asyncio.Event()
    reply.on_change = event.set
    try:
        while not is_enough():
            event.clear()
            await event.wait()
    finally:
        reply.on_change = None
