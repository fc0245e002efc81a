"""Watches: what connections are told of changes without asking.

A watch is a task that sends what is new when it may: when the client has granted a message, reads
what was sent before, and the time between two has passed. What is sent is made just then, so that
who is slow is told of the latest, and nothing waits for anybody but parts of one batch. What takes
time, looking at states and making messages of them, watches do in turns, so that no number of them
takes the loop from others.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import NoReturn

import msgspec
from wkvm_protocol import messages as wire
from wkvm_protocol.connection import failure
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import pack_ids

from wkvm.core.errors import InvalidParameterError, QueueFullError
from wkvm.core.states import StateNews
from wkvm.server.errors import refusal
from wkvm.server.interface import States, StateWatch
from wkvm.server.operation import StateClient
from wkvm.server.round_robin import RoundRobin
from wkvm.server.state_fields import info_message

WATCHES_PER_CONNECTION = 8
WATCHES_PER_TENANT = 64
INTERVALS_MS = (20, 60_000)
STATS_INTERVALS_MS = (100, 60_000)
STATES_AT_ONCE = 1024
"""Handles that are told of once an interval, in several messages."""
STATES_PER_MESSAGE = 64
"""Few enough that to encode them holds nobody up."""
NAMES = 64
"""Names that are no more in a message, 128 characters each at most."""
ROOM = NAMES * 132 + 512
"""Bytes of a message beside its states."""
BEHIND_S = 0.05
"""How long to leave a client alone that has not read what it was sent."""
MAX_SECONDS = 2**32 - 1
ENDS = {
    ErrorCode.CANCELLED: "it was cancelled",
    ErrorCode.DRAINING: "one of both sides is going away",
}
"""Why a watch ends that has no end by itself."""


class _Watching:
    """One watch: whose, what it may send, and what it has to send."""

    def __init__(self, client: StateClient, message: wire.Watch) -> None:
        self.client = client
        self.tenant = client.tenant
        self.request_id = message.request_id
        self.credit = message.credit or None
        self.interval_s = message.interval_ms / 1000
        self.stats_s = message.stats_ms / 1000
        self.stats_at = 0.0 if message.stats_ms else None
        self.states_at = 0.0
        self.source: StateWatch | None = None
        self.parts: Iterator[wire.StateChanges] | None = None
        self.last_values: Mapping[str, int] = {}
        self.event = asyncio.Event()
        self.why: ErrorCode | None = None
        self.has_begun = False
        self.task: asyncio.Task[None] | None = None

    def end(self, why: ErrorCode) -> None:
        """Cancel its task, if it has begun; else it ends as soon as it does."""
        self.why = self.why or why
        if self.has_begun and self.task is not None:
            self.task.cancel()


class Watches:
    """The watches of all connections.

    Args:
        states: tells what is new of states; None where there are none.
        values: counters and gauges by name.
    """

    def __init__(self, states: States | None, values: Callable[[], Mapping[str, int]]) -> None:
        self._states = states
        self._values = values
        self._of_clients = dict[StateClient, dict[int, _Watching]]()
        self._n_of_tenants = Counter[str]()
        self._turns = RoundRobin()

    @property
    def n_open(self) -> int:
        """How many there are."""
        return self._n_of_tenants.total()

    def open(self, client: StateClient, message: wire.Watch) -> None:
        """Begin a watch, or refuse it."""
        try:
            _check(message)
            if len(self._of_clients.get(client, {})) >= WATCHES_PER_CONNECTION:
                raise QueueFullError(WATCHES_PER_CONNECTION, "watches of a connection")
            if self._n_of_tenants[client.tenant] >= WATCHES_PER_TENANT:
                raise QueueFullError(WATCHES_PER_TENANT, "watches of a tenant")
        except (InvalidParameterError, QueueFullError) as error:
            client.send([refusal(message.request_id, error)])
            return
        one = _Watching(client, message)
        if message.wants_states and self._states is not None:
            one.source = self._states.watch(client.tenant, message.prefix, one.event.set)
        self._n_of_tenants[one.tenant] += 1
        self._of_clients.setdefault(client, {})[one.request_id] = one
        one.task = asyncio.get_running_loop().create_task(self._run(one))

    def grant(self, client: StateClient, request_id: int, n_messages: int) -> None:
        """Let a watch send more messages, if it is one that counts them."""
        one = self._of_clients.get(client, {}).get(request_id)
        if one is not None and one.credit is not None:
            one.credit += n_messages
            one.event.set()

    def cancel(self, client: StateClient, request_id: int) -> bool:
        """End a watch. Its answer follows. False if it is none."""
        one = self._of_clients.get(client, {}).get(request_id)
        if one is not None:
            one.end(ErrorCode.CANCELLED)
        return one is not None

    def lost(self, client: StateClient) -> None:
        """End all watches of a connection that is gone, or that is to be once no lane is open."""
        for one in self._of_clients.get(client, {}).values():
            one.end(ErrorCode.DRAINING)

    async def close(self) -> None:
        """End all of them, since the server goes away."""
        tasks = list[asyncio.Task[None]]()
        for of_client in self._of_clients.values():
            for one in of_client.values():
                one.end(ErrorCode.DRAINING)
                if one.task is not None:
                    tasks.append(one.task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, one: _Watching) -> None:
        """Where a watch ends, however it does: one answer, and its place is free."""
        one.has_begun = True
        answer: wire.ServerMessage
        try:
            if one.why is not None:
                raise asyncio.CancelledError
            await self._tell(one)
        except asyncio.CancelledError:
            why = one.why or ErrorCode.DRAINING
            answer = failure(one.request_id, why, ENDS[why])
        except Exception as error:  # noqa: BLE001  (refusal() logs what was not raised on purpose)
            answer = refusal(one.request_id, error)
        finally:
            self._forget(one)
        one.client.send([answer])

    def _forget(self, one: _Watching) -> None:
        if one.source is not None:
            one.source.close()
        of_client = self._of_clients[one.client]
        del of_client[one.request_id]
        if not of_client:
            del self._of_clients[one.client]
        self._n_of_tenants[one.tenant] -= 1
        if not self._n_of_tenants[one.tenant]:
            del self._n_of_tenants[one.tenant]

    async def _tell(self, one: _Watching) -> NoReturn:
        """Send what is new, for ever."""
        loop = asyncio.get_running_loop()
        source, send = one.source, one.client.send
        while True:
            one.event.clear()
            now = loop.time()
            if one.credit == 0:
                await one.event.wait()
            elif one.client.is_behind:
                await asyncio.sleep(BEHIND_S)
            elif one.stats_at is not None and one.stats_at <= now:
                send([self._stats_of(one)])
                one.stats_at = now + one.stats_s
            elif one.parts is not None:
                async with self._turns.turn(one.tenant):
                    self._send_part(one, one.parts)
            elif source is not None and source.has_news and one.states_at <= now:
                async with self._turns.turn(one.tenant):
                    news = await source.next(STATES_AT_ONCE)
                one.parts = parts_of(one.request_id, news, one.client.max_frame_bytes)
            else:
                await self._until_due(one, now)

    def _send_part(self, one: _Watching, parts: Iterator[wire.StateChanges]) -> None:
        """Send the next part of what was looked at."""
        part = next(parts, None)
        if part is not None:
            one.client.send([part])
            if one.credit is not None:
                one.credit -= 1
            return
        one.parts = None
        if one.source is not None and not one.source.is_in_picture:
            one.states_at = asyncio.get_running_loop().time() + one.interval_s

    async def _until_due(self, one: _Watching, now: float) -> None:
        """Wait until there may be something to tell."""
        times = list[float]()
        if one.stats_at is not None:
            times.append(one.stats_at)
        if one.source is not None:
            if one.source.has_news:
                times.append(one.states_at)
            elif (expires_in_s := one.source.expires_in_s) is not None:
                times.append(now + expires_in_s)
        timer = None
        if times:
            loop = asyncio.get_running_loop()
            timer = loop.call_at(min(times), one.event.set)
        try:
            await one.event.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _stats_of(self, one: _Watching) -> wire.StatsChanges:
        if one.credit is not None:
            one.credit -= 1
        values, last = dict(self._values()), one.last_values
        one.last_values = values
        changed = {name: value for name, value in values.items() if last.get(name) != value}
        return wire.StatsChanges(one.request_id, round(time.monotonic() * 1e6), changed)


def parts_of(request_id: int, news: StateNews, max_bytes: int) -> Iterator[wire.StateChanges]:
    """What is told of some states at once, in messages that fit, each made when it is asked for."""
    names = [news.gone[at : at + NAMES] for at in range(0, len(news.gone), NAMES)] or [()]
    waiting: wire.StateChanges | None = None
    for group, gone in zip_longest(_groups(news, max_bytes - ROOM), names):
        if waiting is not None:
            yield waiting
        restarts = news.restarts and waiting is None
        states, used_s = group or ((), b"")
        waiting = wire.StateChanges(request_id, restarts, False, states, used_s, gone or ())
    assert waiting is not None, "there is one group of names at least"
    yield msgspec.structs.replace(waiting, is_complete=news.is_complete)


def _groups(news: StateNews, n_bytes: int) -> Iterator[tuple[tuple[wire.StateInfo, ...], bytes]]:
    """States that go with each other into one message, and when they were used."""
    for at in range(0, len(news.states), STATES_PER_MESSAGE):
        infos = tuple(map(info_message, news.states[at : at + STATES_PER_MESSAGE]))
        used = [
            0 if one is None else min(max(round(one), 0), MAX_SECONDS)
            for one in news.used_at[at : at + STATES_PER_MESSAGE]
        ]
        waiting = [(infos, used)]
        while waiting:
            some, at_s = waiting.pop()
            if len(some) > 1 and len(msgspec.msgpack.encode(some)) + 8 * len(some) > n_bytes:
                half = len(some) // 2
                waiting += [(some[half:], at_s[half:]), (some[:half], at_s[:half])]
            else:
                yield some, pack_ids(at_s)


def _check(message: wire.Watch) -> None:
    """Check that a watch asks for something that can be had.

    Raises:
        InvalidParameterError: it does not.
    """
    least, most = INTERVALS_MS
    if not least <= message.interval_ms <= most:
        raise InvalidParameterError("interval_ms", f"{least} to {most:,}")
    least, most = STATS_INTERVALS_MS
    if message.stats_ms and not least <= message.stats_ms <= most:
        raise InvalidParameterError("stats_ms", f"0, or {least} to {most:,}")
    if not message.wants_states and not message.stats_ms:
        raise InvalidParameterError("wants_states", "there would be nothing to tell")
