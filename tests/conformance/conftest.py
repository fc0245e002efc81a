"""Both clients against a server, over every kind of address."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.fakes import FakeModel
from tests.gateway.bridge import over_websocket
from tests.gateway.harness import gateway_over
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.server.serve import Server

VOCAB_SIZE = 64


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    del config, item
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Rig:
    """A server with both doors and few slots."""

    server: Server
    engine_loop: EngineLoop


@pytest.fixture
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    path = tmp_path_factory.mktemp("server") / "s"
    engine = Engine(
        FakeModel(vocab_size=VOCAB_SIZE, eos_ids=(0,)),
        EngineConfig(n_slots=4, max_queue=16, max_model_len=3000, max_num_batched_tokens=256),
    )
    loop = EngineLoop(engine)
    server = Server(loop, ServerConfig(binary_port=0, binary_uds=str(path)))
    stepping = asyncio.create_task(loop.run())
    await server.start()
    yield Rig(server, loop)
    await server.close()
    loop.close()
    await stepping


DOORS = ("tcp", "unix", "pair", "websocket")
WAYS = [(driver, door) for driver in (AioDriver, BlockingDriver) for door in DOORS]
WAYS.append((AioDriver, "memory"))
"""Which clients go through which doors. A pipe in memory is for those of the same event loop."""


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].__name__}-{way[1]}")
def way(request: pytest.FixtureRequest) -> tuple[type[AioDriver] | type[BlockingDriver], str]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def door(way: tuple[object, str]) -> str:
    return way[1]


@pytest.fixture
async def driver(
    way: tuple[type[AioDriver] | type[BlockingDriver], str], rig: Rig
) -> AsyncIterator[Driver]:
    kind, door = way
    driver: Driver = kind()
    async with AsyncExitStack() as stack:
        if isinstance(driver, AioDriver) and door == "memory":
            await driver.over(rig.server.attach)
        elif door == "pair":
            await driver.from_socket(await rig.server.connect_local())
        elif door == "websocket":
            running = await stack.enter_async_context(gateway_over(rig.server, rig.engine_loop))
            await driver.from_socket(await stack.enter_async_context(over_websocket(running.http)))
        else:
            (address,) = [one for one in rig.server.addresses if one.startswith(door)]
            await driver.connect(address)
        yield driver
        await driver.close()
