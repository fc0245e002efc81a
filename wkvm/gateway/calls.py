"""What handlers have to do with: the call that they answer, its body, and the table of routes."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec
from aiohttp import web
from wkvm_client import aio

from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.decoding import decode_body
from wkvm.gateway.described import Doc
from wkvm.gateway.dialects import OPENAI, Dialect
from wkvm.gateway.door.expectations import ask_for_body, check_encoding
from wkvm.gateway.door.held import Held
from wkvm.gateway.door.limits import KeyLimits, Ledger
from wkvm.gateway.engines import NOBODY, Engines, Whose
from wkvm.gateway.failures import (
    CANCELLED,
    DEFAULT_RETRY_AFTER_S,
    OPENAI_NAMES,
    SERVER,
    HttpError,
    http_error,
    renamed,
)
from wkvm.gateway.monitoring.counts import HttpCounts
from wkvm.gateway.monitoring.request_log import RequestLog
from wkvm.gateway.monitoring.spent import Spent
from wkvm.gateway.monitoring.watch import EngineWatch
from wkvm.gateway.native.submitted import Submitted
from wkvm.gateway.offload import Offload
from wkvm.gateway.pages import Pages
from wkvm.gateway.peers import Peers
from wkvm.gateway.policy import Policy
from wkvm.gateway.responses.shelf import Shelf
from wkvm.gateway.running import Running
from wkvm.gateway.sessions.turns import Turns
from wkvm.gateway.states.fields import KEY_HEADER, KeyedFields, StateFields
from wkvm.gateway.states.keeping import Keeper, Unwatched
from wkvm.gateway.streams.choices import Lanes
from wkvm.gateway.streams.pace import Pace
from wkvm.gateway.streams.pieces import ChoiceText
from wkvm.gateway.texts import Texts

logger = logging.getLogger("wkvm.gateway")

BODIES_HELD = 64
"""So many of the largest bodies may the open requests of one tenant have together."""

BodyT = TypeVar("BodyT")


@dataclass(slots=True)
class Gateway:
    """What all requests share.

    Attributes:
        counts: of the HTTP requests.
        watch: asks the engine how it is.
        running: the requests that can be cancelled by name.
        submitted: the requests that nobody waits for.
        turns: of sessions.
        responses: that are kept, and those that are being made.
        unwatched: what goes on though its client has left.
        offload: threads for long texts.
        held: the bodies of open requests.
        pace: of the event loop.
        on_drain: called when the drain begins.
        routes: that are served; set where the application is made.
        document: what ``/openapi.json`` answers, once it was asked for.
        peers: the processes that serve the same port; None if there is only this one.
        inherited: what was counted by those in whose place this process was started.
        ledger: what keys have left, if processes share it.
        limits: of keys.
        log: of requests.
        lag_s: how late the event loop was lately, in seconds; set by who watches it.
        pages: of the console.
        is_draining: set once, by ``begin_drain``; from then on new requests are answered by 503.
    """

    config: GatewayConfig
    engines: Engines
    texts: Texts
    started_at: int
    counts: HttpCounts = field(default_factory=HttpCounts)
    watch: EngineWatch = field(init=False)
    running: Running = field(default_factory=Running)
    unwatched: Unwatched = field(default_factory=Unwatched)
    offload: Offload = field(default_factory=Offload)
    pace: Pace = field(default_factory=Pace)
    on_drain: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])
    lag_s: Callable[[], float] = lambda: 0.0
    is_draining: bool = False
    routes: "tuple[Route, ...]" = ()
    document: bytes = b""
    peers: Peers | None = None
    inherited: Mapping[str, float] = field(default_factory=dict[str, float])
    ledger: Ledger | None = None
    limits: KeyLimits = field(init=False)
    log: RequestLog = field(init=False)
    submitted: Submitted = field(init=False)
    turns: Turns = field(init=False)
    responses: Shelf = field(init=False)
    held: Held = field(init=False)
    pages: Pages = field(default_factory=Pages)

    def __post_init__(self) -> None:
        self.watch = EngineWatch(self.engines)
        self.turns = Turns(self.config)
        self.responses = Shelf(self.config)
        self.limits = KeyLimits(self.config.limits, self.config.key_limits, self.ledger)
        self.submitted = Submitted(self.config, self.running, self.owns, self.limits.spend)
        self.log = RequestLog(self.config.request_log)
        self.held = Held(BODIES_HELD * self.config.max_body_bytes)

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self.engines.info.model

    @property
    def max_model_len(self) -> int | None:
        """The limit on prompt and output together, in ids; None for none."""
        return self.engines.info.max_model_len or None

    def owns(self, tenant: bytes, name: str) -> bool:
        """Whether it is this process that has what a tenant calls by a name."""
        return self.peers is None or self.peers.owns(tenant, name)

    def begin_drain(self) -> None:
        """Refuse new requests, and tell whoever is connected for longer."""
        self.is_draining = True
        for callback in tuple(self.on_drain):
            try:
                callback()
            except Exception:
                # One connection that cannot be told must not keep the others from it.
                logger.exception("a connection could not be told of the drain")

    def check_model(self, name: str) -> None:
        """Check the ``model`` of a request: its own name, or one of the settings' aliases.

        Raises:
            HttpError: 404; there is another model here.
        """
        aliases = self.config.model_aliases
        if name != self.model and name not in aliases and "*" not in aliases:
            raise HttpError(
                404,
                f"model: there is no {name!r} here; there is {self.model!r}",
                param="model",
                code="model_not_found",
            )


@dataclass(slots=True)
class Call:
    """One request that was let in.

    Attributes:
        tenant_client: the connection of whoever asks; None on routes that let everybody in.
        whose: whose the call is; nobody's on routes that let everybody in.
        request_id: what the client called the request, or a name made for it; it goes back in
            a header.
        n_held: how much of the body was read; it counts for the tenant until ``release``.
        names: what the route's body calls the engine's fields; see ``http_error``.
        dialect: how its answer is written: that of the route, or one with names of its own.
        doc: what the route says of its bodies.
        spent: what it has cost so far.
        limit_headers: what the answer says of the key's limits; None where it does not count.
        is_handed_on: whether another process answers, and writes the log.
    """

    request: web.Request
    gateway: Gateway
    request_id: str
    tenant_client: aio.Client | None = None
    whose: Whose = NOBODY
    n_held: int = 0
    names: Mapping[str, str] = field(default_factory=lambda: OPENAI_NAMES)
    dialect: Dialect = OPENAI
    doc: Doc | None = None
    spent: Spent = field(default_factory=Spent)
    limit_headers: dict[str, str] | None = None
    is_handed_on: bool = False

    @property
    def client(self) -> aio.Client:
        """The engine, as whoever asks may use it."""
        assert self.tenant_client is not None, "this route lets everybody in"
        return self.tenant_client

    @property
    def tenant(self) -> bytes:
        """What is the tenant's is kept under; empty on routes that let everybody in."""
        return self.whose.tenant

    @contextmanager
    def cancellable(self, *streams: aio.Stream) -> Generator[None]:
        """Let these be cancelled by ``/v1/cancel`` and the request's id while the block runs.

        Streams that were cancelled end with reason CANCELLED. What they have cost at the end of
        the block counts for the call, and for what its key may use.
        """
        try:
            with self.gateway.running.joined(self.tenant, self.request_id, *streams):
                yield
        finally:
            self.gateway.limits.spend(self.whose.key, self.spent.add(streams))

    def absorbs(self, n_tokens: int) -> None:
        """Count tokens of an input that no stream has counted."""
        self.spent.n_prompt += n_tokens
        self.gateway.limits.spend(self.whose.key, n_tokens)

    def enter(self) -> None:
        """Count the call for its key.

        Raises:
            HttpError: 429; the key has used up what it may have.
        """
        self.limit_headers = self.gateway.limits.enter(self.whose.key)

    def keeper(self, body: StateFields, lanes: Lanes, texts: Sequence[ChoiceText]) -> Keeper:
        """What looks after the state of a request, also once its client has left.

        Args:
            body: of the request.
            lanes: of which ``texts`` are the choices.
        """
        keeper = Keeper(
            self.client, self.gateway.unwatched, self.cancellable, body, lanes.streams, texts
        )
        if body.saves:
            lanes.on_leave = keeper.leave
        return keeper

    def failure(self, error: Exception) -> HttpError:
        """The error for the client. A bug is logged, and the client is told no more than that."""
        known = http_error(error, self.names)
        if known is None:
            logger.error("request %s failed", self.request_id, exc_info=error)
            return HttpError(500, f"internal error; the log has it as {self.request_id}", SERVER)
        if known.code == CANCELLED and self.gateway.is_draining:
            # Not by the client: it may send the request elsewhere.
            why = "the server is draining, and the request was not over in time"
            return HttpError(503, why, SERVER, code="draining", retry_after_s=DEFAULT_RETRY_AFTER_S)
        return renamed(known, self.dialect.names)

    async def body(
        self, kind: type[BodyT], policy: Policy | None = None, *, is_optional: bool = False
    ) -> BodyT:
        """The JSON body. Where it may have an idempotency key and has none, that of the header.

        Args:
            kind: among the bodies of the route's ``Doc``, where it has one.
            policy: what becomes of fields that ``kind`` does not have; None if ``kind`` says it.
            is_optional: whether no body is taken for an empty object.

        Raises:
            HttpError: 400 if it is not what ``kind`` says, or ``policy`` refuses a field; as
                ``read_body``.
        """
        assert self.doc is None or kind in self.doc.bodies, "the document tells of another body"
        data = await self.read_body()
        used = data or b"{}" if is_optional else data
        body = await read_checked(used, kind, policy, self.gateway)
        if isinstance(body, KeyedFields) and body.idempotency_key is None:
            body.idempotency_key = self.request.headers.get(KEY_HEADER)
        return body

    async def read_body(self) -> bytes:
        """The bytes of the body, once, within the limits on size and time.

        Raises:
            HttpError: 408, 413, 415 for one that is compressed, or 429 if the tenant's open
                requests have too much.
        """
        request, config = self.request, self.gateway.config
        check_encoding(request)
        self._check_size(request.content_length or 0)
        if request.content.is_eof():
            # It came with the headers, as most do: there is nothing to wait for.
            return self._took(request.content.read_nowait())
        try:
            async with asyncio.timeout(config.body_timeout_s):
                await ask_for_body(request)
                return b"".join([part async for part in self._parts()])
        except TimeoutError as error:
            raise HttpError(408, "the body came too slowly", code="body_timeout") from error

    async def begin_body(self) -> None:
        """Ask for the body, of a client that waits for that: for who then reads it part by part.

        Raises:
            HttpError: 415; it is compressed.
        """
        check_encoding(self.request)
        await ask_for_body(self.request)

    def release(self) -> None:
        """The call is over: it and its body count no longer."""
        if self.limit_headers is not None:
            self.gateway.limits.leave(self.whose.key)
            self.limit_headers = None
        self.gateway.held.give_back(self.tenant, self.n_held)
        self.n_held = 0

    async def _parts(self) -> AsyncGenerator[bytes]:
        # not request.read(): that keeps the bytes for as long as the request is open
        while part := await self.request.content.readany():
            yield self._took(part)

    def _took(self, part: bytes) -> bytes:
        """Count a part of the body for the tenant."""
        self._check_size(self.n_held + len(part))
        self.gateway.held.take(self.tenant, len(part))
        self.n_held += len(part)
        return part

    def _check_size(self, n_bytes: int) -> None:
        limit = self.gateway.config.max_body_bytes
        if n_bytes > limit:
            why = f"the body is larger than {limit} bytes"
            raise HttpError(413, why, code="request_too_large")


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        is_open: whether it needs no key.
        serves_draining: whether it is answered while the gateway drains. Open routes are.
        needs_engine: whether it has nothing to say without the engine. What does not need it
            is answered without it too, to keys that it has let in before; then the call has
            no client.
        dialect: how its answers are written, and those to what has no route below its path.
        owner: the variable of the path that names what one process alone has, where several
            serve the port; see ``peers``.
        doc: what the served document says of it; without one, that it takes and gives something.
    """

    method: str
    path: str
    handler: Handler
    is_open: bool = field(default=False, kw_only=True)
    serves_draining: bool = field(default=False, kw_only=True)
    needs_engine: bool = field(default=True, kw_only=True)
    dialect: Dialect = field(default=OPENAI, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    doc: Doc | None = field(default=None, kw_only=True)

    @property
    def is_limited(self) -> bool:
        """Whether a call counts for what its key may ask for: what changes or makes something."""
        return self.method in ("POST", "PUT", "PATCH") and not self.serves_draining


def json_response(data: bytes, *, status: int = 200) -> web.Response:
    """A response whose body is JSON."""
    return web.Response(body=data, status=status, content_type="application/json")


async def read_checked(
    data: bytes, kind: type[BodyT], policy: Policy | None, gateway: Gateway
) -> BodyT:
    """JSON to what a route takes, and what its policy says of other fields; a long one in a thread.

    Raises:
        HttpError: 400; as ``decode_body``, or ``policy`` refuses a field.
    """
    unknown = Counter[tuple[str, str]]()

    def read() -> BodyT:
        body = decode_body(data, kind)
        if policy is not None and isinstance(body, msgspec.Struct):
            policy.check(data, type(body), unknown)
        return body

    body = await gateway.offload.run(read, size=len(data))
    gateway.counts.ignored.update(unknown)
    return body
