"""The server that the tests of a module try their values on."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.threats.world import World, world_running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with world_running() as world:
        yield world
