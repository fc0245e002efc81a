"""The connections of a blocking client: the one for new requests, and when to make another."""

import math
import random
import socket
import time
from collections.abc import Callable

from wkvm_protocol.messages import Message, StateOperation, Stats

from wkvm_client.addresses import Reachable
from wkvm_client.backoff import Backoff, Pace
from wkvm_client.blocking_link import SHORTEST_WAIT_S, Link, open_link
from wkvm_client.errors import ClientClosedError, ClientError, ReplyTimeoutError
from wkvm_client.replies import Reply


class Connections:
    """One connection at a time that takes requests, and the older ones that still end some.

    Connects at once.

    Args:
        reconnect_timeout_s: how long to try for another one; None for not at all.
    """

    def __init__(
        self,
        where: Reachable | socket.socket,
        *,
        api_key: str,
        connect_timeout_s: float,
        reconnect_timeout_s: float | None,
    ) -> None:
        self._where = where
        self._api_key = api_key
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._closed = False
        self._pace = Pace()
        self._old_links: list[Link] = []
        self.link = self._open_link(connect_timeout_s)

    def close(self) -> None:
        """Close all of them. What is open fails with ClientClosedError, on the server too."""
        self._closed = True
        for link in (self.link, *self._old_links):
            link.close(ClientClosedError("the client was closed"))
        self._old_links.clear()

    def _open_link(self, timeout_s: float) -> Link:
        return open_link(self._where, api_key=self._api_key, timeout_s=timeout_s)

    def ready(self, deadline_s: float | None) -> Link:
        """The connection for a new request: the one there is, or a new one.

        Raises:
            TimeoutError: it could not be had, or takes nothing more, until ``deadline_s``.
        """
        if self._closed:
            raise ClientClosedError("the client was closed")
        # a server may have gone, or pinged, while nobody read
        self.link.receive_pending()
        # what is left of earlier requests goes first, or it would grow without bound
        if not self.link.flush(deadline_s):
            raise TimeoutError
        if self.link.core.takes_lanes:
            return self.link
        return self._reconnect(math.inf if deadline_s is None else deadline_s)

    def ask(self, message: Stats | StateOperation, timeout_s: float | None) -> Message:
        """Ask a question, or for an operation. If it takes too long, it is cancelled.

        Raises:
            ReplyTimeoutError: it took longer than ``timeout_s``.
            ClientError: it failed.
        """
        deadline_s = deadline(timeout_s)
        try:
            link = self.ready(deadline_s)
            reply = link.core.ask(message)
            try:
                return answer_of(link, reply, deadline_s)
            except BaseException:
                if not isinstance(message, Stats):
                    link.core.operations.abandon(reply)
                    link.push()
                raise
        except TimeoutError as error:
            raise ReplyTimeoutError(timeout_s or 0.0) from error

    def _reconnect(self, deadline_s: float) -> Link:
        core = self.link.core
        why = core.error or core.gone()
        if self._reconnect_timeout_s is None:
            raise why.again()
        now_s = time.monotonic()
        backoff = Backoff(
            now_s=now_s,
            timeout_s=self._reconnect_timeout_s,
            not_before_s=max(
                self.link.not_before_s,
                0.0 if core.was_of_use else self._pace.not_before_s,
            ),
            random=random.random,
        )
        while (pause_s := backoff.next_pause_s(now_s)) is not None:
            if now_s + pause_s >= deadline_s:
                raise TimeoutError from why
            time.sleep(pause_s)
            left_s = max(deadline_s - time.monotonic(), SHORTEST_WAIT_S)
            try:
                link = self._open_link(min(self._connect_timeout_s, left_s))
            except ClientError as error:
                if not error.retryable:
                    raise
                why = error
                now_s = time.monotonic()
                continue
            self._pace.connected(time.monotonic(), was_of_use=core.was_of_use)
            self._old_links = [old for old in self._old_links if old.core.error is None]
            if core.error is None:
                self._old_links.append(self.link)
            self.link = link
            return link
        raise why.again()


def deadline(timeout_s: float | None) -> float | None:
    """On the monotonic clock; None for never."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def answer_of(link: Link, reply: Reply, deadline_s: float | None) -> Message:
    """Wait for an answer.

    Raises:
        TimeoutError: it is ``deadline_s``.
        ClientError: none can come any more.
    """
    changed(link, lambda: reply.is_over, deadline_s)
    if reply.error is not None:
        raise reply.error.again()
    assert reply.answer is not None
    return reply.answer


def changed(link: Link, is_enough: Callable[[], bool], deadline_s: float | None) -> None:
    """Send what is queued, and receive until enough is there.

    Raises:
        TimeoutError: it is ``deadline_s``.
    """
    if not link.flush(deadline_s):
        raise TimeoutError
    while not is_enough():
        if not link.receive(deadline_s):
            raise TimeoutError
