"""Work on texts that takes long, away from the event loop."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

SMALL = 2048
"""Characters or ids that are worked on at once: some milliseconds at most."""
MAX_THREADS = 2
"""Things that are worked on at once: more threads would only take the loop's turns."""

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class LongWork:
    """Runs functions so that the loop goes on meanwhile."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(MAX_THREADS)

    async def run(
        self, size: int, function: Callable[P, ResultT], *args: P.args, **keywords: P.kwargs
    ) -> ResultT:
        """Call a function, in a thread if it takes long; there, the first to come go first.

        Args:
            size: characters or ids that it works on.
            function: must be safe to be called in a thread.

        Raises:
            Exception: what the function raises.
        """
        if size <= SMALL:
            return function(*args, **keywords)
        async with self._turns:
            return await asyncio.to_thread(function, *args, **keywords)
