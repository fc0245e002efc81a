"""What must not happen while a server is treated badly, and how it feels meanwhile."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import psutil
from wkvm_client import aio

from tests.fakes import fake_continuation
from tests.gateway.harness import Running

MIB = 2**20
SAMPLE_S = 0.002
PROMPT = [5, 6, 7]


class Errors(logging.Handler):
    """Keeps what was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.lines.append(logging.Formatter().format(record))


@dataclass
class Health:
    """What was seen of a server, in the process that it runs in.

    Attributes:
        lags_s: how late the event loop was, each time.
        sizes: the memory of the process in bytes, by how many frames or requests had come.
        n_controls: answers of the control client that were compared.
    """

    errors: Errors
    lags_s: list[float] = field(default_factory=list[float])
    sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    n_controls: int = 0

    def note_size(self, n: int) -> None:
        """Remember how much memory there is after so many frames."""
        self.sizes.append((n, psutil.Process().memory_info().rss))

    @property
    def lag_p99_ms(self) -> float:
        """How late the event loop was at most, but for one time in a hundred."""
        return round(1000 * sorted(self.lags_s)[len(self.lags_s) * 99 // 100], 1)

    @property
    def slope(self) -> float:
        """Growth in bytes for each frame, by least squares, without the first fifth."""
        sizes = self.sizes[len(self.sizes) // 5 :]
        n = len(sizes)
        mean_x = sum(x for x, _ in sizes) / n
        mean_y = sum(y for _, y in sizes) / n
        spread = sum((x - mean_x) ** 2 for x, _ in sizes)
        return sum((x - mean_x) * (y - mean_y) for x, y in sizes) / spread if spread else 0.0

    @property
    def growth(self) -> int:
        """By how many bytes the process has grown since the first fifth."""
        sizes = self.sizes[len(self.sizes) // 5 :]
        return max(y for _, y in sizes) - sizes[0][1]


@contextlib.asynccontextmanager
async def watched(running: Running) -> AsyncIterator[Health]:
    """Watch a server for the length of the block, and ask it the same thing all the time.

    Raises:
        AssertionError: a control client was answered otherwise than the model says, something was
            logged as an error, or something was left over.
    """
    loop, handler = asyncio.get_running_loop(), Errors()
    health = Health(handler)
    wanted = fake_continuation(PROMPT, 9, 256)
    failed = list[str]()

    async def sample() -> None:
        while True:
            began = loop.time()
            await asyncio.sleep(SAMPLE_S)
            health.lags_s.append(max(0.0, loop.time() - began - SAMPLE_S))

    async def control(client: aio.Client) -> None:
        while True:
            stream = await client.generate(PROMPT, temperature=0, max_tokens=9)
            ids = (await stream.completion()).ids
            if ids != wanted:
                failed.append(f"the control client got {ids}")
            health.n_controls += 1
            await asyncio.sleep(0.05)

    loop.set_exception_handler(lambda _, context: failed.append(str(context)))
    logging.getLogger().addHandler(handler)
    try:
        async with aio.over(running.server.attach) as client:
            tasks = [asyncio.create_task(sample()), asyncio.create_task(control(client))]
            n_connections = running.server.n_connections
            yield health
            while not (health.n_controls or any(one.done() for one in tasks)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            dead = [one for one in tasks if one.done()]
            for one in tasks:
                one.cancel()
            await asyncio.wait(tasks)
            for one in dead:
                one.result()
            async with asyncio.timeout(60):
                while (  # noqa: ASYNC110  (nothing announces it)
                    running.server.n_requests
                    or running.server.n_operations
                    or running.server.n_connections > n_connections
                ):
                    await asyncio.sleep(0.005)
            stats = await client.stats()
            assert stats["n_free_slots"] == stats["n_slots"], stats
            assert (stats["n_queued"], stats["n_running"]) == (0, 0), stats
    finally:
        logging.getLogger().removeHandler(handler)
        loop.set_exception_handler(None)
    gc.collect()
    assert failed == []
    assert handler.lines == []
    assert health.n_controls > 0
