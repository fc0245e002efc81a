"""Whether the store would take a durable version now, looked at once a second in a thread.

The loop's thread never waits for a disk; so what it tells is what was found last, and a disk that
has not answered for a while counts as one that fails.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from wkvm.state.condition import Refusal

logger = logging.getLogger("wkvm.states")

INTERVAL_S = 1.0
"""Between an answer and the next question."""
CLOSE_TIMEOUT_S = 5.0
"""How long a question may still take at the end."""
SILENT_S = 3.0
"""A question that is not answered for longer is taken for a refusal."""


class DiskWatch:
    """Asks, for as long as it is not closed. Made on the loop's thread.

    Args:
        ask: waits for the disk; called in a thread.
        clock: seconds, monotonic.
    """

    def __init__(
        self, ask: Callable[[], Refusal], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._found = Refusal.NONE
        self._asked_at: float | None = None
        self._asking: asyncio.Future[Refusal] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wkvm-disk")
        self._task = asyncio.get_running_loop().create_task(self._look(), name="disk")

    @property
    def refusal(self) -> Refusal:
        """Why the store takes no durable version."""
        if self._asked_at is not None and self._clock() - self._asked_at > SILENT_S:
            return Refusal.FAILED
        return self._found

    async def close(self) -> None:
        """Ask no more. Does not wait long for a disk that does not answer."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._asking is not None:
            # It must not come to the store's folders when these are closed.
            await asyncio.wait([self._asking], timeout=CLOSE_TIMEOUT_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._asked_at = self._clock()
            try:
                self._asking = loop.run_in_executor(self._thread, self._ask)
                found = await asyncio.shield(self._asking)
            except Exception:
                logger.exception("the store could not be asked whether it takes versions")
                found = Refusal.FAILED
            self._asked_at = None
            if found is not self._found:
                if found is Refusal.NONE:
                    logger.warning("the store takes durable versions again")
                else:
                    logger.error("the store takes no durable versions: %s", found.name.lower())
            self._found = found
            await asyncio.sleep(INTERVAL_S)
