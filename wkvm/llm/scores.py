"""How likely texts are, and their embeddings, a bounded number of them at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from wkvm_client import aio
from wkvm_client.results import Path, Pooling, TokenLogprobs

ResultT = TypeVar("ResultT")


async def score_all(
    client: aio.Client, texts: Sequence[Sequence[int]], *, path: Path, n_top: int
) -> list[list[TokenLogprobs]]:
    """Score texts, as many at a time as the server has slots.

    Returns:
        As many results as texts, in their order.

    Raises:
        ClientError: a text failed; the others were cancelled.
    """
    return await _of_each(client, texts, lambda ids: client.score(ids, path=path, n_top=n_top))


async def embed_all(
    client: aio.Client, texts: Sequence[Sequence[int]], *, pooling: Pooling
) -> list[list[float]]:
    """Embed texts, as many at a time as the server has slots.

    Returns:
        As many vectors as texts, in their order.

    Raises:
        ClientError: a text failed; the others were cancelled.
    """
    return await _of_each(client, texts, lambda ids: client.embed(ids, pooling=pooling))


async def _of_each(
    client: aio.Client,
    texts: Sequence[Sequence[int]],
    ask: Callable[[Sequence[int]], Awaitable[ResultT]],
) -> list[ResultT]:
    results = dict[int, ResultT]()
    waiting = iter(enumerate(texts))

    async def work() -> None:
        for index, ids in waiting:
            results[index] = await ask(ids)

    n_open = min(client.server.n_slots, client.server.max_lanes, len(texts))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(n_open):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[index] for index in range(len(texts))]
