"""Messages to calls of the engine, and the engine's events to messages. No sockets here."""

from array import array
from collections.abc import Sequence
from typing import Protocol

from wkvm_protocol import messages as wire
from wkvm_protocol.connection import Ignored
from wkvm_protocol.messages import pack_floats, pack_ids, unpack_floats, unpack_ids

from wkvm.core.grammar import Grammar
from wkvm.core.request import (
    EndEvent,
    Event,
    Logprobs,
    PromptLogprobsEvent,
    RequestSpec,
    Status,
    TokensEvent,
)
from wkvm.core.sampling import SamplingParams
from wkvm.server.errors import failed
from wkvm.server.interface import Loop
from wkvm.server.lanes import Choice, CreditPool, Lane, Outbox
from wkvm.server.routes import Routes, routes_of
from wkvm.server.scores import score_spec

REASONS = {
    Status.STOPPED: wire.EndReason.STOP,
    Status.LENGTH: wire.EndReason.LENGTH,
    Status.CANCELLED: wire.EndReason.CANCELLED,
    Status.TIMED_OUT: wire.EndReason.TIMED_OUT,
}
"""The ends that are no failures."""


class Client(Protocol):
    """A connection that is open, as the dispatcher sees it."""

    tenant: str
    lanes: dict[int, Lane]
    box: Outbox

    def send(self, messages: Sequence[wire.ServerMessage]) -> None:
        """Send messages with one write."""
        ...


class Dispatcher:
    """Carries requests from all connections into one engine, and its output back."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._choices: dict[int, Choice] = {}
        self._clients: dict[Outbox, Client] = {}
        self._routes: Routes | None = None

    @property
    def n_requests(self) -> int:
        """How many of the engine's requests belong to open lanes."""
        return len(self._choices)

    def opened(self, client: Client) -> None:
        """Take on a connection."""
        self._clients[client.box] = client

    def lost(self, client: Client) -> None:
        """Forget a connection and cancel what it asked for. Nothing more is sent to it."""
        self._clients.pop(client.box, None)
        for lane in list(client.lanes.values()):
            self._close(client, lane)

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
        match message:
            case wire.Generate() | wire.GenerateConstrained():
                self._generate(client, message)
            case wire.Score():
                self._score(client, message)
            case wire.Cancel(request_id=request_id):
                lane = client.lanes.get(request_id)
                if lane is not None:
                    for engine_id in list(lane.choices):
                        self._loop.cancel(engine_id)
            case wire.Credit(request_id=request_id, n_tokens=n_tokens):
                lane = client.lanes.get(request_id)
                if lane is not None:
                    self._credit(lane, n_tokens)
            case wire.Stats(request_id=request_id):
                client.send([self._stats(request_id)])
            case wire.Hello() | wire.Ping() | wire.Pong() | wire.GoAway() | Ignored():
                # the connection itself has answered those that have an answer
                pass
            case _:
                raise RuntimeError("states were not agreed")

    # --- in -------------------------------------------------------------------------------

    def _generate(self, client: Client, message: wire.Generate | wire.GenerateConstrained) -> None:
        lane_id, n = message.request_id, message.sampling.n
        shares_credit = message.credit > 0 and n > 1
        try:
            spec = _spec(message, client.tenant, shares_credit=shares_credit)
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

    def _take_on(self, client: Client, lane: Lane, *, is_plain: bool) -> None:
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

    def _stats(self, request_id: int) -> wire.StatsReply:
        values = dict(self._loop.stats())
        values["n_connections"] = len(self._clients)
        values["n_lanes"] = sum(len(client.lanes) for client in self._clients.values())
        return wire.StatsReply(request_id=request_id, values=values)

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
            choice.box.touch(touched)
            if isinstance(event, EndEvent):
                self._end(choice, event)
            elif isinstance(event, PromptLogprobsEvent):
                choice.box.logprobs.append(
                    _logprobs(choice, event.logprobs, event.first, of_prompt=True)
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
                message = _logprobs(choice, (logprobs,), first, of_prompt=is_scored)
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
        reason = REASONS.get(event.status)
        if reason is None:
            # one answer for the whole lane: its other choices go without a word
            self._close(client, lane)
            choice.box.ends.append(failed(lane.request_id, event.error or RuntimeError("no error")))
            return
        is_scored = lane.n_scored is not None
        choice.box.ends.append(
            wire.End(
                request_id=lane.request_id,
                choice=choice.index,
                reason=reason,
                stop_id=event.stop_id,
                n_prompt=event.n_prompt if lane.n_scored is None else lane.n_scored,
                n_output=0 if is_scored else event.n_output,
                queue_us=_us(event.queue_s),
                first_token_us=0 if is_scored else _us(event.first_token_s),
                total_us=_us(event.total_s),
            )
        )
        if not lane.choices:
            del client.lanes[lane.request_id]
        elif lane.pool is not None:
            self._grant(lane, lane.pool.ended(choice.index))

    def _close(self, client: Client, lane: Lane) -> None:
        """Take a lane off the books first, so that nothing of it is sent; then cancel it."""
        self._routes = None
        del client.lanes[lane.request_id]
        for engine_id in lane.choices:
            del self._choices[engine_id]
        for engine_id in lane.choices:
            self._loop.cancel(engine_id)


def _logprobs(
    choice: Choice, positions: Sequence[Logprobs], first: int, *, of_prompt: bool
) -> wire.Logprobs:
    tops = [top for position in positions for top in position.top]
    return wire.Logprobs(
        request_id=choice.lane_id,
        choice=choice.index,
        of_prompt=of_prompt,
        first=first,
        n_top=len(positions[0].top),
        ids=pack_ids(position.token_id for position in positions),
        logprobs=pack_floats(position.logprob for position in positions),
        ranks=pack_ids(position.rank for position in positions),
        top_ids=pack_ids(top.token_id for top in tops),
        top_logprobs=pack_floats(top.logprob for top in tops),
    )


def _us(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1e6)


def _spec(
    message: wire.Generate | wire.GenerateConstrained, tenant: str, *, shares_credit: bool
) -> RequestSpec:
    """What a request asks of the engine. Where choices share credit, they start without.

    Raises:
        RequestError: a value is out of range. Ids are not checked against the vocabulary.
    """
    grammar = None
    if isinstance(message, wire.GenerateConstrained):
        grammar = Grammar(message.grammar_kind, message.grammar)
    return RequestSpec(
        prompt=unpack_ids(message.prompt),  # stays packed: while it waits it is 4 bytes an id
        params=_params(message.sampling),
        tenant=tenant,
        priority=message.priority,
        timeout_s=message.timeout_ms / 1000 if message.timeout_ms else None,
        credit=0 if shares_credit else message.credit or None,
        grammar=grammar,
    )


def _params(sampling: wire.Sampling) -> SamplingParams:
    bias = zip(unpack_ids(sampling.bias_ids), unpack_floats(sampling.bias_values), strict=True)
    allowed_ids = None
    if sampling.allowed_ids is not None:
        # Each once, and packed like the prompt: 4 bytes an id while the request waits.
        allowed_ids = array("I", dict.fromkeys(unpack_ids(sampling.allowed_ids)))
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        penalty_decay=sampling.penalty_decay,
        logit_bias=tuple(bias),
        allowed_ids=allowed_ids,
        stop_ids=tuple(unpack_ids(sampling.stop_ids)),
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        max_tokens=sampling.max_tokens,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        seed=sampling.seed,
        n=sampling.n,
    )
