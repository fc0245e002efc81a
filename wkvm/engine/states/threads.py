"""Threads for what may wait for a disk or passes over many bytes: the loop's thread must not."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

N_READERS = 4
N_WRITERS = 4
"""Several wait for the disk at once; the catalogue takes one at a time."""


class Threads:
    """Two lots of threads, so that what is read need not wait behind what is written."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(N_READERS, thread_name_prefix="wkvm-load")
        self._writers = ThreadPoolExecutor(N_WRITERS, thread_name_prefix="wkvm-commit")

    async def read(self, call: Callable[[], T]) -> T:
        """Run what only looks. If the caller is cancelled, what came of it is dropped."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def write(self, call: Callable[[], T]) -> T:
        """Run what changes something. It is done in whole even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, call)

    def close(self) -> None:
        """Wait for what runs, and end the threads. What has not begun is dropped."""
        self._readers.shutdown(cancel_futures=True)
        self._writers.shutdown()
