"""Work with text that takes long, kept off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG_TEXT = 16 * 1024
"""Bytes or characters from which on work is for a thread: beyond this it takes milliseconds."""

N_THREADS = 2
"""They share one interpreter with the event loop: more would do no more work, but slow it down."""

ResultT = TypeVar("ResultT")


class Offload:
    """A few threads. Those that wait for one are as many as there are requests; none is lost."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(N_THREADS, thread_name_prefix="wkvm-text")

    async def run(self, work: Callable[[], ResultT], *, size: int) -> ResultT:
        """Do the work: here and now if it is small, else in a thread.

        Cancelling this drops the work if it has not begun, and its result otherwise.

        Args:
            work: thread-safe.
            size: of its text, in bytes or characters.
        """
        if size < LONG_TEXT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
