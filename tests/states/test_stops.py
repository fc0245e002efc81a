"""Servers are told to end while 32 sessions generate: what they have said is there afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from wkvm_client import aio
from wkvm_client.errors import ClientError

from tests.soak import amount, seed, tell
from tests.states.binary_door import BinaryDoor
from tests.states.doors import Door, Gone
from tests.states.kills import Trial
from tests.states.nursery import Ask, Nursery, Started


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Door]:
    connecting = aio.connect(address, reconnect=False)
    try:
        client = await connecting
    except ClientError as error:
        raise Gone from error
    async with client:
        yield BinaryDoor(client)


async def run_and_stop(trial: Trial, server: Started, rng: random.Random) -> int:
    """Have the sessions go on, and tell the server to end at a random moment; its exit status."""
    stopping = asyncio.Event()
    working = asyncio.create_task(trial.work(partial(connected, server.address), stopping))
    wanted = trial.book.n_acked + rng.choice([0, 1, 10, 30])
    while trial.book.n_acked < wanted and not working.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(rng.random() * 0.02)
    if working.done():
        working.result()
        raise AssertionError("all sessions ended")
    stopping.set()
    status = await asyncio.to_thread(server.end)
    await working
    return status


async def test_a_server_that_is_told_to_end_keeps_all_that_it_has_acknowledged(
    tmp_path: Path,
) -> None:
    """Durable or visible: before it ends, what is in memory alone goes to the disk."""
    n_stops, rng = amount(8, 50), random.Random(seed())
    trial = Trial(seed())
    ask = Ask(
        uds=str(tmp_path / "wkvm.sock"),
        folder=str(tmp_path / "store"),
        engine={"n_slots": 16, "max_num_batched_tokens": 128},
    )
    with Nursery() as nursery:
        server = nursery.start(ask)
        for at in range(n_stops):
            assert await run_and_stop(trial, server, rng) == 0
            trial.book.stopped_in_order()
            server = nursery.start(ask)
            connect = partial(connected, server.address)
            await trial.check(connect, all_versions=at == n_stops - 1)
        server.kill()
    assert trial.account.is_clean, trial.account
    assert trial.book.n_acked > 5 * n_stops
    tell(
        9,
        "SIGTERM at random moments",
        n_stops,
        "stops",
        acks=trial.book.n_acked,
        resumed=trial.account.n_resumed,
        refused=trial.n_refused,
        unanswered=trial.account.n_doubtful.total(),
    )
