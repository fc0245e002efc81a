"""What keeps ``wkvm top`` up to date: a watch, or, of servers that have none, questions."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from wkvm_client.aio import Client
from wkvm_client.states import StateInfo
from wkvm_client.watching import News, StateNews, StatsNews

POLL_S = 2.0
"""How often a server is asked that does not tell by itself."""
PAGE = 256
"""States that one answer has, as many as it may."""
MAX_ASKED = 10_000
"""States that are asked for one page after the other; more only a watch shows."""


async def news_of(client: Client, prefix: str, interval_s: float) -> AsyncGenerator[News, None]:
    """What there is, and what changes, for ever.

    Raises:
        ClientError: the connection is lost, or the server goes away.
    """
    if "watch" in client.server.features:
        told = client.watch(
            prefix=prefix, interval_s=max(interval_s, 0.2), stats_interval_s=interval_s
        )
        async with aclosing(told):
            async for news in told:
                yield news
        return
    while True:
        yield StatsNews(at_s=time.monotonic(), values=await client.stats())
        if "states" in client.server.features:
            states, is_complete = await _all(client, prefix)
            yield StateNews(
                states=states, used_at={}, gone=(), restarts=True, is_complete=is_complete
            )
        await asyncio.sleep(max(interval_s, POLL_S))


async def _all(client: Client, prefix: str) -> tuple[tuple[StateInfo, ...], bool]:
    """States by name, and whether they are all that there are."""
    found, cursor = list[StateInfo](), ""
    while len(found) < MAX_ASKED:
        page = await client.states.list(prefix, cursor=cursor, limit=PAGE)
        found += page.states
        cursor = page.next
        if not cursor:
            break
    return tuple(found), not cursor
