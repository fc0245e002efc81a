"""The engine's events to messages, of all lanes that are open. No sockets here."""

from collections.abc import Sequence
from typing import Protocol

from wkvm_protocol import messages as wire

from wkvm.core.request import (
    EndEvent,
    Event,
    PooledEvent,
    PromptLogprobsEvent,
    ReusedEvent,
    TokensEvent,
)
from wkvm.server.ends import end_of, logprobs_of, reason_of
from wkvm.server.errors import failed, refusal
from wkvm.server.interface import Loop, States
from wkvm.server.lanes import Choice, Lane, Outbox
from wkvm.server.operation import StateClient
from wkvm.server.operations import Operations
from wkvm.server.routes import Routes, routes_of


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


class Delivery:
    """The lanes of all connections, and what the engine has to say to them.

    Args:
        loop: what carries requests out.
        states: what carries operations on states out, the same object; None if nothing does.
        operations: those under way; None without ``states``.
    """

    def __init__(self, loop: Loop, states: States | None, operations: Operations | None) -> None:
        self._loop = loop
        self._states = states
        self._operations = operations
        self._choices: dict[int, Choice] = {}
        self._clients: dict[Outbox, Client] = {}
        self._routes: Routes | None = None

    @property
    def n_requests(self) -> int:
        """How many of the engine's requests belong to open lanes."""
        return len(self._choices)

    def _take_on(self, client: Client, lane: Lane, *, is_plain: bool) -> None:
        self._routes = None  # a request on a state may have had another lane, or none
        client.lanes[lane.request_id] = lane
        for index, engine_id in enumerate(lane.engine_ids):
            choice = Choice(lane, index, client.box, is_plain=is_plain)
            lane.choices[engine_id] = choice
            self._choices[engine_id] = choice

    def _grant(self, lane: Lane, grants: Sequence[tuple[int, int]]) -> None:
        for index, n_tokens in grants:
            self._loop.grant(lane.engine_ids[index], n_tokens)

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
