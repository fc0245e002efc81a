"""Responses of the bundled model, and of scripts, in the test's own process."""

import dataclasses
import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.gateway.conftest import BUNDLED
from tests.gateway.harness import Running
from tests.gateway.stateful import ask, states_running
from wkvm.assembly.engine import build_engine
from wkvm.assembly.texts import load_texts
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.text import load_tokenizer
from wkvm.gateway.texts import Texts

MODEL = "tales"


@functools.cache
def bundled_texts() -> Texts:
    return load_texts(BUNDLED, load_tokenizer(BUNDLED), default_max_tokens=64)


def bundled_engine() -> Engine:
    config = EngineConfig(n_slots=8)
    return build_engine(BUNDLED, config, served_name=MODEL, takes_grammars=True, fits_slots=False)


@asynccontextmanager
async def tales_running(folder: Path, **settings: Any) -> AsyncIterator[Running]:
    """Serve the bundled model, its states and what is kept of responses in a folder.

    Args:
        settings: of the gateway; ``keys`` and ``max_states`` as of ``states_running``.
    """
    others = {name: settings.pop(name) for name in ("keys", "max_states") if name in settings}
    config = GatewayConfig(responses_dir=str(folder / "responses"))
    config = dataclasses.replace(config, **settings)
    async with states_running(
        folder, bundled_engine(), texts=bundled_texts(), config=config, **others
    ) as running:
        yield running


async def respond(running: Running, input: Any, **body: Any) -> Any:  # noqa: A002
    """A response that has to be made."""
    status, answer = await ask_for(running, input, **body)
    assert status == 200, answer
    return answer


async def ask_for(running: Running, input: Any, **body: Any) -> tuple[int, Any]:  # noqa: A002
    """The status and the JSON of a response."""
    headers = body.pop("headers", {})
    body = {"model": MODEL, "input": input, "temperature": 0, "max_output_tokens": 24, **body}
    body = {name: value for name, value in body.items() if value is not ...}
    return await ask(running, "POST", "/v1/responses", body, **headers)


async def refused(running: Running, input: Any, **body: Any) -> Any:  # noqa: A002
    """The error of a response that has to be refused with 400."""
    status, answer = await ask_for(running, input, **body)
    assert status == 400, answer
    return answer["error"]


async def events_of(running: Running, method: str, path: str, body: Any = None) -> list[Any]:
    """The events of a stream that has to end with [DONE]."""
    async with running.http.request(method, path, json=body) as response:
        data = await response.text()
        assert response.status == 200, data
    *events, done, rest = data.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    found = list[Any]()
    for event in events:
        name, line = event.split("\n")
        told = json.loads(line.removeprefix("data: "))
        assert name == f"event: {told['type']}"
        found.append(told)
    return found


async def stream(running: Running, input: Any, **body: Any) -> list[Any]:  # noqa: A002
    """The events of a streamed response."""
    body = {"model": MODEL, "input": input, "temperature": 0, "max_output_tokens": 24, **body}
    return await events_of(running, "POST", "/v1/responses", {**body, "stream": True})


def text_of(response: Any) -> str:
    """What a response says."""
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def cached(response: Any) -> int:
    """How many tokens were not computed for a response."""
    n_cached: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return n_cached
