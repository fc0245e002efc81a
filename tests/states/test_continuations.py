"""A continuation is the uninterrupted run, id for id, through restarts and between servers."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import aio
from wkvm_client.errors import ClientError

from tests.hash_model import HashLog
from tests.states.binary_door import BinaryDoor
from tests.states.nursery import Ask, Nursery

PROMPT = [3, 1, 4, 1, 5]
SAMPLED: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 0.95,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
    "penalty_decay": 0.97,
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


def ask_for(folder: Path, name: str = "one", model: str = "hash") -> Ask:
    has_guest = model == "pages"
    pool = {"guest_tokens": 2**20} if has_guest else {}
    return Ask(
        uds=str(folder / f"{name}.sock"),
        folder=str(folder / name),
        model="hash" if has_guest else model,
        has_guest=has_guest,
        engine={"n_slots": 4, "deterministic": True, **pool},
    )


@pytest.mark.parametrize("model", ["hash", "pages", "bundled"])
async def test_sampled_turns_with_a_kill_between_them_are_the_uninterrupted_run(
    nursery: Nursery, tmp_path: Path, model: str
) -> None:
    ask, rng = ask_for(tmp_path, model=model), random.Random(1)
    server = nursery.start(ask)
    async with aio.connect(server.address) as client:
        whole = await BinaryDoor(client).generate(PROMPT, 40, seed=7, ignore_eos=True, **SAMPLED)
    ids = list[int]()
    while len(ids) < 40:
        n = min(rng.randint(1, 15), 40 - len(ids))
        how: dict[str, Any] = {"state": "s"} if ids else {"seed": 7}
        async with aio.connect(server.address) as client:
            turn = await BinaryDoor(client).generate(
                [] if ids else PROMPT, n, save_as="s", ignore_eos=True, **SAMPLED, **how
            )
        ids += turn.ids
        server.kill()
        server = nursery.start(ask)
    assert ids == whole.ids
    server.kill()


@pytest.mark.parametrize("model", ["hash", "pages"])
async def test_a_stream_that_moves_again_and_again_loses_and_repeats_no_id(
    nursery: Nursery, tmp_path: Path, model: str
) -> None:
    servers = [nursery.start(ask_for(tmp_path, name, model)) for name in ("one", "two")]
    async with (
        aio.connect(servers[0].address) as one,
        aio.connect(servers[1].address) as two,
    ):
        clients, ids = [one, two], list[int]()
        stream = await one.generate(
            PROMPT, max_tokens=10**6 - 10**5, temperature=0.0, save_as="moving-0", credit=64
        )
        reading = asyncio.create_task(_collect(stream, ids))
        for at in range(30):
            n = len(ids)
            while len(ids) < n + 1 + at % 5:
                assert not reading.done()
                await asyncio.sleep(0.0005)
            source, target = clients[at % 2], clients[(at + 1) % 2]
            there = servers[(at + 1) % 2].address
            names = f"moving-{at}", f"moving-{at + 1}"
            await aio.migrate(source.states, names[0], target.states, there, name=names[1])
        # One of this test's, and one that followed the stream; others may be ending still.
        async with asyncio.timeout(60):
            for client in clients:
                while (await client.stats())["n_connections"] > 2:
                    pass
        stream.cancel()
        await reading
        assert ids == HashLog(PROMPT).generate(len(ids))
    for server in servers:
        server.kill()


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.006, 0.01])
async def test_a_move_whose_target_is_killed_leaves_the_stream_where_it_is_or_whole_there(
    nursery: Nursery, tmp_path: Path, delay_s: float
) -> None:
    one = nursery.start(ask_for(tmp_path, "one"))
    two = nursery.start(ask_for(tmp_path, "two"))
    async with (
        aio.connect(one.address) as source,
        aio.connect(two.address, reconnect=False) as target,
    ):
        ids = list[int]()
        stream = await source.generate(
            PROMPT, max_tokens=400, temperature=0.0, save_as="moving", credit=16
        )
        reading = asyncio.create_task(_collect(stream, ids))
        while len(ids) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        moving = asyncio.create_task(
            aio.migrate(source.states, "moving", target.states, two.address, timeout_s=0.5)
        )
        await asyncio.sleep(delay_s)
        two.kill()
        with contextlib.suppress(ClientError):
            await moving
        # Where the target had committed, it has the stream: with the target back, it goes on there.
        two = nursery.start(ask_for(tmp_path, "two"))
        with contextlib.suppress(ClientError):
            await reading
        assert ids == HashLog(PROMPT).generate(len(ids))
        assert len(ids) == 400 or moving.exception() is None
    one.kill()
    two.kill()


async def _collect(stream: aio.Stream, ids: list[int]) -> None:
    while some := await stream.read():
        ids += some
