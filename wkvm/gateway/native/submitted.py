"""Requests that nobody waits for: they are read to their ends, and what came of them is kept.

How much is kept has bounds for each tenant: in number, in bytes, in time.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from wkvm_client import Completion, aio
from wkvm_client.errors import ClientError

from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.engines import Whose
from wkvm.gateway.failures import HttpError
from wkvm.gateway.monitoring.spent import Spent
from wkvm.gateway.running import Running

logger = logging.getLogger("wkvm.gateway")

Outcome: TypeAlias = Sequence[Completion] | ClientError
Seal: TypeAlias = Callable[[str, Outcome], bytes]
"""Turns a request's name and what came of it into the bytes that are kept."""


@dataclass(slots=True)
class Submission:
    """One request.

    Attributes:
        stream: while it runs.
        result: once it is over.
    """

    request_id: str
    stream: aio.Stream | None
    result: bytes | None = None
    expiry: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Shelf:
    """What is kept of one tenant. ``finished`` is in the order of their ends."""

    running: dict[str, Submission] = field(default_factory=dict[str, Submission])
    finished: dict[str, Submission] = field(default_factory=dict[str, Submission])
    n_bytes: int = 0

    def drop(self, submission: Submission) -> None:
        """Forget one that is over."""
        del self.finished[submission.request_id]
        self.n_bytes -= len(submission.result or b"")
        if submission.expiry is not None:
            submission.expiry.cancel()

    def drop_oldest(self) -> None:
        """Forget the one that has been over for longest."""
        self.drop(next(iter(self.finished.values())))


class Submitted:
    """The submitted requests of all tenants. A tenant sees its own alone.

    Those that run are cancelled by their names in ``running``. Belongs to one event loop.

    Args:
        owns: whether a tenant's calls about a name come to this process.
        spend: told how many tokens a request of a key has cost.
    """

    def __init__(
        self,
        config: GatewayConfig,
        running: Running,
        owns: Callable[[bytes, str], bool],
        spend: Callable[[bytes, int], None],
    ) -> None:
        self._spend = spend
        self._config = config
        self._running = running
        self._owns = owns
        self._shelves: dict[bytes, _Shelf] = {}
        self._tasks = set[asyncio.Task[None]]()

    def make_room(self, tenant: bytes) -> None:
        """See to it that one more can be kept; the oldest that is over makes room.

        Raises:
            HttpError: 429; as many run as are kept.
        """
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return
        if len(shelf.running) >= self._config.max_submitted:
            raise HttpError(
                429,
                f"{len(shelf.running)} submitted requests run already",
                "rate_limit_error",
                code="too_many_submitted",
                retry_after_s=1.0,
            )
        while len(shelf.running) + len(shelf.finished) >= self._config.max_submitted:
            shelf.drop_oldest()

    def add(self, whose: Whose, stream: aio.Stream, seal: Seal) -> Submission:
        """Take a request over, and read it to its end.

        Raises:
            HttpError: as ``make_room``.
        """
        self.make_room(whose.tenant)
        submission = Submission(self._name(whose.tenant), stream)
        shelf = self._shelves.setdefault(whose.tenant, _Shelf())
        shelf.running[submission.request_id] = submission
        task = asyncio.create_task(self._follow(whose, shelf, submission, stream, seal))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return submission

    def get(self, tenant: bytes, request_id: str) -> Submission:
        """Look one up.

        Raises:
            HttpError: 404; there is none of this name, or not any more, or not of this tenant.
        """
        shelf = self._shelves.get(tenant, _Shelf())
        found = shelf.running.get(request_id) or shelf.finished.get(request_id)
        if found is None:
            raise no_such_request(request_id)
        return found

    def has(self, tenant: bytes, request_id: str) -> bool:
        """Whether there is one of this name."""
        shelf = self._shelves.get(tenant)
        return shelf is not None and (request_id in shelf.running or request_id in shelf.finished)

    def _name(self, tenant: bytes) -> str:
        """A fresh name that is this process's."""
        while not self._owns(tenant, name := f"gen-{uuid.uuid4().hex}"):
            pass
        return name

    async def _follow(
        self, whose: Whose, shelf: _Shelf, submission: Submission, stream: aio.Stream, seal: Seal
    ) -> None:
        request_id = submission.request_id
        outcome: Outcome
        try:
            with self._running.joined(whose.tenant, request_id, stream):
                outcome = await stream.completions()
        except ClientError as error:
            outcome = error
        self._spend(whose.key, Spent().add([stream]))
        try:
            submission.result = seal(request_id, outcome)
        except Exception:
            logger.exception("request %s was lost", request_id)
            return
        finally:
            submission.stream = None
            del shelf.running[request_id]
        self._keep(shelf, submission, submission.result)

    def _keep(self, shelf: _Shelf, submission: Submission, result: bytes) -> None:
        shelf.finished[submission.request_id] = submission
        shelf.n_bytes += len(result)
        submission.expiry = asyncio.get_running_loop().call_later(
            self._config.submitted_ttl_s, shelf.drop, submission
        )
        # the last one stays whatever its size: somebody is about to ask for it
        while shelf.n_bytes > self._config.max_submitted_bytes and len(shelf.finished) > 1:
            shelf.drop_oldest()


def no_such_request(request_id: str) -> HttpError:
    """404. Says the same of what is not there and of what is another's."""
    return HttpError(404, f"there is no request {request_id!r}", code="request_not_found")
