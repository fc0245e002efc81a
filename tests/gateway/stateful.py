"""A gateway in front of an engine with states, in the test's own process."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes import FakeModel
from tests.gateway.harness import Running, gateway_over
from wkvm.assembly.states import OpenStates
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.core.state_config import StateConfig
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.texts import Texts
from wkvm.server.serve import Server


class TallModel(FakeModel):
    """The fake model, over bytes, with a matrix in its state that mutations can change."""

    def __init__(self) -> None:
        super().__init__(vocab_size=256)
        matrix = TensorSpec("rwkv7.wkv", (2, 1, 2, 2), "float32")
        self._layout = StateLayout((*self._layout.tensors, matrix))


@asynccontextmanager
async def states_running(
    folder: Path,
    engine: Engine | None = None,
    *,
    keys: Sequence[ApiKey] = (),
    texts: Texts | None = None,
    config: GatewayConfig | None = None,
    max_states: int = 1000,
) -> AsyncIterator[Running]:
    """Serve an engine whose states are in a folder, by default a fake one whose ids are bytes."""
    engine = engine or Engine(TallModel(), EngineConfig(n_slots=8))
    loop = EngineLoop(engine)
    states = StateConfig(folder=str(folder / "states"), handles_per_tenant=max_states)
    service = OpenStates(engine, states).serve(loop)
    server_config = dataclasses.replace(ServerConfig(binary_port=None), api_keys=tuple(keys))
    server = Server(service, server_config, service)
    stepping = asyncio.create_task(loop.run())
    try:
        async with gateway_over(server, loop, texts, config) as running:
            yield running
    finally:
        loop.close()
        await asyncio.wait([stepping])
        await server.close()
        with contextlib.suppress(RuntimeError):
            await service.close()


async def ask(
    running: Running, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    async with running.http.request(method, path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def make(
    running: Running, name: str = "tale", *, headers: Mapping[str, str] | None = None, **body: Any
) -> Any:
    """A state that has to be made, of three ids if nothing else is said."""
    if not {"ids", "text", "messages"} & body.keys():
        body["ids"] = [1, 2, 3]
    status, state = await ask(
        running, "POST", "/v1/states", {"name": name, **body}, **(headers or {})
    )
    assert status == 201, state
    return state
