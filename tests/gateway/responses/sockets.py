"""A client's side of responses over a WebSocket, with a model that speaks small letters."""

import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType

from tests.gateway.harness import Running
from tests.gateway.stateful import states_running
from wkvm.engine.engine import Engine
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts

PATH = "/v1/responses"
LETTERS = list(b"abcdefghijklmnopqrstuvwxyz")
HELLO: dict[str, Any] = {
    "type": "response.create",
    "model": "fake",
    "input": "Hello",
    "temperature": 0,
    "max_output_tokens": 8,
    "allowed_token_ids": LETTERS,
    "ignore_eos": True,
    "store": False,
}
"""What is asked for, if nothing else is said: eight letters that depend on all that came before."""
FINAL = ("response.completed", "response.incomplete", "response.failed", "error")

Event = dict[str, Any]

TEXTS = Texts(
    ByteTokenizer(),
    ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    ),
)
"""Ids are bytes; what an answer was is written as it was said."""


def serving(
    folder: Path, engine: Engine | None = None, **settings: Any
) -> AbstractAsyncContextManager[Running]:
    """A gateway in front of an engine with states; as ``states_running``."""
    return states_running(folder, engine, texts=TEXTS, **settings)


@dataclasses.dataclass
class Peer:
    """A client's side.

    Attributes:
        heard: events that were passed over.
    """

    socket: aiohttp.ClientWebSocketResponse
    heard: list[Event] = dataclasses.field(default_factory=list[Event])

    async def say(self, **fields: Any) -> None:
        """Ask for a response."""
        body = {name: value for name, value in (HELLO | fields).items() if value is not ...}
        await self.socket.send_str(json.dumps(body))

    async def steer(self, response_id: str, given: Any, **fields: Any) -> None:
        """Put something in."""
        body = {"type": "response.steer", "previous_response_id": response_id, "input": given}
        await self.socket.send_str(json.dumps(body | fields))

    async def hear(self) -> Event:
        """The next event."""
        message = await self.socket.receive()
        assert message.type is WSMsgType.TEXT, message
        event: Event = json.loads(message.data)
        self.heard.append(event)
        return event

    async def until(self, *kinds: str, lane: str | None = None) -> Event:
        """The next event of one of these types, of a lane."""
        while True:
            event = await self.hear()
            if event["type"] in kinds and event.get("stream_id") == lane:
                return event

    async def end(self, lane: str | None = None) -> Event:
        """The last event of the response that is being made in a lane."""
        return await self.until(*FINAL, lane=lane)

    async def made(self, **fields: Any) -> dict[str, Any]:
        """A response that has to be made."""
        await self.say(**fields)
        event = await self.end(fields.get("stream_id"))
        assert event["type"] in ("response.completed", "response.incomplete"), event
        response: dict[str, Any] = event["response"]
        return response

    async def refused(self, **fields: Any) -> tuple[int, str | None, str | None]:
        """The status, the code and the param of an error."""
        await self.say(**fields)
        return of_error(await self.end(fields.get("stream_id")))

    async def closed(self) -> int | None:
        """The code with which the other side closes, whatever comes before."""
        while (await self.socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED):
            pass
        return self.socket.close_code


def of_error(event: Event) -> tuple[int, str | None, str | None]:
    """What an event says that has to be an error."""
    assert event["type"] == "error", event
    assert event["error"]["message"]
    return event["status"], event["error"]["code"], event["error"]["param"]


NOT_FOUND = (400, "previous_response_not_found", "previous_response_id")


def text_of(response: Mapping[str, Any]) -> str:
    """What a response says."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def n_cached(response: Mapping[str, Any]) -> int:
    cached: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return cached


def n_read(response: Mapping[str, Any]) -> int:
    """How many tokens the state at the end of an answer has read: its last one is fed later."""
    n_tokens: int = response["usage"]["total_tokens"]
    return n_tokens - 1


@asynccontextmanager
async def joined(running: Running, *protocols: str, **headers: str) -> AsyncIterator[Peer]:
    async with running.http.ws_connect(
        PATH, protocols=protocols, headers=headers, max_msg_size=0
    ) as socket:
        yield Peer(socket)


async def n_states(running: Running, headers: Mapping[str, str] | None = None) -> int:
    """How many states there are."""
    async with running.http.get("/v1/states", headers=headers) as response:
        return len((await response.json())["data"])
