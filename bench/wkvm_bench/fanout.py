"""Many lanes of one connection, against one stream of server-sent events from aiohttp.

A null engine gives each lane one id a step, and the server one frame a step for all of them.
Ids count once they lie in their lane's buffer in the client. The peer sends one event an id,
as an OpenAI-style server does, and its client reads each event's number.
"""

import tempfile
import time
from pathlib import Path

import wkvm_client.aio
from aiohttp import ClientSession, UnixConnector
from wkvm_client.aio import Client

from wkvm_bench.harness import Bar, BenchError, Comparison, alternate
from wkvm_bench.servers import SSE_EVENTS_HEADER, running

BAR = Bar(8.0)
N_LANES = 256


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark. ``n_threads`` is not used: each process has one."""
    del n_threads
    n_ids, n_events, n = (3, 50, 1) if smoke else (4000, 40_000, 15)
    with tempfile.TemporaryDirectory() as folder:
        wkvm_path, events_path = Path(folder) / "wkvm.sock", Path(folder) / "events.sock"
        async with (
            running("null", wkvm_path),
            running("events", events_path),
            wkvm_client.aio.connect(f"unix://{wkvm_path}") as client,
            ClientSession(connector=UnixConnector(str(events_path))) as session,
        ):

            async def of_wkvm() -> float:
                return await _lanes(client, n_ids)

            async def of_events() -> float:
                headers = {SSE_EVENTS_HEADER: str(n_events)}
                start, n_read = time.perf_counter(), 0
                async with session.get("http://localhost/", headers=headers) as response:
                    async for line in response.content:
                        if line.startswith(b"data: "):
                            if int(line[6:]) != n_read:
                                raise BenchError("an event got lost")
                            n_read += 1
                rate = n_read / (time.perf_counter() - start)
                if n_read != n_events:
                    raise BenchError(f"{n_read} events of {n_events}")
                return rate

            a, b = await alternate(of_wkvm, of_events, n)
    names = (f"wkvm, {N_LANES} lanes", "aiohttp SSE, one stream")
    return [Comparison(f"{N_LANES} lanes", *names, "ids/s", a, b, BAR)]


async def _lanes(client: Client, n_ids: int) -> float:
    """Ids per second, from the first request until the last lane has all of its ids."""
    start = time.perf_counter()
    streams = [
        await client.generate([lane * 100], max_tokens=n_ids, credit=None)
        for lane in range(N_LANES)
    ]
    completions = [await stream.completion() for stream in streams]
    rate = N_LANES * n_ids / (time.perf_counter() - start)
    for lane, completion in enumerate(completions):
        first = lane * 100 + 1
        if list(completion.ids) != list(range(first, first + n_ids)):
            raise BenchError(f"lane {lane} has other ids than were sent to it")
    return rate
