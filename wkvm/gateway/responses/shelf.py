"""What a gateway has of responses: where they are kept, and those that are being made here."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Protocol

from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.failures import HttpError
from wkvm.gateway.responses import records
from wkvm.gateway.responses.database import Database
from wkvm.gateway.responses.feed import Feed
from wkvm.gateway.responses.resource import Resource
from wkvm.gateway.responses.room import Limits
from wkvm.gateway.states.keeping import Unwatched

CANCEL_INTERVAL_S = 0.5
"""How often it is looked whether another process was asked to cancel what is made here."""


class Made(Protocol):
    """A response that is being made.

    Attributes:
        resource: it, as it is now.
    """

    resource: Resource

    def cancel(self) -> None:
        """End it."""


class Shelf:
    """Responses of all tenants. Belongs to one event loop.

    Attributes:
        database: of what is kept.
        limits: on what one tenant may keep.
        feeds: of background responses that are being made, by id.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.database = Database(config.responses_dir)
        self.limits = Limits(
            n_responses=config.max_responses,
            n_bytes=config.max_responses_bytes,
            ttl_s=config.response_ttl_s,
        )
        self.feeds: dict[str, Feed] = {}
        self._is_shared = config.responses_dir is not None
        self._made: dict[str, Made] = {}
        self._work = Unwatched()
        self._watch: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many are being made."""
        return len(self._made)

    async def open(self) -> None:
        """Find out whether what is kept can be used; where nothing is, that is left for later.

        Raises:
            SettingError: it cannot.
        """
        if self._is_shared:
            await self.database.open()

    def begin(self, response_id: str, made: Made) -> None:
        """A response is being made from now on."""
        self._made[response_id] = made
        self.database.making.add(response_id)
        if self._is_shared and self._watch is None:
            self._watch = asyncio.create_task(self._cancel_for_others())

    def end(self, response_id: str) -> None:
        """It is over, and was kept if it could be."""
        self._made.pop(response_id, None)
        self.database.making.discard(response_id)

    def cancel(self, response_id: str) -> bool:
        """End a response. False if it is not made here."""
        made = self._made.get(response_id)
        if made is None:
            return False
        made.cancel()
        return True

    def now(self, response_id: str) -> Resource | None:
        """A response that is made here, as it is now."""
        made = self._made.get(response_id)
        return None if made is None else made.resource

    def add(self, work: Coroutine[None, None, None]) -> None:
        """Let something go on by itself."""
        self._work.add(work)

    async def over(self) -> None:
        """Wait until nothing goes on by itself."""
        await self._work.ended()

    async def aclose(self, timeout_s: float) -> None:
        """Close what is kept, after what goes on by itself. The engine should be gone before.

        Args:
            timeout_s: how long that may take.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._work.ended()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self.database.aclose()

    async def _cancel_for_others(self) -> None:
        """Cancel what others were asked to cancel, as long as anything is made."""
        while self._made:
            await asyncio.sleep(CANCEL_INTERVAL_S)
            with contextlib.suppress(HttpError):  # whoever asks for more will be told
                for response_id in await self.database.run(records.asked_to_cancel):
                    self.cancel(response_id)
        self._watch = None
