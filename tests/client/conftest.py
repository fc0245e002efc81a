import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.client.fake_server import FakeServer


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FakeServer]:
    server = FakeServer(f"unix://{tmp_path}/wkvm.sock")
    await server.start()
    yield server
    await server.close()


@pytest.fixture(params=[AioDriver, BlockingDriver], ids=["aio", "blocking"])
async def driver(request: pytest.FixtureRequest, server: FakeServer) -> AsyncIterator[Driver]:
    driver: Driver = request.param()
    yield driver
    # a call that still waits, because its test failed, ends with its server
    await server.close()
    await driver.close()
