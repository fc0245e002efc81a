"""The client for asyncio: see ``wkvm_client.aio``, whose functions make one."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from types import TracebackType
from typing import Self

from wkvm_protocol.messages import HelloOk, Stats, StatsReply, unpack_ids

from wkvm_client.addresses import resolve
from wkvm_client.aio_connections import Connections, answer_of, changed
from wkvm_client.aio_follow import Followers
from wkvm_client.aio_link import Where
from wkvm_client.aio_session import Session
from wkvm_client.aio_states import States
from wkvm_client.aio_streams import Stream
from wkvm_client.aio_texts import Texts
from wkvm_client.drafts import DEFAULT_CREDIT, Draft, Grammar, draft
from wkvm_client.errors import ReplyTimeoutError, RequestTimeoutError
from wkvm_client.states import Durability, Keep, OnDisconnect
from wkvm_client.watching import News, news_of, watch_message


class Client(Texts):
    """A connection to a server, and its successors. Made by ``connect`` and its siblings."""

    def __init__(
        self,
        where: Where,
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
            grace_s=grace_s,
        )
        self.followers = Followers(self)

    @property
    def server(self) -> HelloOk:
        """What the server said of itself: model, vocabulary, limits."""
        link = self.connections.link
        assert link is not None, "the client is not connected yet"
        assert link.core.hello is not None
        return link.core.hello

    @property
    def states(self) -> States:
        """Operations on the states that the server keeps; answers may take 60 s."""
        return States(self.connections, 60.0)

    def at(self, address: str) -> "Client":
        """A client of another server, with the same key and settings.

        It is the same one for all that come of the first client, and closed with that.
        Not connected yet; operations and requests connect it.

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
        """Whether a request would find a connection that takes it."""
        link = self.connections.link
        return link is not None and link.core.takes_lanes

    async def generate(
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

        Args:
            prompt: token ids.
            temperature: 0 picks the most likely id.
            top_k: keep the k most likely ids; 0 keeps all.
            top_p: keep the smallest set of most likely ids whose mass reaches this.
            min_p: drop ids less likely than this times the most likely one.
            repetition_penalty: on ids of prompt and output; 1 is off.
            presence_penalty: subtracted once from the logits of ids in the output.
            frequency_penalty: subtracted per occurrence in the output.
            penalty_decay: each new id multiplies the earlier counts by this; 1 is off.
            logit_bias: added to the logits of these ids.
            allowed_ids: only these may be chosen; None allows all.
            stop_ids: the request ends when one of these is sampled.
            ignore_eos: end at ``stop_ids`` only, not at the model's own end ids.
            min_tokens: no stop id before this many.
            max_tokens: the request ends after this many; 0 absorbs the prompt and ends.
            logprobs: report each id's log probability and this many most likely ids.
            prompt_logprobs: likewise for the ids of the prompt but the first.
            seed: fixes the random numbers; None draws fresh ones.
            n: how many completions.
            credit: how many ids may wait for their consumer; more are granted as it takes
                them, and meanwhile the server pauses. None for no limit.
            timeout_s: after this long the server ends the request with reason TIMED_OUT;
                if nothing is heard of that either, RequestTimeoutError is raised.
            priority: lower runs first.
            grammar: what the output must be; its end ends the request, with reason STOP. Only
                for servers that name the feature "grammar" in ``server.features``.
            state: what to go on from, ``NAME`` or ``NAME@VERSION``; the prompt may then be empty.
                This and what follows is for servers that name the feature "states".
            state_bytes: a state to go on from that is sent along, and not kept.
            save_as: the handle that gets the state at the end as its newest version.
            expected_version: what the head of ``save_as`` must be; 0 for a handle that must be
                new. Otherwise StaleVersionError, and nothing is kept.
            on_disconnect: ``cancel`` keeps nothing of a request whose connection is lost;
                ``finish`` goes on with it to its end, ``hibernate`` keeps what there is. With one
                of the last two and an ``idempotency_key``, the stream goes on by itself after
                the connection was lost: no id is lost or comes twice.
            durability: ``disk`` or ``memory``: what the end waits for. None for the best that the
                server can.
            return_state: bring the state's bytes along with the end.
            checkpoint_every: keep a checkpoint at each multiple of so many tokens, to roll back
                to; 0 for none.
            replay: draw the random numbers that the state would draw, also for another handle.
            idempotency_key: whatever is sent with it, and how often, is carried out once.
            received: ids that have come of an earlier attempt with this key. They do not come
                again.
            tags, expires_in_s: of the handle ``save_as``.

            borders: after how many tokens of the prompt a message of it ends. Where other prompts
                part from it there, they go on from what was computed of it.
            cache_salt: only requests with the same one share what is computed of prompts. Not
                across tenants in any case.

        Raises:
            RequestError: the request cannot be sent. The server's own refusals are
                raised by the stream.
            UnsupportedOperationError: the server takes no grammars.
            LinkError: there is no connection, and none was to be had.
            RequestTimeoutError: none was to be had within ``timeout_s``.
            TooManyLanesError: as many lanes are open as the connection may have.
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
        return await self._open(request)

    async def _open(self, request: Draft) -> Stream:
        """Send a request on a connection that takes it."""
        link = self.connections.link
        if link is None or not link.is_ready:
            try:
                async with asyncio.timeout(request.timeout_s):
                    link = await self.connections.ready()
            except TimeoutError as error:
                raise RequestTimeoutError(request.timeout_s or 0.0) from error
        lane = link.open(request)
        if self._follow:
            lane.on_cut = self.followers.follow
        return Stream(lane)

    async def ping(self, *, timeout_s: float | None = 10.0) -> float:
        """Measure a round trip.

        Returns:
            Seconds.

        Raises:
            ReplyTimeoutError: it took longer than ``timeout_s``.
            LinkError: there is no connection, or it ended meanwhile.
        """
        try:
            async with asyncio.timeout(timeout_s):
                link = await self.connections.ready()
                start = time.perf_counter()
                reply = link.core.ping()
                try:
                    await answer_of(reply)
                finally:
                    link.core.forget(reply)
        except TimeoutError as error:
            raise ReplyTimeoutError(timeout_s or 0.0) from error
        return time.perf_counter() - start

    async def stats(self, *, timeout_s: float | None = 10.0) -> dict[str, int]:
        """Ask for the server's counters and gauges.

        Raises:
            ReplyTimeoutError: it took longer than ``timeout_s``.
            LinkError: there is no connection, or it ended meanwhile.
        """
        told = await self.connections.ask(Stats(0), timeout_s)
        assert isinstance(told, StatsReply)
        return told.values

    async def watch(
        self,
        *,
        states: bool = True,
        prefix: str = "",
        interval_s: float = 0.2,
        stats_interval_s: float | None = None,
    ) -> AsyncGenerator[News, None]:
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
        link = await self.connections.ready()
        told = link.core.watch(message)
        try:
            while True:
                await changed(told, lambda: bool(told.messages) or told.is_over)
                while told.messages:
                    yield news_of(link.core.operations.take_told(told))
                if told.error is not None:
                    raise told.error.again()
        finally:
            link.core.operations.abandon(told)

    async def aclose(self) -> None:
        """Close the connection. What is open fails with ClientClosedError, on the server too."""
        try:
            await self.followers.aclose()
            if self._is_first:
                for client in list(self._elsewhere.values()):
                    await client.aclose()
        finally:
            await self.connections.aclose()

    def __await__(self) -> Generator[None, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self.connections.link is None:
            await self.connections.connect()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
