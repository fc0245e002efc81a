"""The load over the binary protocol, against a server that does what a test says."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wkvm_bench.figures import Streamed
from wkvm_bench.harness import BenchError
from wkvm_bench.load_binary import connected
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Cancel, EndReason, Generate, unpack_ids

from tests.client.fake_server import FakeServer, Peer

Script = Callable[[Peer, Generate], Coroutine[Any, Any, None]]


@asynccontextmanager
async def answered(folder: Path, script: Script, *, timeout_s: float = 60.0) -> AsyncIterator[Any]:
    """A source whose server answers one request by ``script``."""
    server = FakeServer(f"unix://{folder}/s.sock")
    await server.start()

    async def play() -> None:
        peer = await server.peer()
        await peer.hello()
        await script(peer, await peer.next(Generate))

    playing = asyncio.create_task(play())
    async with connected(
        server.address,
        n_connections=1,
        api_key=None,
        temperature=0.5,
        top_p=0.25,
        timeout_s=timeout_s,
    ) as source:
        yield source
    await playing
    await server.close()


async def one(folder: Path, script: Script, n_out: int = 3, timeout_s: float = 60.0) -> Streamed:
    async with answered(folder, script, timeout_s=timeout_s) as source:
        result: Streamed = await source.stream([7, 8], n_out)
        return result


async def test_each_id_has_its_time(tmp_path: Path) -> None:
    asked, sent = list[Generate](), list[float]()

    async def script(peer: Peer, request: Generate) -> None:
        asked.append(request)
        sent.append(time.perf_counter())
        peer.tokens([request.request_id], [1])
        await peer.writer.drain()
        await asyncio.sleep(0.03)
        sent.append(time.perf_counter())
        peer.tokens([request.request_id], [2, 3], counts=[2])
        peer.end(request.request_id, n_output=3)

    result = await one(tmp_path, script)
    assert (result.error, result.n_ids, result.n_prompt) == (None, 3, 3)
    first, second, third = result.arrivals
    assert result.due_at < first < second == third <= result.ended_at
    assert sent[0] <= first
    assert sent[1] <= second
    (request,) = asked
    sampling = request.sampling
    assert list(unpack_ids(request.prompt)) == [7, 8]
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.25, 3)
    assert (sampling.ignore_eos, request.credit) == (True, 0)


async def test_what_goes_wrong_is_named(tmp_path: Path) -> None:
    async def refuse(peer: Peer, request: Generate) -> None:
        peer.fail(request.request_id, ErrorCode.QUEUE_FULL)

    async def refuse_field(peer: Peer, request: Generate) -> None:
        peer.fail(request.request_id, ErrorCode.INVALID_PARAMETER, "top_p")

    async def time_out(peer: Peer, request: Generate) -> None:
        peer.tokens([request.request_id], [1])
        peer.end(request.request_id, n_output=1, reason=EndReason.TIMED_OUT)

    async def vanish(peer: Peer, request: Generate) -> None:
        peer.tokens([request.request_id], [1])
        await peer.vanish()

    async def stop_early(peer: Peer, request: Generate) -> None:
        peer.tokens([request.request_id], [1])
        peer.end(request.request_id, n_output=1)

    async def miscount(peer: Peer, request: Generate) -> None:
        peer.tokens([request.request_id], [1])
        peer.end(request.request_id, n_output=3)

    async def stall(peer: Peer, request: Generate) -> None:
        del request
        await peer.next(Cancel)

    scripts = {
        "QueueFullError": refuse,
        "InvalidParameterError (as scripted)": refuse_field,
        "ended: timed_out": time_out,
        "ConnectionLostError": vanish,
        "short output": stop_early,
        "miscounted output": miscount,
        "RequestTimeoutError": stall,
    }
    for number, (name, script) in enumerate(scripts.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        # Only the one that waits for it has a time that others might need on a busy machine.
        timeout_s = 0.2 if script is stall else 60.0
        assert (await one(folder, script, timeout_s=timeout_s)).error == name


async def test_no_server_is_an_error_of_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"none\.sock"):
        async with connected(
            f"unix://{tmp_path}/none.sock",
            n_connections=1,
            api_key=None,
            temperature=1.0,
            top_p=1.0,
            timeout_s=1.0,
        ):
            pass
