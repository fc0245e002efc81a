"""Messages to calls of the engine, and the engine's events to messages. No sockets here."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from wkvm_protocol import messages as wire
from wkvm_protocol.connection import Ignored, failure
from wkvm_protocol.errors import ErrorCode

from wkvm.core.request import (
    EndEvent,
    Event,
    PooledEvent,
    PromptLogprobsEvent,
    ReusedEvent,
    TokensEvent,
)
from wkvm.server.embeddings import EmbeddingSum, embed_spec
from wkvm.server.ends import end_of, logprobs_of, reason_of
from wkvm.server.errors import failed, refusal
from wkvm.server.interface import Loop, States
from wkvm.server.lanes import Choice, CreditPool, Lane, Outbox
from wkvm.server.operation import StateClient
from wkvm.server.operations import Operations
from wkvm.server.pressure import Pressure
from wkvm.server.routes import Routes, routes_of
from wkvm.server.scores import score_spec
from wkvm.server.specs import NO_HINT, spec_of
from wkvm.server.state_fields import use_of
from wkvm.server.watches import Watches


class Client(StateClient, Protocol):
    """A connection that is open, as the dispatcher sees it."""

    box: Outbox

    @property
    def takes_reused(self) -> bool:
        """Whether it is to be told what of its prompts was not computed."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether nothing more is to be produced for it now."""
        ...


class Dispatcher:
    """Carries requests from all connections into one engine, and its output back.

    Args:
        loop: what carries requests out.
        states: what carries operations on states out, the same object; None if nothing does.

    Attributes:
        lag: how late the event loop was lately, in seconds, and how often it was very late.
        pressure: says what is not taken for want of memory or disk; None takes all.
    """

    def __init__(self, loop: Loop, states: States | None = None) -> None:
        self._loop = loop
        self._states = states
        self._operations = None if states is None else Operations(states, time.time)
        self._watches = Watches(states, self._values)
        self._choices: dict[int, Choice] = {}
        self._clients: dict[Outbox, Client] = {}
        self._hints: dict[Outbox, wire.PromptHint] = {}
        self._routes: Routes | None = None
        self.pressure: Pressure | None = None
        self.lag: Callable[[], tuple[float, int]] = lambda: (0.0, 0)

    @property
    def n_requests(self) -> int:
        """How many of the engine's requests belong to open lanes."""
        return len(self._choices)

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

    def _take_on(self, client: Client, lane: Lane, *, is_plain: bool) -> None:
        self._routes = None  # a request on a state may have had another lane, or none
        client.lanes[lane.request_id] = lane
        for index, engine_id in enumerate(lane.engine_ids):
            choice = Choice(lane, index, client.box, is_plain=is_plain)
            lane.choices[engine_id] = choice
            self._choices[engine_id] = choice

    def _credit(self, lane: Lane, n_tokens: int) -> None:
        if lane.pool is not None:
            self._grant(lane, lane.pool.add(n_tokens))
            return
        for engine_id in lane.choices:
            self._loop.grant(engine_id, n_tokens)

    def _grant(self, lane: Lane, grants: Sequence[tuple[int, int]]) -> None:
        for index, n_tokens in grants:
            self._loop.grant(lane.engine_ids[index], n_tokens)

    def _values(self) -> dict[str, int]:
        values = dict(self._loop.stats())
        values["n_connections"] = len(self._clients)
        values["memory_refuses"] = 0 if self.pressure is None else self.pressure.memory()
        values["n_lanes"] = sum(len(client.lanes) for client in self._clients.values())
        lag_s, n_stalls = self.lag()
        values["loop_lag_us"], values["loop_stalls_total"] = round(lag_s * 1e6), n_stalls
        return values

    # --- out ------------------------------------------------------------------------------

    def deliver(self, events: Sequence[Event]) -> None:
        """Send a step's events: for each connection one write, and in it one Tokens.

        Cost: about 0.02 us for each id without log probabilities, while the same requests produce
        in every step; 0.3 us more in the first step of others.
        """
        touched = list[Outbox]()
        for event in events:
            if isinstance(event, TokensEvent):
                self._tokens(event, touched)
                continue
            choice = self._choices.get(event.request_id)
            if choice is None:
                continue  # its lane has failed, or its connection is gone
            if isinstance(event, PooledEvent):
                if choice.lane.embedding is not None:
                    choice.lane.embedding.add(event.values)
                continue
            choice.box.touch(touched)
            if isinstance(event, EndEvent):
                self._end(choice, event)
            elif isinstance(event, ReusedEvent):
                if self._clients[choice.box].takes_reused:
                    told = wire.Reused(choice.lane_id, choice.index, event.n_tokens)
                    choice.box.logprobs.append(told)
            elif isinstance(event, PromptLogprobsEvent):
                choice.box.logprobs.append(
                    logprobs_of(choice, event.logprobs, event.first, of_prompt=True)
                )
        for box in touched:
            self._clients[box].send(box.take())

    def _tokens(self, event: TokensEvent, touched: list[Outbox]) -> None:
        routes = self._routes
        if routes is None or routes.request_ids != event.request_ids:
            routes = self._routes = routes_of(event.request_ids, self._choices)
        for route in routes.to_boxes:
            route.box.touch(touched)
            route.box.tokens.append(route.tokens(event.token_ids))
        for place, choice in routes.specials:
            logprobs = event.logprobs.get(place)
            if logprobs is not None:
                is_scored = choice.lane.n_scored is not None
                # of a Score the engine's prompt was the first id alone
                first = event.indices[place] + is_scored
                message = logprobs_of(choice, (logprobs,), first, of_prompt=is_scored)
                choice.box.touch(touched)
                choice.box.logprobs.append(message)
            if choice.lane.pool is not None:
                self._grant(choice.lane, choice.lane.pool.used(choice.index))

    def _end(self, choice: Choice, event: EndEvent) -> None:
        client = self._clients[choice.box]
        lane = choice.lane
        self._routes = None
        del self._choices[event.request_id]
        del lane.choices[event.request_id]
        reason = reason_of(event)
        if reason is None:
            # one answer for the whole lane: its other choices go without a word
            self._close(client, lane)
            error = event.error or RuntimeError("no error")
            answer = refusal if lane.is_on_state else failed
            choice.box.ends.append(answer(lane.request_id, error))
            return
        if lane.embedding is not None and reason is wire.EndReason.LENGTH:
            embedding = lane.embedding.message(lane.request_id)
            if embedding is None:
                self._close(client, lane)
                choice.box.ends.append(failed(lane.request_id, RuntimeError("no embedding")))
                return
            choice.box.ends.append(embedding)
        end = end_of(choice, event, reason)
        inline = None if event.state is None else event.state.inline
        if inline is not None and isinstance(end, wire.EndOn) and self._operations is not None:
            lane.has_place = False  # it goes on with the bytes
            self._operations.send_inline(client, inline, end)
        else:
            choice.box.ends.append(end)
        if not lane.choices:
            self._close(client, lane)
        elif lane.pool is not None:
            self._grant(lane, lane.pool.ended(choice.index))

    def _close(self, client: Client, lane: Lane, *, is_lost: bool = False) -> None:
        """Take a lane off the books first, so that nothing of it is sent; then end its choices."""
        self._routes = None
        del client.lanes[lane.request_id]
        if lane.has_place and self._operations is not None:
            self._operations.free_place(client.tenant)
        for engine_id in lane.choices:
            del self._choices[engine_id]
        for engine_id in lane.choices:
            if is_lost and lane.is_on_state and self._states is not None:
                self._states.disconnected(engine_id)
            else:
                self._loop.cancel(engine_id)
