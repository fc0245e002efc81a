"""On a GPU: a server is killed, or stands still; nothing is lost, and its memory is free again."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from wkvm_client import aio

from tests.soak import amount, seed, tell
from tests.states.nursery import Nursery
from tests.states.test_kills_bundled import ask_for, play_through_kills

pytestmark = pytest.mark.gpu

IDLE_WITHIN_S = 10
A_LITTLE = 64 * 2**20


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


async def test_sessions_through_kills_end_with_the_bits_of_undisturbed_ones(
    nursery: Nursery, tmp_path: Path
) -> None:
    n_kills = await play_through_kills(
        nursery, tmp_path, n_most=amount(2, 7), seed=seed(5), device="cuda"
    )
    tell(13, "kill -9 of a server on a GPU", n_kills, "kills")


async def test_the_memory_of_a_server_that_was_killed_is_free_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    before, _ = torch.cuda.mem_get_info()
    server = nursery.start(ask_for(tmp_path, "killed", "cuda"))
    assert torch.cuda.mem_get_info()[0] < before - A_LITTLE
    server.kill()
    began = time.monotonic()
    while torch.cuda.mem_get_info()[0] < before - A_LITTLE:
        assert time.monotonic() - began < IDLE_WITHIN_S
        await asyncio.sleep(0.05)
    tell(13, "memory after a kill", 1, "kills", free_after_s=round(time.monotonic() - began, 2))


async def test_a_server_that_stood_still_goes_on_with_the_same_ids(
    nursery: Nursery, tmp_path: Path
) -> None:
    server = nursery.start(ask_for(tmp_path, "stopped", "cuda"))
    async with aio.connect(server.address, reconnect=False) as client:

        async def ids(n: int) -> list[int]:
            stream = await client.generate([9, 8, 7], max_tokens=n, temperature=0, ignore_eos=True)
            return list((await stream.completion()).ids)

        alone = await ids(400)
        running = [asyncio.create_task(ids(400)) for _ in range(8)]
        await asyncio.sleep(0.05)
        os.kill(server.pid, signal.SIGSTOP)
        late = asyncio.create_task(ids(400))
        await asyncio.sleep(3)
        assert not late.done()
        os.kill(server.pid, signal.SIGCONT)
        assert [await one for one in (*running, late)] == [alone] * 9
    assert server.end() == 0
    tell(13, "a server that stood still for 3 s", 9, "requests")
