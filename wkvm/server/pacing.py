"""How bytes that have time are written behind bytes that have none."""

import asyncio
import math
from collections.abc import Callable

SMALLEST_BYTES = 16 * 1024
"""What has time is written in fewer than these only where no more may wait to be sent."""

MAX_PAUSE_S = 0.01


async def room_behind(
    n_unsent: Callable[[], int | None], *, most: int, timeout_s: float
) -> int | None:
    """How many bytes may be written now, once that is one at least.

    Half of what may wait before a connection's lanes pause is left to ids, so that what has time
    neither pauses them nor gets far ahead of them. A transport does not say when it has
    written some: it is asked, at first in each turn of the loop, and then ever less often.

    Args:
        n_unsent: how many bytes wait to be sent; None where none may be added.
        most: how many may wait, with those that are to be written now.
        timeout_s: how long the peer may take nothing.

    Returns:
        None if it has taken nothing for so long.
    """
    loop = asyncio.get_running_loop()
    most = max(most, 1)
    enough = min(SMALLEST_BYTES, most)
    due = loop.time() + timeout_s
    n_before, pause_s = math.inf, 0.0
    while True:
        # what the loop has to do otherwise comes first, and the transport has its turn
        await asyncio.sleep(pause_s)
        n = n_unsent()
        if n is not None and most - n >= enough:
            return most - n
        if n is not None and n < n_before:
            n_before, due = n, loop.time() + timeout_s
        elif loop.time() >= due:
            return None
        pause_s = min(max(2 * pause_s, 0.0005), MAX_PAUSE_S)
