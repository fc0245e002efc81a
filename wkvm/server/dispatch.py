"""Messages to calls of the engine. No sockets here."""

import time
from collections.abc import Callable

from wkvm_protocol import messages as wire
from wkvm_protocol.connection import Ignored, failure
from wkvm_protocol.errors import ErrorCode

from wkvm.server.delivery import Client, Delivery
from wkvm.server.embeddings import EmbeddingSum, embed_spec
from wkvm.server.errors import failed, refusal
from wkvm.server.interface import Loop, States
from wkvm.server.lanes import CreditPool, Lane, Outbox
from wkvm.server.operations import Operations
from wkvm.server.pressure import Pressure
from wkvm.server.scores import score_spec
from wkvm.server.specs import NO_HINT, spec_of
from wkvm.server.state_fields import use_of
from wkvm.server.watches import Watches


class Dispatcher(Delivery):
    """Carries requests from all connections into one engine, and its output back.

    Args:
        loop: what carries requests out.
        states: what carries operations on states out, the same object; None if nothing does.

    Attributes:
        lag: how late the event loop was lately, in seconds, and how often it was very late.
        pressure: says what is not taken for want of memory or disk; None takes all.
    """

    def __init__(self, loop: Loop, states: States | None = None) -> None:
        operations = None if states is None else Operations(states, time.time)
        super().__init__(loop, states, operations)
        self._watches = Watches(states, self._values)
        self._hints: dict[Outbox, wire.PromptHint] = {}
        self.pressure: Pressure | None = None
        self.lag: Callable[[], tuple[float, int]] = lambda: (0.0, 0)

    @property
    def takes_states(self) -> bool:
        """Whether there is something that carries operations on states out."""
        return self._states is not None

    @property
    def n_operations(self) -> int:
        """How many operations on states are under way."""
        return 0 if self._operations is None else self._operations.n_open

    async def close(self, grace_s: float = 0.0) -> None:
        """End watches, and operations on states, those that are left after ``grace_s`` by force."""
        await self._watches.close()
        if self._operations is not None:
            await self._operations.close(grace_s)

    def opened(self, client: Client) -> None:
        """Take on a connection."""
        self._clients[client.box] = client

    def lost(self, client: Client) -> None:
        """Forget a connection and cancel what it asked for. Nothing more is sent to it."""
        self._clients.pop(client.box, None)
        self._hints.pop(client.box, None)
        for lane in list(client.lanes.values()):
            self._close(client, lane, is_lost=True)
        self._watches.lost(client)
        if self._operations is not None:
            self._operations.lost(client)

    def leaves(self, client: Client) -> None:
        """End what of a connection has no end by itself: it asks nothing more."""
        self._watches.lost(client)

    def hold(self, client: Client) -> None:
        """Let nothing more be produced for a connection until ``release``."""
        for lane in client.lanes.values():
            for request_id in lane.choices:
                self._loop.hold(request_id)

    def release(self, client: Client) -> None:
        """End a connection's hold."""
        for lane in client.lanes.values():
            for request_id in lane.choices:
                self._loop.release(request_id)

    def handle(self, client: Client, message: wire.ClientMessage | Ignored) -> None:
        """Carry out one message of an open connection."""
        if self.pressure and (refused := self.pressure.refusal(message, self._loop.stats)):
            client.send([refused])
            return
        match message:
            case wire.Generate() | wire.GenerateConstrained():
                self._generate(client, message)
            case wire.Score():
                self._score(client, message)
            case wire.Embed():
                self._embed(client, message)
            case wire.PromptHint():
                self._hints[client.box] = message
            case wire.Cancel(request_id=request_id):
                lane = client.lanes.get(request_id)
                if lane is not None:
                    for engine_id in list(lane.choices):
                        self._loop.cancel(engine_id)
                elif not self._watches.cancel(client, request_id) and self._operations is not None:
                    self._operations.cancel(client, request_id)
            case wire.Credit(request_id=request_id, n_tokens=n_tokens):
                lane = client.lanes.get(request_id)
                if lane is not None:
                    self._credit(lane, n_tokens)
                else:
                    self._watches.grant(client, request_id, n_tokens)
            case wire.Stats(request_id=request_id):
                client.send([wire.StatsReply(request_id, self._values())])
            case wire.Watch():
                self._watches.open(client, message)
            case wire.Hello() | wire.Ping() | wire.Pong() | wire.GoAway() | Ignored():
                # the connection itself has answered those that have an answer
                pass
            case _ if self._states is None or self._operations is None:
                raise RuntimeError("states were not agreed")
            case wire.GenerateOn(inline_bytes=0):
                self._generate_on(client, message, None)
            case wire.GenerateOn():
                self._await_inline(client, message, self._operations)
            case wire.Interrupt(request_id=request_id):
                self._interrupt(client, request_id, message.keep)
            case wire.StateChunk() | wire.StateBytesEnd() | wire.StateCredit():
                self._operations.receive(client, message)
            case _:
                self._operations.open(client, message)

    # --- in -------------------------------------------------------------------------------

    def _generate(self, client: Client, message: wire.Generate | wire.GenerateConstrained) -> None:
        lane_id, n = message.request_id, message.sampling.n
        shares_credit = message.credit > 0 and n > 1
        try:
            hint = self._hint(client, lane_id)
            spec = spec_of(message, client.tenant, shares_credit=shares_credit, hint=hint)
            engine_ids = self._loop.submit(spec)
        except Exception as error:  # noqa: BLE001  (failed() logs what was not raised on purpose)
            client.send([failed(lane_id, error)])
            return
        pool = CreditPool(message.credit, n) if shares_credit else None
        is_plain = pool is None and message.sampling.logprobs is None
        lane = Lane(lane_id, engine_ids, pool)
        self._take_on(client, lane, is_plain=is_plain)
        if pool is not None:
            self._grant(lane, pool.deal())

    def _hint(self, client: Client, lane_id: int) -> wire.PromptHint:
        """What was said of the prompt of a request just before it, if anything."""
        hint = self._hints.pop(client.box, NO_HINT)
        return hint if hint.request_id == lane_id else NO_HINT

    def _await_inline(
        self, client: Client, message: wire.GenerateOn, operations: Operations
    ) -> None:
        """Begin a request once its state has come, if nothing else is wrong with it."""
        try:
            spec_of(message, client.tenant, shares_credit=False)
            use_of(message, time.time(), None)
        except Exception as error:  # noqa: BLE001  (refusal() logs what was not raised on purpose)
            client.send([refusal(message.request_id, error)])
            return
        operations.receive_inline(
            client, message, lambda inline: self._generate_on(client, message, inline)
        )

    def _generate_on(self, client: Client, message: wire.GenerateOn, inline: bytes | None) -> None:
        assert self._states is not None
        assert self._operations is not None
        lane_id, n = message.request_id, message.sampling.n
        shares_credit = message.credit > 0 and n > 1
        has_place = False
        try:
            hint = self._hint(client, lane_id)
            spec = spec_of(message, client.tenant, shares_credit=shares_credit, hint=hint)
            use = use_of(message, time.time(), inline)
            if message.want_inline:
                self._operations.take_place(client.tenant)
                has_place = True
            engine_ids = self._states.submit(spec, use)
        except Exception as error:  # noqa: BLE001  (refusal() logs what was not raised on purpose)
            if has_place:
                self._operations.free_place(client.tenant)
            client.send([refusal(lane_id, error)])
            return
        for engine_id in engine_ids:
            self._take_over(engine_id)
        pool = CreditPool(message.credit, n) if shares_credit else None
        is_plain = pool is None and message.sampling.logprobs is None
        lane = Lane(lane_id, engine_ids, pool, is_on_state=True, has_place=has_place)
        self._take_on(client, lane, is_plain=is_plain)
        if client.is_held:
            for engine_id in engine_ids:
                self._loop.hold(engine_id)
        if pool is not None:
            self._grant(lane, pool.deal())

    def _take_over(self, engine_id: int) -> None:
        """Another lane asks for a request that runs already: the first one has lost it."""
        choice = self._choices.get(engine_id)
        if choice is None:
            return
        lane = choice.lane
        client = self._clients[choice.box]
        lane.choices.clear()
        del self._choices[engine_id]
        self._close(client, lane)
        client.send([failure(lane.request_id, ErrorCode.CANCELLED, "another lane goes on with it")])

    def _interrupt(self, client: Client, request_id: int, keep: int | None) -> None:
        assert self._states is not None
        assert self._operations is not None
        lane = client.lanes.get(request_id)
        if lane is None:
            self._operations.cancel(client, request_id)
            return
        for engine_id in list(lane.choices):
            self._states.interrupt(engine_id, keep)

    def _score(self, client: Client, message: wire.Score) -> None:
        lane_id = message.request_id
        try:
            spec = score_spec(message, client.tenant)
            engine_ids = self._loop.submit(spec)
        except Exception as error:  # noqa: BLE001  (failed() logs what was not raised on purpose)
            client.send([failed(lane_id, error)])
            return
        lane = Lane(lane_id, engine_ids, None, n_scored=spec.n_ids)
        self._take_on(client, lane, is_plain=False)

    def _embed(self, client: Client, message: wire.Embed) -> None:
        lane_id = message.request_id
        try:
            spec = embed_spec(message, client.tenant)
            engine_ids = self._loop.submit(spec)
        except Exception as error:  # noqa: BLE001  (failed() logs what was not raised on purpose)
            client.send([failed(lane_id, error)])
            return
        assert spec.params.pooling is not None
        embedding = EmbeddingSum(spec.params.pooling, spec.n_ids)
        self._take_on(client, Lane(lane_id, engine_ids, None, embedding=embedding), is_plain=True)

    def _credit(self, lane: Lane, n_tokens: int) -> None:
        if lane.pool is not None:
            self._grant(lane, lane.pool.add(n_tokens))
            return
        for engine_id in lane.choices:
            self._loop.grant(engine_id, n_tokens)

    def _values(self) -> dict[str, int]:
        values = dict(self._loop.stats())
        values["n_connections"] = len(self._clients)
        values["memory_refuses"] = 0 if self.pressure is None else self.pressure.memory()
        values["n_lanes"] = sum(len(client.lanes) for client in self._clients.values())
        lag_s, n_stalls = self.lag()
        values["loop_lag_us"], values["loop_stalls_total"] = round(lag_s * 1e6), n_stalls
        return values
