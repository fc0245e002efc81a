"""One connection for each key, and an engine that is started anew in another way."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NoReturn

import pytest
from wkvm_client import aio
from wkvm_client.errors import BadPeerError, ConnectFailedError, UnauthenticatedError

from tests.fakes import FakeModel
from tests.server.harness import Rig, serving
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.engines import Engines, Streams

KEYS = (ApiKey.of("anna's", "anna"), ApiKey.of("bert's", "bert"))


class Site:
    """A place at which one engine after the other is started.

    Attributes:
        rig: the one that is there; None for none.
        n_connects: how often a connection was asked for.
    """

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.rig: Rig | None = None
        self.n_connects = 0

    async def start(self, *keys: ApiKey, tokenizer_digest: str = "") -> None:
        """End the engine that is there, and start another one."""
        await self.stop()
        config = ServerConfig(binary_port=None, api_keys=keys)
        engine = Engine(FakeModel(), EngineConfig(n_slots=4), tokenizer_digest=tokenizer_digest)
        rig = serving(config, engine=engine, control_key=None)
        self.rig = await self._stack.enter_async_context(rig)

    async def stop(self) -> None:
        """End the engine that is there."""
        if self.rig is not None:
            await self.rig.server.close()
            self.rig = None
            for _ in range(3):
                await asyncio.sleep(0)  # until the other ends know

    async def connect(self, key: str | None) -> aio.Client:
        """As the command line makes them for an engine of the same process."""
        self.n_connects += 1
        rig = self.rig
        if rig is None:
            raise ConnectFailedError("nobody is there")
        return await aio.over(
            lambda protocol: rig.server.attach(protocol, is_trusted=key is None), api_key=key
        )


async def no_dial() -> Streams:
    raise AssertionError("nobody dials here")


@asynccontextmanager
async def site(*keys: ApiKey) -> AsyncIterator[tuple[Site, Engines]]:
    async with AsyncExitStack() as stack:
        site = Site(stack)
        await site.start(*keys)
        engines = Engines(site.connect, no_dial)
        await engines.open()
        try:
            yield site, engines
        finally:
            await engines.aclose()


async def test_each_key_has_one_connection_however_many_ask_at_once() -> None:
    async with site(*KEYS) as (where, engines):
        before = where.n_connects
        clients = await asyncio.gather(
            *(engines.client(key) for key in ["anna's", "bert's", "anna's", "anna's"])
        )
        assert clients[0] is clients[2] is clients[3] is not clients[1]
        assert where.n_connects == before + 2


async def test_who_gives_up_waiting_for_a_connection_leaves_it_to_the_others() -> None:
    async with site(*KEYS) as (_, engines):
        impatient = asyncio.create_task(engines.client("anna's"))
        patient = asyncio.create_task(engines.client("anna's"))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).is_connected


async def test_a_wrong_key_whose_client_has_left_is_no_noise_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site(*KEYS) as (where, engines):
        before = where.n_connects
        impatient = asyncio.create_task(engines.client("wrong"))
        while where.n_connects == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        with pytest.raises(UnauthenticatedError):
            await engines.client("another one")  # made after it
        gc.collect()
    assert caplog.records == []


async def test_a_connection_that_was_lost_is_made_anew() -> None:
    async with site(*KEYS) as (where, engines):
        first = await engines.client("anna's")
        await where.start(*KEYS)
        second = await engines.client("anna's")
        assert second is not first
        assert second.is_connected


async def test_an_engine_that_asks_for_keys_from_now_on_refuses_who_has_none() -> None:
    async with site() as (where, engines):
        assert await engines.client("") is await engines.client("any word")
        await where.start(*KEYS)
        for key in ("", "any word"):
            with pytest.raises(UnauthenticatedError):
                await engines.client(key)
        assert (await engines.client("anna's")).is_connected
        assert engines.needs_key


async def test_an_engine_that_asks_for_keys_no_more_lets_everybody_in() -> None:
    async with site(*KEYS) as (where, engines):
        with pytest.raises(UnauthenticatedError):
            await engines.client("")
        await where.start()
        assert (await engines.client("")).is_connected
        assert not engines.needs_key


async def test_without_an_engine_who_has_no_key_is_told_no_more_than_before() -> None:
    async with site(*KEYS) as (where, engines):
        await engines.client("anna's")
        await where.stop()
        with pytest.raises(UnauthenticatedError):
            await engines.client("")
        with pytest.raises(ConnectFailedError):
            await engines.client("anna's")
        assert engines.has_let_in("anna's")
        assert not engines.has_let_in("bert's")


async def test_an_engine_with_another_tokenizer_is_refused() -> None:
    async with site() as (where, engines):
        await where.start(tokenizer_digest="0" * 64)
        with pytest.raises(BadPeerError, match="another model"):
            await engines.client("")


async def test_wrong_keys_leave_nothing_behind() -> None:
    async with site(*KEYS) as (where, engines):
        assert where.rig is not None
        before = where.rig.server.n_connections
        for n in range(50):
            with pytest.raises(UnauthenticatedError):
                await engines.client(f"wrong {n}")
        await where.rig.assert_idle(n_connections=before)


async def test_once_closed_nobody_is_connected() -> None:
    async def connect(key: str | None) -> NoReturn:
        raise AssertionError(key)

    engines = Engines(connect, no_dial)
    await engines.aclose()
    with pytest.raises(Exception, match="closing"):
        await engines.open()
