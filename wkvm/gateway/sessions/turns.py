"""The turns of sessions: what is generated for one goes on by itself, and can be read again.

Of each session the last turn is kept, as its events, so that who lost the connection gets what it
missed. How much is kept has bounds for each tenant: in number, in bytes, in time.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.failures import DEFAULT_RETRY_AFTER_S, HttpError

logger = logging.getLogger("wkvm.gateway")

Work: TypeAlias = Callable[["Turn"], Awaitable[None]]
"""Makes a turn: adds its events; what it raises is the turn's last word."""

MAX_TURN_BYTES = 1024 * 1024
"""Of the events of one turn that are kept; of more, the first are forgotten."""


class Turn:
    """One turn: its events so far.

    Attributes:
        turn_id: a name for it.
        interrupt: ends it and keeps what there is, once it runs.
        error: what went wrong, once something has.
        is_over: whether no more events come.
        whole: the turn as one JSON text, once it is over.
        expiry: when it will be forgotten, once it is over.
    """

    def __init__(self) -> None:
        self.turn_id = uuid.uuid4().hex
        self.interrupt: Callable[[], None] | None = None
        self._on_leave: Callable[[], None] | None = None
        self.error: HttpError | None = None
        self.is_over = False
        self.whole = b""
        self.expiry: asyncio.TimerHandle | None = None
        self.n_bytes = 0
        self._events = list[bytes]()
        self._n_dropped = 0
        self._n_readers = 0
        self._had_readers = False
        self._changed = asyncio.Event()

    @property
    def n_events(self) -> int:
        """How many events there have been."""
        return self._n_dropped + len(self._events)

    @property
    def is_left(self) -> bool:
        """Whether nobody reads it any more, after somebody did."""
        return self._had_readers and not self._n_readers

    def add(self, event: bytes) -> None:
        """Add an event: its JSON."""
        number = self.n_events + 1
        framed = b"id: %b:%d\ndata: %b\n\n" % (self.turn_id.encode(), number, event)
        self._events.append(framed)
        self.n_bytes += len(framed)
        while self.n_bytes > MAX_TURN_BYTES and len(self._events) > 1:
            self.n_bytes -= len(self._events.pop(0))
            self._n_dropped += 1
        self._tell()

    def end(self, whole: bytes, error: HttpError | None = None) -> None:
        """No more events come."""
        self.whole, self.error, self.is_over = whole, error, True
        self.n_bytes += len(whole)
        self._tell()

    def since(self, n_seen: int) -> list[bytes]:
        """The events after the first ``n_seen``, framed.

        Raises:
            HttpError: 410; some of them are kept no more, or there never were so many.
        """
        if not self._n_dropped <= n_seen <= self.n_events:
            raise gone()
        return self._events[n_seen - self._n_dropped :]

    async def changed(self, n_seen: int) -> None:
        """Wait for more than ``n_seen`` events, or the end."""
        while self.n_events <= n_seen and not self.is_over:
            await self._changed.wait()

    async def over(self) -> None:
        """Wait for the end."""
        while not self.is_over:
            await self._changed.wait()

    def __enter__(self) -> Self:
        """Begin to read."""
        self._n_readers += 1
        self._had_readers = True
        return self

    def __exit__(self, *_: object) -> None:
        self._n_readers -= 1
        self._tell_if_left()

    def when_left(self, on_leave: Callable[[], None]) -> None:
        """Call back when the last who reads it leaves before its end; now, if that was before."""
        self._on_leave = on_leave
        self._tell_if_left()

    def _tell_if_left(self) -> None:
        if self.is_left and not self.is_over and self._on_leave is not None:
            self._on_leave()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@dataclass(slots=True)
class _Shelf:
    """The turns of one tenant, by session: the one that began last is the last."""

    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])

    def drop(self, session: str) -> None:
        """Forget the turn of a session, if there is one, and all that holds it."""
        turn = self.turns.pop(session, None)
        if turn is not None and turn.expiry is not None:
            turn.expiry.cancel()

    def drop_oldest(self) -> bool:
        """Forget the oldest turn that is over. False if there is none."""
        for session, turn in self.turns.items():
            if turn.is_over:
                self.drop(session)
                return True
        return False

    @property
    def n_bytes(self) -> int:
        return sum(turn.n_bytes for turn in self.turns.values())


class Turns:
    """The turns of all tenants' sessions. A tenant sees its own alone. Of one event loop."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._shelves: dict[bytes, _Shelf] = {}
        self._tasks = set[asyncio.Task[None]]()

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    async def ended(self) -> None:
        """Wait until none runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def find(self, tenant: bytes, session: str) -> Turn | None:
        """The last turn of a session, if it is kept."""
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.turns.get(session)

    def forget(self, tenant: bytes, session: str) -> None:
        """Forget the last turn of what had a session's name before, if it is over."""
        turn = self.find(tenant, session)
        if turn is not None and turn.is_over:
            self._shelves[tenant].drop(session)

    def check_idle(self, tenant: bytes, session: str) -> None:
        """Check that no turn of a session runs.

        Raises:
            HttpError: 409; one does.
        """
        turn = self.find(tenant, session)
        if turn is not None and not turn.is_over:
            raise busy(session)

    def begin(self, tenant: bytes, session: str, work: Work) -> Turn:
        """Let a turn run by itself.

        Raises:
            HttpError: 409, as ``check_idle``; 429, as many turns run as may.
        """
        self.check_idle(tenant, session)
        shelf = self._shelves.setdefault(tenant, _Shelf())
        shelf.drop(session)
        while len(shelf.turns) >= self._config.max_submitted:
            if not shelf.drop_oldest():
                raise HttpError(
                    429,
                    f"{len(shelf.turns)} turns of sessions run already",
                    "rate_limit_error",
                    code="too_many_turns",
                    retry_after_s=DEFAULT_RETRY_AFTER_S,
                )
        turn = shelf.turns[session] = Turn()
        task = asyncio.create_task(self._run(tenant, shelf, session, turn, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return turn

    async def _run(
        self, tenant: bytes, shelf: _Shelf, session: str, turn: Turn, work: Work
    ) -> None:
        try:
            await work(turn)
        except HttpError as error:
            turn.end(b"", error)
        except Exception:
            logger.exception("a turn was lost")
            turn.end(b"", HttpError(500, "internal error", "server_error"))
        while shelf.n_bytes > self._config.max_submitted_bytes and len(shelf.turns) > 1:
            if not shelf.drop_oldest():
                break
        if shelf.turns.get(session) is turn:
            turn.expiry = asyncio.get_running_loop().call_later(
                self._config.submitted_ttl_s, shelf.drop, session
            )


def busy(session: str) -> HttpError:
    """409: a turn runs, and another one would not know what it goes on from."""
    return HttpError(
        409,
        f"a turn of session {session} runs: wait for its end, or interrupt it",
        "conflict_error",
        code="session_busy",
    )


def gone() -> HttpError:
    """410: what is asked for is kept no more."""
    return HttpError(
        410,
        "these events are kept no more: the session itself says where it is",
        code="events_gone",
    )
