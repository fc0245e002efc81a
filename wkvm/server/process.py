"""What every process that serves has to do with the system: signals, and its limit of files."""

import asyncio
import os
import resource
import signal
from collections.abc import Awaitable, Generator
from contextlib import contextmanager

SPARE_FILES = 256
"""Files that are no connections: the model's, the standard streams, the loop's own, states."""


class Signals:
    """Counts the signals that ask this process to end."""

    def __init__(self) -> None:
        self._n = 0
        self._changed = asyncio.Event()
        self._caught = list[signal.Signals]()

    def catch(self) -> None:
        """From now on the signals end nothing by themselves."""
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(one, self._count)
            self._caught.append(one)

    @contextmanager
    def held(self) -> Generator[None]:
        """Let what ends the process go on while signals come; then they mean the usual again."""
        try:
            yield
        finally:
            for one in self._caught:
                asyncio.get_running_loop().remove_signal_handler(one)
            self._caught.clear()

    async def wait(self, n: int) -> None:
        """Return when ``n`` signals have come."""
        while self._n < n:
            self._changed.clear()
            await self._changed.wait()

    def _count(self) -> None:
        self._n += 1
        self._changed.set()


async def first(*awaitables: Awaitable[None]) -> None:
    """Wait for one of several; cancel the others, but leave tasks that were tasks before alone.

    Raises:
        Exception: what the first of the others raised.
    """
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ours = [task for task, one in zip(tasks, awaitables, strict=True) if task is not one]
        finished = [task for task in ours if task.done()]
        for task in ours:
            task.cancel()
        await asyncio.wait(ours)
    for task in finished:
        task.result()


def raise_file_limit(n_connections: int) -> None:
    """Let this process have as many files open as it may need, within what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n_connections + 2 * SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_short_of_files() -> bool:
    """Whether so many files are open that what is left is for others than connections.

    States are kept in files: whoever opens connections alone, without a key even, must not take
    their place. Cost: two microseconds.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return False
    try:
        # Each new file gets the lowest number that is free.
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(lowest)
    return lowest >= limit - min(SPARE_FILES, limit // 8)
