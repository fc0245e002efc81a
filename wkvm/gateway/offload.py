"""Work with text that takes long, kept off the event loop."""

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG_TEXT = 16 * 1024
"""Bytes or characters from which on work is for a thread: beyond this it takes milliseconds."""

N_THREADS = 2
"""They share one interpreter with the event loop: more would do no more work, but slow it down."""

TRIM_TEXT = 256 * 1024
"""Of a text of so many what was needed on the way is given back to the system. A tokenizer takes
a hundred bytes for each of it, and what it frees the allocator would keep for this thread."""

ResultT = TypeVar("ResultT")


def _trim_function() -> Callable[[int], int]:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda _: 0  # only glibc has it, and keeps what was freed
    return trim


_trim = _trim_function()


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

        def work_and_trim() -> ResultT:
            try:
                return work()
            finally:
                if size >= TRIM_TEXT:
                    _trim(0)

        return await asyncio.get_running_loop().run_in_executor(self._pool, work_and_trim)
