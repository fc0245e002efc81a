"""The blocking client: see ``wkvm_client.blocking``, whose functions make one."""

import socket
import time
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Self

from wkvm_protocol.messages import HelloOk, Stats, StatsReply, unpack_ids

from wkvm_client.addresses import Reachable, resolve
from wkvm_client.blocking_connections import Connections, answer_of, changed, deadline
from wkvm_client.blocking_session import Session
from wkvm_client.blocking_states import States
from wkvm_client.blocking_streams import Held, Stream, followed_by_its_reader
from wkvm_client.blocking_texts import Texts
from wkvm_client.drafts import DEFAULT_CREDIT, Draft, Grammar, draft
from wkvm_client.errors import ReplyTimeoutError, RequestTimeoutError
from wkvm_client.lanes import Lane
from wkvm_client.states import Durability, Keep, OnDisconnect
from wkvm_client.watching import News, news_of, watch_message


class Client(Texts):
    """A connection to a server, and its successors. Made by ``connect`` or ``from_socket``."""

    def __init__(
        self,
        where: Reachable | socket.socket,
        *,
        api_key: str,
        connect_timeout_s: float,
        reconnect_timeout_s: float | None,
        grace_s: float,
        allow_plaintext_key: bool = False,
        follow: bool = True,
        elsewhere: "dict[str, Client] | None" = None,
    ) -> None:
        self._api_key = api_key
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._grace_s = grace_s
        self._allow_plaintext_key = allow_plaintext_key
        self._follow = follow
        # Shared by all that come of one client: a stream may move to and fro.
        self._is_first = elsewhere is None
        self._elsewhere = dict[str, Client]() if elsewhere is None else elsewhere
        self.connections = Connections(
            where,
            api_key=api_key,
            connect_timeout_s=connect_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
        )

    @property
    def server(self) -> HelloOk:
        """What the server said of itself: model, vocabulary, limits."""
        hello = self.connections.link.core.hello
        assert hello is not None
        return hello

    @property
    def states(self) -> States:
        """Operations on the states that the server keeps; answers may take 60 s."""
        return States(self.connections, 60.0)

    def at(self, address: str) -> "Client":
        """A client of another server, with the same key and settings.

        It is the same one for all that come of the first client, and closed with that. It is
        connected to at once.

        Raises:
            InvalidParameterError: ``address`` is none.
            PlaintextKeyError: the key would be readable on the way.
        """
        client = self._elsewhere.get(address)
        if client is None:
            where = resolve(
                address, api_key=self._api_key, allow_plaintext_key=self._allow_plaintext_key
            )
            client = self._elsewhere[address] = Client(
                where,
                api_key=self._api_key,
                connect_timeout_s=self._connect_timeout_s,
                reconnect_timeout_s=self._reconnect_timeout_s,
                grace_s=self._grace_s,
                allow_plaintext_key=self._allow_plaintext_key,
                follow=self._follow,
                elsewhere=self._elsewhere,
            )
        return client

    def session(
        self,
        name: str,
        *,
        on_disconnect: OnDisconnect = "finish",
        durability: Durability | None = None,
        checkpoint_every: int = 0,
    ) -> Session:
        """A conversation on a state, which is made with the first turn if it is not there.

        Args:
            name: of the state.
            on_disconnect: what becomes of a turn whose client does not come back.
            durability, checkpoint_every: as of ``generate``, for each turn.
        """
        return Session(
            self,
            name,
            head=None,
            n_tokens=None,
            on_disconnect=on_disconnect,
            durability=durability,
            checkpoint_every=checkpoint_every,
        )

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a turn unless ``ignore_eos`` is set."""
        return tuple(unpack_ids(self.server.eos_ids))

    @property
    def is_connected(self) -> bool:
        """Whether the next request would find a connection, as far as was read."""
        return self.connections.link.core.takes_lanes

    def generate(
        self,
        prompt: Iterable[int],
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        penalty_decay: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        allowed_ids: Iterable[int] | None = None,
        stop_ids: Iterable[int] = (),
        ignore_eos: bool = False,
        min_tokens: int = 0,
        max_tokens: int = 256,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        seed: int | None = None,
        n: int = 1,
        credit: int | None = DEFAULT_CREDIT,
        timeout_s: float | None = None,
        priority: int = 0,
        grammar: Grammar | None = None,
        state: str = "",
        state_bytes: bytes = b"",
        save_as: str = "",
        expected_version: int | None = None,
        on_disconnect: OnDisconnect = "cancel",
        durability: Durability | None = None,
        return_state: bool = False,
        checkpoint_every: int = 0,
        replay: bool = False,
        idempotency_key: str = "",
        received: int = 0,
        tags: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        borders: Iterable[int] = (),
        cache_salt: str = "",
    ) -> Stream:
        """Send a request. Returns when it is sent, not when it is answered.

        Arguments and errors are those of ``wkvm_client.aio.Client.generate``.
        """
        request = draft(
            prompt,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            penalty_decay=penalty_decay,
            logit_bias=logit_bias,
            allowed_ids=allowed_ids,
            stop_ids=stop_ids,
            ignore_eos=ignore_eos,
            min_tokens=min_tokens,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            seed=seed,
            n=n,
            credit=credit,
            timeout_s=timeout_s,
            priority=priority,
            grammar=grammar,
            keep=Keep(
                state=state,
                data=state_bytes,
                save_as=save_as,
                expected_version=expected_version,
                on_disconnect=on_disconnect,
                durability=durability or "",
                return_state=return_state,
                checkpoint_every=checkpoint_every,
                replay=replay,
                idempotency_key=idempotency_key,
                received=received,
                tags=tags,
                expires_in_s=expires_in_s,
            ),
            borders=borders,
            cache_salt=cache_salt,
        )
        return self._open(request)

    def _open(self, request: Draft) -> Stream:
        """Send a request on a connection that takes it."""
        timeout_s = request.timeout_s
        deadline_s = deadline(timeout_s)
        try:
            link = self.connections.ready(deadline_s)
        except TimeoutError as error:
            raise RequestTimeoutError(timeout_s or 0.0) from error
        lane = link.core.open(request)
        if not link.flush(deadline_s):
            late = RequestTimeoutError(timeout_s or 0.0)
            link.core.give_up(lane, late)
            raise late
        if self._follow:
            lane.on_cut = followed_by_its_reader
        held = Held(link, self._go_on)
        return Stream(held, lane, None if timeout_s is None else timeout_s + self._grace_s)

    def _go_on(self, lane: Lane, deadline_s: float | None) -> Held:
        """Take a lane that was cut off to where it goes on.

        Raises:
            TimeoutError: it is ``deadline_s``.
            ClientError: it cannot go on.
        """
        assert lane.cut is not None
        client = self.at(lane.cut.target) if lane.cut.target else self
        if lane.cut.n_tokens is not None:
            lane.cut = lane.cut.arrived(client.states.get(lane.cut.name))
        link = client.connections.ready(deadline_s)
        link.core.reopen(lane)
        if not link.flush(deadline_s):
            raise TimeoutError
        return Held(link, client._go_on)

    def ping(self, *, timeout_s: float | None = 10.0) -> float:
        """Measure a round trip.

        Returns:
            Seconds.

        Raises:
            ReplyTimeoutError: it took longer than ``timeout_s``.
            LinkError: there is no connection, or it ended meanwhile.
        """
        deadline_s = deadline(timeout_s)
        try:
            link = self.connections.ready(deadline_s)
            start = time.perf_counter()
            reply = link.core.ping()
            try:
                answer_of(link, reply, deadline_s)
            finally:
                link.core.forget(reply)
        except TimeoutError as error:
            raise ReplyTimeoutError(timeout_s or 0.0) from error
        return time.perf_counter() - start

    def stats(self, *, timeout_s: float | None = 10.0) -> dict[str, int]:
        """Ask for the server's counters and gauges.

        Raises:
            ReplyTimeoutError: it took longer than ``timeout_s``.
            LinkError: there is no connection, or it ended meanwhile.
        """
        told = self.connections.ask(Stats(0), timeout_s)
        assert isinstance(told, StatsReply)
        return told.values

    def watch(
        self,
        *,
        states: bool = True,
        prefix: str = "",
        interval_s: float = 0.2,
        stats_interval_s: float | None = None,
    ) -> Generator[News, None, None]:
        """Be told what states there are and, from then on, what changes of them.

        It goes on until the loop over it is left. Who reads slowly is told less often of how
        things are now, never more. After a lost connection watch again: all is told anew.

        Args:
            states: whether to tell of states.
            prefix: of their names.
            interval_s: the least time between two lots of changes, 0.02 to 60.
            stats_interval_s: between two readings of counters and gauges, 0.1 to 60; None for
                none.

        Raises:
            UnsupportedOperationError: the server does not tell.
            QueueFullError: as many watches are open as may be.
            DrainingError: the server goes away.
            LinkError: there is no connection, or it ended meanwhile.
        """
        message = watch_message(
            states=states,
            prefix=prefix,
            interval_s=interval_s,
            stats_interval_s=stats_interval_s,
        )
        link = self.connections.ready(None)
        told = link.core.watch(message)
        try:
            while True:
                changed(link, lambda: bool(told.messages) or told.is_over, None)
                while told.messages:
                    yield news_of(link.core.operations.take_told(told))
                if told.error is not None:
                    raise told.error.again()
        finally:
            link.core.operations.abandon(told)
            link.push()

    def close(self) -> None:
        """Close the connection. What is open fails with ClientClosedError, on the server too."""
        if self._is_first:
            for client in list(self._elsewhere.values()):
                client.close()
        self.connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
