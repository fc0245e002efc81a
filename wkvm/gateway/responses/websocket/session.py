"""One WebSocket: what is asked for over it, and its end.

Responses are written as they are made. While the client does not read, its lanes wait, and so does
the reading of what it sends; a client that does not read for long loses its HTTP connection, as
any other does. So what is stored is bounded by the sockets' buffers, an event of each lane, what
waits in lanes, and ``Memory``.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from aiohttp import WSMsgType, web
from wkvm_client.errors import ClientError

from wkvm.gateway.calls import Call
from wkvm.gateway.door.keys import request_key
from wkvm.gateway.failures import SERVER, HttpError, invalid
from wkvm.gateway.monitoring.spent import Spent
from wkvm.gateway.responses.bodies import as_response
from wkvm.gateway.responses.core import Caller, Run, ask, forget
from wkvm.gateway.responses.websocket import steering
from wkvm.gateway.responses.websocket.frames import (
    CREATE,
    STEER,
    Create,
    Envelope,
    Event,
    error_event,
    of_lane,
    read_create,
    read_envelope,
    required_input,
)
from wkvm.gateway.responses.websocket.lanes import Lanes
from wkvm.gateway.responses.websocket.memory import Memory
from wkvm.gateway.responses.websocket.steering import RefusedSteerError, Steer
from wkvm.gateway.responses.websocket.work import Work

logger = logging.getLogger("wkvm.gateway")

MAX_AGE_S = 3600.0
"""How long a connection takes new responses."""
LAST_S = 60.0
"""How long those that are being made then may take."""
MAX_ENDED = 256
"""Responses that are over of which that is still known."""

OK, GOING_AWAY, RESTART = 1000, 1001, 1012


class Session:
    """A connection.

    Args:
        call: the upgrade.
        socket: prepared.
    """

    def __init__(self, call: Call, socket: "web.WebSocketResponse[bool]") -> None:
        self._call = call
        self._gateway = call.gateway
        self._socket = socket
        self._key = request_key(call.request)
        self._lanes = Lanes[Work](self._do, self._on_idle)
        self._memory = Memory(self._release)
        self._making: dict[str, Work] = {}
        self._ended: dict[str, None] = {}
        self._waiting: dict[str, tuple[Work, list[Steer]]] = {}
        """Input for which calls have to have results first, by the response that called."""
        self._refusal: HttpError | None = None
        """Why nothing new is taken any more."""
        self._close = OK, ""
        self._over = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()

    async def run(self) -> None:
        """Make responses until one side ends the connection."""
        loop = asyncio.get_running_loop()
        clock = loop.call_later(MAX_AGE_S, self._grow_old)
        reading = asyncio.create_task(self._read())
        self._gateway.on_drain.add(self._drain)
        if self._gateway.is_draining:
            self._drain()
        try:
            await self._over.wait()
        finally:
            clock.cancel()
            self._gateway.on_drain.discard(self._drain)
            tasks = [reading, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            left = await self._lanes.aclose()
            left += [work for work, _ in self._waiting.values()]
            self._give_back(sum(work.n_bytes for work in left))
            self._memory.clear()
        code, why = self._close
        await self._socket.close(code=code, message=why.encode())

    # --- from the client ------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while await self._take_next():
                pass
        except ConnectionError:
            pass
        except Exception:
            logger.exception("internal error on a WebSocket")
        self._over.set()

    async def _take_next(self) -> bool:
        """Take a message. False if there are no more."""
        message = await self._socket.receive()
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return False
        lane = None
        try:
            if message.type is WSMsgType.BINARY:
                raise HttpError(400, "an event is text, not binary", code="invalid_event")
            data = bytes(message.data)
            envelope = await self._gateway.offload.run(lambda: read_envelope(data), size=len(data))
            lane = envelope.stream_id
            if envelope.type == CREATE:
                await self._take(data, envelope)
            elif envelope.type == STEER:
                lane = None
                await self._steer(data)
            else:
                why = f"there is no event {envelope.type[:40]!r}"
                raise invalid("type", why, code="invalid_event")
        except HttpError as error:
            await self._send(error_event(error, lane))
        return True

    async def _take(self, data: bytes, envelope: Envelope) -> None:
        """Put a response that is asked for into its lane."""
        if self._refusal is not None:
            raise self._refusal
        try:
            create = await read_create(data, self._gateway)
        except HttpError:
            self._evict(envelope)
            raise
        work = Work(create, len(data))
        self._hold(work.n_bytes)
        try:
            self._lanes.add(work.lane, work)
        except HttpError:
            self._give_back(work.n_bytes)
            raise

    async def _steer(self, data: bytes) -> None:
        run, omits = self._gateway.offload.run, self._gateway.config.omit_media
        steer = await run(lambda: steering.read_target(data), size=len(data))
        work = None
        try:
            try:
                target = steer
                steer = await run(
                    lambda: steering.checked(target, data, omit_media=omits), size=len(data)
                )
            finally:
                # It may have ended while its input was read.
                work = self._making.get(steer.response_id)
            self._accept(steer, work)
        except RefusedSteerError as error:
            event = steering.failed_event(steer, error.code, str(error), was_accepted=False)
        else:
            event = steering.accepted_event(steer)
        await self._send_of(work, event)

    def _accept(self, steer: Steer, work: Work | None) -> None:
        """Take input for what comes after a response.

        Raises:
            RefusedSteerError: it cannot be taken.
        """
        if work is None:
            if steer.response_id in self._ended:
                raise RefusedSteerError(steering.COMPLETED, "the response is over")
            why = "no response of this name is being made on this connection"
            raise RefusedSteerError(steering.NOT_FOUND, why)
        if self._refusal is not None:
            raise RefusedSteerError(steering.NOT_ACTIVE, str(self._refusal))
        if work.create.conversation_id is not None:
            why = "a response that belongs to a conversation cannot be steered"
            raise RefusedSteerError(steering.NOT_SUPPORTED, why)
        if len(work.next_steers) >= steering.MAX_STEERS:
            why = f"{steering.MAX_STEERS} inputs wait for the end of the response already"
            raise RefusedSteerError(steering.TOO_MANY, why)
        try:
            self._hold(steer.n_bytes)
        except HttpError as error:
            raise RefusedSteerError(steering.TOO_MANY, str(error)) from error
        work.n_bytes += steer.n_bytes
        work.next_steers.append(steer)

    # --- responses ------------------------------------------------------------------------

    async def _do(self, work: Work) -> None:
        """Make a response, and tell of it. For its key it is a request as any other."""
        call = replace(self._call, spent=Spent(), n_held=work.n_bytes, limit_headers=None)
        began_at, status, is_let_in = time.perf_counter(), 200, False
        try:
            call.enter()
            is_let_in = True
            self._put_in(work)
            call.tenant_client = await self._gateway.engines.client(self._key)
            error = await self._make(work, Caller.of(call))
            status = 200 if error is None else error.status
        except ConnectionError:
            self._over.set()  # the client is gone
        except Exception as error:  # noqa: BLE001  (a bug is logged)
            known = as_response(call.failure(error))
            status = known.status
            if is_let_in:
                self._evict(work.create)
            await self._refuse(work, known)
        finally:
            call.n_held, work.n_bytes = work.n_bytes, 0
            call.release()
            self._gateway.log.add(
                request_id=call.request_id,
                whose=call.whose,
                route=CREATE,
                status=status,
                spent=call.spent,
                began_at=began_at,
            )

    def _put_in(self, work: Work) -> None:
        """Let what waits for a result come before it."""
        parent = work.create.previous_response_id or ""
        found = self._waiting.get(parent)
        if found is None or found[0].lane != work.lane:
            return
        held, steers = self._waiting.pop(parent)
        work.n_bytes += held.n_bytes
        work.steers = steers
        work.create = steering.put_in(work.create, steers)

    async def _make(self, work: Work, caller: Caller) -> HttpError | None:
        """Make a response; why it failed, if it did after it had begun."""
        create = work.create
        asked = await ask(
            caller, create, local=self._memory, generates=create.generate is not False
        )
        async with Run(caller, asked, local=self._memory) as run:
            self._making[run.id] = work
            try:
                async for event in run:
                    work.steers = ()  # they are in it
                    await self._send_of(work, event)
            finally:
                self._note_end(run.id)
        if run.error is not None:
            self._evict(create)
        await self._go_on(work, run)
        return run.error

    def _note_end(self, response_id: str) -> None:
        del self._making[response_id]
        self._ended[response_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    async def _go_on(self, work: Work, run: Run) -> None:
        """What was put in meanwhile has its turn."""
        steers, work.next_steers = work.next_steers, []
        if not steers:
            return
        if run.resource["status"] not in ("completed", "incomplete"):
            await self._fail(work, steers, steering.NOT_ACTIVE, "the response has no end")
        elif required_input(run.resource["output"]):
            if len(self._waiting) >= steering.MAX_PARENTS:
                why = f"input waits for {steering.MAX_PARENTS} responses already"
                await self._fail(work, steers, steering.TOO_MANY, why)
                return
            n_bytes = sum(steer.n_bytes for steer in steers)
            work.n_bytes -= n_bytes
            self._waiting[run.id] = Work(work.create, n_bytes), steers
            for steer in steers:
                event = steering.pending_event(steer, run.resource["output"])
                await self._send_of(work, event)
        else:
            n_bytes = work.n_bytes
            work.n_bytes = 0
            create = steering.successor(work.create, run.id)
            after = Work(steering.put_in(create, steers), n_bytes, steers)
            self._lanes.add_next(work.lane, after)

    async def _refuse(self, work: Work, error: HttpError) -> None:
        """Tell that a response cannot be made."""
        try:
            await self._send_of(work, error_event(error, work.lane), is_numbered=False)
            await self._fail(work, work.steers, steering.NO_SUCCESSOR, str(error))
        except ConnectionError:
            self._over.set()

    async def _fail(self, work: Work, steers: Sequence[Steer], code: str, why: str) -> None:
        for steer in steers:
            event = steering.failed_event(steer, code, why, was_accepted=True)
            await self._send_of(work, event)

    def _evict(self, asked: Create | Envelope) -> None:
        """Forget what a response would have gone on with: nobody knows how it was left."""
        self._memory.pop(str(asked.previous_response_id), None)

    # --- what is stored -------------------------------------------------------------------

    def _hold(self, n_bytes: int) -> None:
        self._gateway.held.take(self._call.tenant, n_bytes)

    def _give_back(self, n_bytes: int) -> None:
        self._gateway.held.give_back(self._call.tenant, n_bytes)

    def _release(self, names: Sequence[str]) -> None:
        """Remove states that nobody can ask for any more."""
        self._gateway.responses.add(self._forget(names))

    async def _forget(self, names: Sequence[str]) -> None:
        try:
            client = await self._gateway.engines.client(self._key)
        except ClientError:
            return  # they expire
        await forget(Caller.of(replace(self._call, tenant_client=client)), names)

    # --- to the client --------------------------------------------------------------------

    async def _send_of(self, work: Work | None, event: Event, *, is_numbered: bool = True) -> None:
        """Send an event about a response, numbered after those before it."""
        if work is None:
            await self._send({**event, "sequence_number": 0})
            return
        if is_numbered:
            event = {**event, "sequence_number": work.n_events}
            work.n_events += 1
        await self._send(of_lane(event, work.lane))

    async def _send(self, event: Event) -> None:
        """Send an event. Waits while the client does not read."""
        await self._socket.send_frame(msgspec.json.encode(event), WSMsgType.TEXT)

    # --- ends -----------------------------------------------------------------------------

    def _drain(self) -> None:
        why = "the server is draining: connect again"
        error = HttpError(503, why, SERVER, code="draining", retry_after_s=1.0)
        self._leave(error, RESTART, "the server is going away")

    def _grow_old(self) -> None:
        minutes = round(MAX_AGE_S / 60)
        why = f"a connection takes responses for {minutes} minutes: connect again"
        error = HttpError(400, why, code="websocket_connection_limit_reached")
        self._tasks.add(asyncio.create_task(self._tell_age(error)))

    async def _tell_age(self, error: HttpError) -> None:
        if self._refusal is None:
            self._refusal = error
            try:
                await self._send(error_event(error, None))
            except ConnectionError:
                return
            self._leave(error, GOING_AWAY, "the connection is too old")
            await asyncio.sleep(LAST_S)
            self._over.set()

    def _leave(self, error: HttpError, code: int, why: str) -> None:
        """Take nothing new, and close once nothing is asked for any more."""
        self._refusal = error
        self._close = code, why
        if not self._lanes:
            self._over.set()

    def _on_idle(self) -> None:
        if self._refusal is not None:
            self._over.set()
