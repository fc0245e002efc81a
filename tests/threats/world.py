"""A server with something of everything, both of its doors, and a request that nothing may change.

The model's ids are bytes, and what it answers is known without it: see ``tests.fakes``.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from msgspec import inspect
from wkvm_protocol.messages import ServerMessage, StateBytesEnd, StateChunk, StateCredit

from tests.fakes import fake_continuation
from tests.gateway.harness import Running
from tests.gateway.stateful import TallModel, states_running
from tests.server.harness import RawClient
from tests.threats.walk import Samples
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.gateway.calls import Route
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.routes import ROUTES
from wkvm.gateway.sglang.bodies import SamplingBody

VOCAB_SIZE = 256
MODEL = "fake"
FEATURES = ("states", "grammar", "score", "embed", "prefix", "watch")
CONTROL = (5, 6, 7)
FULL = frozenset({503, 507, 529})
"""That there is no room now is no fault; 529 is Anthropic's word for 503."""
N_BESIDE = 7

SAMPLES = Samples(
    by_name={
        "action": "erase",
        "allowed_token_ids": None,
        "conversation": None,
        "ids": [1, 2],
        "input": "hi",
        "logit_bias{}": "1",
        "items": [{"type": "message", "role": "user", "content": "hi"}],
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "hi"}],
        "model": MODEL,
        "name": "made",
        "names": ["made"],
        "operation": "scale",
        "other": "beta",
        "parameters": {"factor": 0.5},
        "prompt": "hi",
        "role": "user",
    },
    inside={"sampling_params": SamplingBody},
)
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/completion"): {"prompt": "hi", "n_predict": 1},
    ("POST", "/generate"): {"text": "hi", "sampling_params": {"max_new_tokens": 1}},
    ("POST", "/slots/{id}"): {"filename": "made"},
    ("POST", "/tokenize"): {"prompt": "hi"},
    ("PATCH", "/v1/states/{ref}"): {"tags": {"a": "b"}},
    ("POST", "/v1/chat/completions"): {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
    },
    ("POST", "/v1/completions"): {"model": MODEL, "prompt": "hi", "max_tokens": 1},
    ("POST", "/v1/embeddings"): {"model": MODEL, "input": "hi"},
    ("POST", "/v1/generate"): {"ids": [1, 2], "max_tokens": 1},
    ("POST", "/v1/responses"): {"model": MODEL, "input": "hi", "max_output_tokens": 1},
    ("POST", "/v1/responses/input_tokens"): {"model": MODEL, "input": "hi"},
    ("POST", "/v1/sessions"): {"ids": [1, 2]},
    ("POST", "/v1/sessions/{id}/append"): {"ids": [1]},
    ("POST", "/v1/sessions/{id}/generate"): {"ids": [1], "max_tokens": 1},
    ("POST", "/v1/states"): {"name": "made", "ids": [1, 2]},
    ("POST", "/v1/states/{ref}/mutate"): {"operation": "scale", "parameters": {"factor": 0.5}},
    ("POST", "/v1/states/{ref}/rollback"): {"version": 1},
    ("POST", "/v1/stream"): {"ids": [1, 2], "max_tokens": 1},
    ("POST", "/v1/submit"): {"ids": [1, 2], "max_tokens": 1},
}
"""What a body needs besides the fields that its type says it needs."""
EXCLUDED: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("POST", "/generate"): {"input_ids": ("text",)},
    ("POST", "/tokenize"): {"messages": ("prompt",), "content": ("prompt",)},
    ("POST", "/v1/sessions"): {"text": ("ids",), "messages": ("ids",)},
    ("POST", "/v1/sessions/{id}/append"): {"text": ("ids",), "messages": ("ids",)},
    ("POST", "/v1/sessions/{id}/generate"): {"text": ("ids",), "messages": ("ids",)},
    ("POST", "/v1/states"): {"text": ("ids",), "messages": ("ids",)},
    ("POST", "/v1/states/{ref}/rollback"): {"position": ("version",)},
    ("PATCH", "/v1/states/{ref}"): {"name": ("tags",), "expires_in_s": ("tags",)},
}
"""What is left out of that where a field is tried which excludes it."""

NEVER_SAMPLE = {"/v1/responses/input_tokens"}
"""Routes that take the bodies of others, and read of them what the prompt is made of alone."""
QUERIES = {"/slots/{id}": {"action": "save"}}
"""What a path needs besides."""

NUMBERS = count()
"""Of names that are not taken yet."""
_NAMED = re.compile(r"(\w+)(?=$|[:.\[])")
_VARIABLE = re.compile(r"\{(\w+)(?::[^{}]*)?\}")


@dataclass
class Answer:
    """What came of a request over HTTP.

    Attributes:
        body: its JSON, or its text.
    """

    status: int
    body: Any

    @property
    def error(self) -> Any:
        """The error in it, if it is one, also where a stream told it."""
        if isinstance(self.body, dict) and "error" in self.body:
            return self.body["error"]
        if isinstance(self.body, str):
            for line in self.body.splitlines():
                if line.startswith("data: {") and "error" in (told := json.loads(line[6:])):
                    return told["error"]
        return None

    @property
    def field(self) -> str | None:
        """The outermost field that the error names, in its ``param`` or in its message."""
        error = self.error
        if not isinstance(error, dict):
            return None
        named = _NAMED.match(error.get("param") or error["message"])
        return None if named is None else named[1]


@dataclass
class World:
    """See the module.

    Attributes:
        names: of what the variable of a path stands for, by the path's beginning.
    """

    running: Running
    http: aiohttp.ClientSession
    control: RawClient
    names: dict[str, str] = field(default_factory=dict[str, str])
    clients: list[RawClient] = field(default_factory=list[RawClient])
    at_end: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    n_checked: int = 0

    # --- HTTP ---

    async def ask(self, method: str, path: str, **how: Any) -> Answer:
        """Ask a route."""
        async with self.http.request(method, path, **how) as response:
            data = await response.read()
            status = response.status
        try:
            return Answer(status, json.loads(data))
        except ValueError:
            return Answer(status, data.decode(errors="replace"))

    def url(self, route: Route) -> str:
        """The path of a route, with something that is there in the place of its variable."""
        top = next((top for top in self.names if route.path.startswith(top)), "")
        return _VARIABLE.sub(lambda _: quote(self.names[top]), route.path)

    async def send(self, route: Route, body: Any = None, **how: Any) -> Answer:
        """Ask a route for what a body says."""
        if body is not None:
            how["data"] = json.dumps(body)
            how.setdefault("headers", {"Content-Type": "application/json"})
        if route.path in QUERIES:
            how.setdefault("params", QUERIES[route.path])
        return await self.ask(route.method, self.url(route), **how)

    async def fill(self) -> None:
        """Make something of everything, as far as it is not there."""
        for name in ("alpha", "beta", "gamma", "llama-slot-0"):
            if (await self.ask("GET", f"/v1/states/{name}")).status != 200:
                made = await self.ask("POST", "/v1/states", json={"name": name, "ids": [1, 2, 3]})
                assert made.status == 201, made
        self.names |= {"/v1/states": "alpha", "/v1/sessions": "gamma", "/slots": "0"}
        self.names |= {"/v1/models": MODEL, "/assets": "none.js"}
        if "/v1/responses" not in self.names:
            short = {"model": MODEL, "input": "hi", "max_output_tokens": 1}
            made = await self.ask("POST", "/v1/responses", json=short)
            self.names["/v1/responses"] = made.body["id"]
            made = await self.ask("POST", "/v1/conversations", json={})
            self.names["/v1/conversations"] = made.body["id"]
            made = await self.ask("POST", "/v1/submit", json={"ids": [1], "max_tokens": 1})
            self.names["/v1/status"] = made.body["id"]

    # --- the binary protocol ---

    async def client(self) -> RawClient:
        """An open connection that has agreed on everything."""
        sock = await self.running.server.connect_local(is_trusted=False)
        client = RawClient(*await asyncio.open_unix_connection(sock=sock))
        hello = await client.hello(features=FEATURES)
        assert set(hello.features) == set(FEATURES)
        self.clients.append(client)
        return client

    # --- what nothing may change ---

    async def check(self) -> None:
        """A request over each door gets what the model says, to the bit."""
        self.n_checked += 1
        expected = fake_continuation(CONTROL, 3, VOCAB_SIZE)
        answer = await self.control.generate(CONTROL, max_tokens=3)
        assert answer.ids == {0: expected}
        if self.n_checked % 4 == 0:
            body = {"ids": CONTROL, "max_tokens": 3, "temperature": 0}
            told = await self.ask("POST", "/v1/generate", json=body)
            assert told.body["choices"][0]["ids"] == expected

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """While this lasts seven requests always run, and each gets what it gets alone."""
        is_over = False
        n_done = 0

        async def go_on(index: int) -> None:
            nonlocal n_done
            client = await self.client()
            prompt = (index, 1, 2)
            expected = fake_continuation(prompt, 16, VOCAB_SIZE)
            while not is_over:
                answer = await client.generate(prompt, max_tokens=16)
                assert answer.ids == {0: expected}
                n_done += 1
            await client.close()

        async with asyncio.TaskGroup() as group:
            for index in range(N_BESIDE):
                group.create_task(go_on(index))
            yield
            is_over = True
        assert n_done >= N_BESIDE


def with_bodies() -> Iterator[tuple[Route, type]]:
    """Every route that takes JSON, with the type of what it takes."""
    for route in ROUTES:
        for body in route.doc.bodies if route.doc is not None else ():
            yield route, body


def body_of(route: Route, kind: Any, /, **but: Any) -> dict[str, Any]:
    """A body that a route takes, but for what is put into it."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    key = (route.method, route.path)
    body: dict[str, Any] = SAMPLES.of_struct(info) | NEEDED.get(key, {})
    if "name" in body:
        body["name"] = f"made{next(NUMBERS)}"
    if "names" in body:
        body["names"] = [f"made{next(NUMBERS)}"]
    for name in but:
        for excluded in EXCLUDED.get(key, {}).get(name, ()):
            body.pop(excluded, None)
    return body | but


@asynccontextmanager
async def world_running(
    *, max_model_len: int | None = None, n_kept: int = 100_000
) -> AsyncIterator[World]:
    """A server with a byte for each id and grammars over these.

    Args:
        n_kept: states, and submitted requests, that there is room for: by default, for everybody.
    """
    with tempfile.TemporaryDirectory(prefix="wkvm") as folder:
        grammars = GrammarCompiler([bytes([one]) for one in range(256)], vocab_size=VOCAB_SIZE)
        config = EngineConfig(n_slots=16, device="cpu", max_model_len=max_model_len)
        engine = Engine(TallModel(), config, served_name=MODEL, grammars=grammars)
        gateway = GatewayConfig(max_submitted=n_kept)
        async with states_running(
            Path(folder), engine, config=gateway, max_states=n_kept
        ) as running:
            sock = await running.server.connect_local(is_trusted=False)
            control = RawClient(*await asyncio.open_unix_connection(sock=sock))
            await control.hello(features=FEATURES)
            world = World(running, running.http, control)
            world.clients.append(control)
            await world.fill()
            try:
                yield world
            finally:
                for client in world.clients:
                    client.abort()
                for close in world.at_end:
                    close()


def is_close(message: ServerMessage) -> bool:
    """Whether a message is of bytes that go with others."""
    return isinstance(message, StateChunk | StateCredit | StateBytesEnd)
