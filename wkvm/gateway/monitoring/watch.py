"""What the engine says of itself, for routes that are asked often and must answer soon."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wkvm_client.errors import ClientError, DrainingError, GoingAwayError

from wkvm.gateway.engines import Engines

MAX_AGE_S = 0.2
"""Answers are this old at most. An open route so asks the engine five times a second at most."""
ANSWER_TIMEOUT_S = 1.5


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found out of the engine.

    Attributes:
        is_up: whether it answered at all.
        is_draining: whether it takes no new requests. It then gives no counters either.
        counters: see "Counters" in ``docs/protocol.md``. Which there are is the engine's choice.
    """

    is_up: bool = False
    is_draining: bool = False
    counters: Mapping[str, int] = field(default_factory=dict[str, int])


class EngineWatch:
    """Asks over the gateway's own connection, once for all who wait.

    Args:
        clock: in seconds, monotonic.
    """

    def __init__(self, engines: Engines, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engines = engines
        self._clock = clock
        self._asking: asyncio.Task[Reading] | None = None
        self._asked_at = 0.0

    async def read(self) -> Reading:
        """How the engine is: ``MAX_AGE_S`` ago at most, and within ``ANSWER_TIMEOUT_S``."""
        now = self._clock()
        task = self._asking
        if task is None or (task.done() and now - self._asked_at > MAX_AGE_S):
            self._asked_at = now
            task = self._asking = asyncio.create_task(self._ask())
        # Whoever waits may be given up; the others still want the answer.
        return await asyncio.shield(task)

    async def _ask(self) -> Reading:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                engine = await self._engines.own()
                counters = await engine.stats(timeout_s=None)
        except (DrainingError, GoingAwayError):
            return Reading(is_up=True, is_draining=True)
        except (ClientError, TimeoutError):
            return Reading()
        return Reading(True, bool(counters.get("draining")), counters)
