"""Turns for work that can wait, so that all of it together leaves the loop to others."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

REST = 1.0
"""For how long nobody has a turn after one, in what the loop's thread has worked during that."""
LEAST_REST_S = 0.002
"""Shorter rests are saved up: a loop's timers are no finer than that."""


class RoundRobin:
    """One at a time has a turn, tenant after tenant, and then nobody for as long as it took.

    So however many wait, they take half of the loop's time at most, and who is alone of a tenant
    waits for one turn of each other tenant. All methods belong to the loop's thread.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, in the order of their turns."""
        self._is_taken = False
        self._rest_s = 0.0

    @property
    def n_waiting(self) -> int:
        """How many wait for a turn."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None]:
        """Wait for a turn, and have it for the length of the block."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            await self._queued(tenant)
        self._is_taken = True
        # Of this thread alone: while a turn waits for another one, a loop without work is no loss.
        began = time.thread_time()
        try:
            yield
        finally:
            self._rest_s += REST * (time.thread_time() - began)
            if self._rest_s < LEAST_REST_S:
                loop.call_soon(self._next)
            else:
                loop.call_later(self._rest_s, self._next)
                self._rest_s = 0.0

    async def _queued(self, tenant: str) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            of_tenant = self._waiting.get(tenant, deque[asyncio.Future[None]]())
            if future in of_tenant:
                of_tenant.remove(future)
                if not of_tenant:
                    del self._waiting[tenant]
            elif not future.cancelled():
                self._next()
            raise

    def _next(self) -> None:
        """The next tenant's first has its turn."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            of_tenant = self._waiting.pop(tenant)
            future = of_tenant.popleft()
            if not future.done():
                if of_tenant:
                    self._waiting[tenant] = of_tenant
                future.set_result(None)
                return
            # Its task is cancelled, and has not heard of it yet. The tenant stays the first.
            if of_tenant:
                others = self._waiting
                self._waiting = {tenant: of_tenant}
                self._waiting.update(others)
        self._is_taken = False
