"""Nothing is done for who brings no key: each operation and each route, through every door."""

import ast
import asyncio
import math
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import pytest
from wkvm_protocol.codec import Codec
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import Error

import wkvm
from tests.cli.conftest import KEY, RunningServer, started, wkvm_command
from tests.server.harness import serving, tcp_config
from tests.server.test_auth import REQUESTS
from tests.soak import amount, seed, tell
from wkvm.core.api_keys import ApiKey
from wkvm.gateway.peers import ASK
from wkvm.gateway.routes import ROUTES
from wkvm.server.auth import Keyring

TIMEOUT_S = 60.0
OPEN = {"/health", "/ready", "/", "/assets/x", "/icon.svg"}
BAD_HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": ""},
    {"Authorization": f"Basic {KEY}"},
    {"Authorization": KEY},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": f"Bearer {KEY.upper()}"},
    {"X-Api-Key": "x" * 5000},
    {"Authorization": f"Bearer {KEY}", "X-Api-Key": f"{KEY}x"},
    {"Cookie": f"key={KEY}", "X-Wkvm-Secret": KEY, "X-Forwarded-For": "127.0.0.1"},
)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningServer]]:
    """Processes whose doors ask for the key: an engine, a gateway apart, and one with workers."""
    folder = tmp_path_factory.mktemp("doors")
    engine = [sys.executable, "-m", "tests.cli.engine_process", str(folder / "b"), "0", KEY]
    gateway = ("gateway", "--engine", f"unix://{folder / 'b'}", "--port", "0")
    with (
        started(engine) as served,
        started(wkvm_command(*gateway)) as apart,
        started(wkvm_command(*gateway, "--gateway-workers", "2")) as workers,
    ):
        yield {"serve": served, "gateway": apart, "workers": workers}


@asynccontextmanager
async def session(server: RunningServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without a key, whose calls have connections of their own: any worker may answer."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(force_close=True)
    url = next(one for one in server.ready_line.split() if one.startswith("http://"))
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as http:
        yield http


def calls() -> Iterator[tuple[str, str]]:
    """All routes, with each of their methods, and some that are none."""
    for route in ROUTES:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        yield route.method, path
        if route.method == "GET":
            yield "HEAD", path
    yield from (("POST", ASK), ("GET", "/none"), ("OPTIONS", "/v1/states"), ("DELETE", "/metrics"))


@pytest.mark.parametrize("kind", ["serve", "gateway", "workers"])
async def test_no_route_but_health_ready_and_the_console_is_answered_without_a_key(
    doors: dict[str, RunningServer], kind: str
) -> None:
    async with session(doors[kind]) as http:
        for method, path in calls():
            for headers in BAD_HEADERS if path.startswith("/v1/s") else BAD_HEADERS[:5]:
                given = {**headers, "Connection": "close"}
                async with http.request(method, path, data=b"{}", headers=given) as response:
                    told = await response.read()
                if path in OPEN:
                    assert response.status in (200, 503, 404), path
                else:
                    assert response.status == 401, (method, path, headers)
                    assert KEY.encode() not in told


@pytest.mark.parametrize("kind", ["serve", "gateway", "workers"])
async def test_every_route_is_there_for_who_has_the_key(
    doors: dict[str, RunningServer], kind: str
) -> None:
    """So that the refusals above are of the key, and not of the path."""
    async with session(doors[kind]) as http:
        for route in ROUTES:
            path = re.sub(r"\{[^}]*\}", "x", route.path)
            headers = {"Authorization": f"Bearer {KEY}"}
            async with http.request(route.method, path, data=b"[", headers=headers) as response:
                assert response.status not in (401, 403, 405), path


@pytest.mark.parametrize("kind", ["serve", "gateway", "workers"])
async def test_a_websocket_is_not_opened_without_a_key(
    doors: dict[str, RunningServer], kind: str
) -> None:
    async with session(doors[kind]) as http:
        for path in ("/v1/ws", "/v1/responses"):
            for headers in BAD_HEADERS:
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await http.ws_connect(path, protocols=["wkvm.v1"], headers=headers)
                assert refused.value.status == 401


@pytest.mark.parametrize("kind", ["serve", "gateway", "workers"])
async def test_a_wrong_key_in_hello_is_refused_on_a_websocket_too(
    doors: dict[str, RunningServer], kind: str
) -> None:
    """One that brings none has the key of the upgrade."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with session(doors[kind]) as http:
        for request in REQUESTS:
            async with http.ws_connect("/v1/ws", protocols=["wkvm.v1"], headers=headers) as socket:
                await socket.send_bytes(ClientConnection().send_hello(api_key=f"{KEY}x")[4:])
                await socket.send_bytes(msgspec.msgpack.encode(request))
                error = Codec(Error).decode((await socket.receive()).data)
            assert error.code == ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("key", ["", f"{KEY}x"])
async def test_no_operation_is_carried_out_on_a_unix_socket_without_a_key(
    doors: dict[str, RunningServer], key: str
) -> None:
    path = next(one for one in doors["serve"].ready_line.split() if one.startswith("unix://"))
    for request in REQUESTS:
        frames = (
            ClientConnection().send_hello(api_key=key)
            + encode_frame(msgspec.msgpack.encode(request), 2**16)
            for _ in range(1)
        )
        reader, writer = await asyncio.open_unix_connection(path.removeprefix("unix://"))
        writer.write(b"".join(frames))
        wire = ClientConnection()
        wire.send_hello()
        (error,) = wire.receive_data(await reader.read())
        assert isinstance(error, Error)
        assert error.code == ErrorCode.UNAUTHENTICATED, request
        writer.close()


async def test_a_key_of_another_tenant_in_hello_is_who_that_connection_is() -> None:
    """And not who opened the socket: what came before Hello counts for nothing."""
    keys = (ApiKey.of("one" * 6, "anna"), ApiKey.of("two" * 6, "bert"))
    async with serving(tcp_config(api_keys=keys), control_key="one" * 6) as rig:
        client = await rig.connect()
        assert (await client.hello("two" * 6, ["tenant"])).tenant == "bert"


def test_nothing_secret_is_compared_by_equality() -> None:
    """In all of wkvm: a comparison whose time depends on where they differ tells the secret."""
    secret = re.compile(r"api_key|secret|password")
    found = list[str]()
    root = Path(next(iter(wkvm.__path__)))
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if secret.search(text) else ():
            if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                if any(secret.search(side) for side in sides):
                    found.append(f"{path.relative_to(root)}: {ast.unparse(node)}")
    assert found == []


def test_how_long_a_key_takes_is_told() -> None:
    """Keys that begin as the right one and keys that do not: a figure, since noise may be in it."""
    keyring, rng = Keyring([ApiKey.of(KEY, "anna")]), random.Random(seed())
    near, far = KEY[:-1] + "#", "#" * len(KEY)
    times: dict[str, list[int]] = {near: [], far: []}
    n = amount(500, 20_000)
    for _ in range(n):
        key = rng.choice((near, far))
        began_at = time.perf_counter_ns()
        assert keyring.tenant_of(key) is None
        times[key].append(time.perf_counter_ns() - began_at)
    p = mann_whitney(times[near], times[far])
    tell(11, "wrong keys, with the right beginning or not", n, "keys", p_of_equal_times=p)


def mann_whitney(one: list[int], other: list[int]) -> float:
    """The probability of ranks as different as these if both come of one distribution."""
    both = np.array([*one, *other])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, m = len(one), len(other)
    u = ranks[:n].sum() - n * (n + 1) / 2
    ties = ((counts**3 - counts).sum()) / ((n + m) * (n + m - 1))
    deviation = math.sqrt(n * m / 12 * (n + m + 1 - ties))
    return math.erfc(abs(u - n * m / 2) / deviation / math.sqrt(2))
