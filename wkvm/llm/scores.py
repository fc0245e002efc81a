"""How likely texts are, a bounded number of them at a time."""

import asyncio
from collections.abc import Sequence

from wkvm_client import aio
from wkvm_client.results import Path, TokenLogprobs


async def score_all(
    client: aio.Client, texts: Sequence[Sequence[int]], *, path: Path, n_top: int
) -> list[list[TokenLogprobs]]:
    """Score texts, as many at a time as the server has slots.

    Returns:
        As many results as texts, in their order.

    Raises:
        ClientError: a text failed; the others were cancelled.
    """
    results = [list[TokenLogprobs]() for _ in texts]
    waiting = iter(enumerate(texts))

    async def work() -> None:
        for index, ids in waiting:
            results[index] = await client.score(ids, path=path, n_top=n_top)

    n_open = min(client.server.n_slots, client.server.max_lanes, len(texts))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(n_open):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return results
