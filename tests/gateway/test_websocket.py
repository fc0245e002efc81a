"""``/v1/ws``: the binary protocol over WebSocket, beyond what the script of requests shows."""

import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType
from wkvm_protocol.codec import Codec
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import HEADER_BYTES
from wkvm_protocol.messages import (
    FROM_CLIENT,
    Cancel,
    ClientMessage,
    End,
    Error,
    Failed,
    Generate,
    GenerateOn,
    GoAway,
    Hello,
    HelloOk,
    Logprobs,
    Ping,
    Pong,
    Sampling,
    ServerMessage,
    StateGet,
    Stats,
    StatsReply,
    Tokens,
    pack_ids,
)

from tests.fakes import fake_continuation
from tests.gateway.harness import ANNA, KEYS, Running, gateway_running, until_stats
from tests.gateway.raw import upgraded
from wkvm.core.config import ServerConfig
from wkvm.gateway.config import GatewayConfig

V1 = "wkvm.v1"
HELLO = Hello("wkvm", 1, 1)
CLIENT: Codec[ClientMessage] = Codec(Hello, *FROM_CLIENT)
SERVER: Codec[ServerMessage] = Codec(
    HelloOk, Ping, Pong, GoAway, Error, Tokens, Logprobs, End, Failed, StatsReply
)
LONG = Generate(1, pack_ids([1, 2]), Sampling(temperature=0, max_tokens=10**6, ignore_eos=True))


def _illegal() -> dict[str, Any]:
    """Recorded messages that a server must refuse. Lengths that lie have no place here."""
    folder = Path(__file__).parents[2] / "protocol" / "vectors"
    found = dict[str, Any]()
    for path in sorted(folder.glob("illegal-*.json")):
        vector = json.loads(path.read_text(encoding="utf-8"))
        frame = bytes.fromhex(vector["frame"])
        is_whole = int.from_bytes(frame[:HEADER_BYTES], "little") == len(frame) - HEADER_BYTES
        if vector["sender"] == "client" and is_whole:
            found[path.stem] = vector
    return found


ILLEGAL = _illegal()


@dataclasses.dataclass
class Peer:
    """A client's side of a WebSocket."""

    socket: aiohttp.ClientWebSocketResponse

    async def say(self, message: ClientMessage) -> None:
        await self.socket.send_bytes(CLIENT.encode(message))

    async def hear(self) -> ServerMessage:
        return SERVER.decode(await self.socket.receive_bytes())

    async def hear_until(self, kind: type[ServerMessage]) -> ServerMessage:
        while not isinstance(message := await self.hear(), kind):
            pass
        return message

    async def closed(self) -> int | None:
        """The code with which the other side closes, whatever comes before."""
        while (await self.socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED):
            pass
        return self.socket.close_code


@asynccontextmanager
async def joined(
    running: Running, *protocols: str, hello: Hello | None = None, **headers: str
) -> AsyncIterator[Peer]:
    async with running.http.ws_connect(
        "/v1/ws", protocols=[V1, *protocols], headers=headers, max_msg_size=0
    ) as socket:
        peer = Peer(socket)
        if hello is not None:
            await peer.say(hello)
        yield peer


async def refusal(running: Running, *protocols: str, **headers: str) -> int:
    """The status of an upgrade that is refused."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with running.http.ws_connect("/v1/ws", protocols=protocols, headers=headers):
            pass
    return caught.value.status


def key_protocol(key: str) -> str:
    return "wkvm.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


async def test_a_message_is_a_payload_without_a_length() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        assert isinstance(await peer.hear(), HelloOk)
        assert peer.socket.protocol == V1
        sampling = Sampling(temperature=0, max_tokens=3)
        await peer.say(Generate(7, pack_ids([1, 2]), sampling))
        ids = b""
        while isinstance(message := await peer.hear(), Tokens):
            ids += message.ids
        assert isinstance(message, End)
        assert ids == pack_ids(fake_continuation([1, 2], 3, 256))


async def test_messages_are_not_compressed() -> None:
    async with (
        gateway_running() as running,
        running.http.ws_connect("/v1/ws", protocols=[V1], compress=15) as socket,
    ):
        assert not socket.compress


# --- who may come ---------------------------------------------------------------------------


@pytest.mark.parametrize("protocols", [(), ("wkvm.v2",), ("wkvm.key.YQ",)])
async def test_the_subprotocol_has_to_be_offered(protocols: tuple[str, ...]) -> None:
    async with gateway_running() as running:
        assert await refusal(running, *protocols) == 400


async def test_what_is_no_upgrade_is_refused() -> None:
    async with (
        gateway_running() as running,
        running.http.get("/v1/ws", headers={"Sec-WebSocket-Protocol": V1}) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "upgrade_missing"


async def test_an_upgrade_needs_a_key_where_one_is_needed() -> None:
    async with gateway_running(keys=KEYS) as running:
        assert await refusal(running, V1) == 401
        assert await refusal(running, V1, Authorization="Bearer wrong") == 401
        assert await refusal(running, V1, key_protocol("wrong")) == 401
        assert await refusal(running, V1, "wkvm.key.!!") == 401


async def test_the_key_of_the_upgrade_is_the_key_of_the_connection() -> None:
    async with gateway_running(keys=KEYS) as running:
        async with joined(running, hello=HELLO, **ANNA) as peer:
            assert isinstance(await peer.hear(), HelloOk)
        async with joined(running, key_protocol("b" * 20), hello=HELLO) as peer:
            assert isinstance(await peer.hear(), HelloOk)


async def test_a_key_among_the_subprotocols_is_not_sent_back() -> None:
    async with (
        gateway_running(keys=KEYS) as running,
        running.http.ws_connect("/v1/ws", protocols=[key_protocol("a" * 20), V1]) as socket,
    ):
        assert socket.protocol == V1


async def test_a_key_in_the_hello_goes_before_that_of_the_upgrade() -> None:
    hello = msgspec.structs.replace(HELLO, api_key="wrong")
    async with gateway_running(keys=KEYS) as running, joined(running, hello=hello, **ANNA) as peer:
        error = await peer.hear()
        assert isinstance(error, Error)
        assert error.code == ErrorCode.UNAUTHENTICATED
        assert await peer.closed() == 1008


@pytest.mark.parametrize(
    ("origin", "host", "keys", "allowed", "status"),
    [
        ("http://evil.example", "localhost:8000", (), (), 403),
        ("http://evil.example", "localhost:8000", KEYS, (), 403),
        ("null", "localhost:8000", (), (), 403),
        ("http://localhost:3000", "localhost:8000", (), (), 403),
        ("http://localhost:bad", "localhost:8000", (), (), 403),
        ("http://evil.example:8000", "evil.example:8000", (), (), 403),
        ("http://evil.example:8000", "evil.example:8000", KEYS, (), 101),
        ("http://localhost:8000", "localhost:8000", (), (), 101),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", (), (), 101),
        ("http://[::1]:8000", "[::1]:8000", (), (), 101),
        ("http://LOCALHOST", "localhost", (), (), 101),
        ("https://localhost", "localhost:443", (), (), 101),
        ("https://chat.example", "localhost:8000", (), ("https://chat.example",), 101),
        ("https://other.example", "localhost:8000", (), ("https://chat.example",), 403),
        ("null", "localhost:8000", (), ("*",), 101),
    ],
)
async def test_a_page_from_elsewhere_is_refused(
    origin: str, host: str, keys: Any, allowed: tuple[str, ...], status: int
) -> None:
    config = GatewayConfig(allowed_origins=allowed)
    headers = {"Origin": origin, "Host": host, **(ANNA if keys else {})}
    async with gateway_running(keys=keys, config=config) as running:
        if status == 101:
            async with joined(running, hello=HELLO, **headers) as peer:
                assert isinstance(await peer.hear(), HelloOk)
        else:
            assert await refusal(running, V1, **headers) == status


async def test_while_the_server_drains_nobody_joins() -> None:
    async with gateway_running() as running:
        running.gateway.begin_drain()
        assert await refusal(running, V1) == 503


# --- limits ---------------------------------------------------------------------------------


async def test_text_is_no_message() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        await peer.socket.send_str("hello")
        assert await peer.closed() == 1003


LENGTHS = [
    (None, 65536, ErrorCode.PROTOCOL_VIOLATION, 1002),
    (None, 65537, ErrorCode.FRAME_TOO_LARGE, 1009),
    (100_000, 100_000, ErrorCode.PROTOCOL_VIOLATION, 1002),
    (100_000, 100_001, ErrorCode.FRAME_TOO_LARGE, 1009),
    (2**20, 2**20, ErrorCode.PROTOCOL_VIOLATION, 1002),
]
"""The limit that was agreed, if any; the length of a message; what it is answered by."""


@pytest.mark.parametrize(("limit", "n_bytes", "error", "code"), LENGTHS)
async def test_the_limits_on_frames_are_limits_on_messages(
    limit: int | None, n_bytes: int, error: ErrorCode, code: int
) -> None:
    async with gateway_running() as running, joined(running) as peer:
        if limit is not None:
            await peer.say(msgspec.structs.replace(HELLO, max_frame_bytes=limit))
            assert isinstance(await peer.hear(), HelloOk)
        await peer.socket.send_bytes(bytes(n_bytes))
        got = await peer.hear()
        assert isinstance(got, Error)
        assert got.code == error
        assert await peer.closed() == code


async def test_a_message_above_a_mebibyte_is_refused_before_it_is_there() -> None:
    async with gateway_running() as running:
        reader, writer = await upgraded(running.path, "/v1/ws", protocol="wkvm.v1")
        writer.write(bytes([0x82, 0xFF]) + (2**20 + 1).to_bytes(8))
        head = await reader.readexactly(4)
        assert (head[0], int.from_bytes(head[2:])) == (0x88, 1009)
        writer.close()


async def test_an_offer_above_a_mebibyte_is_lowered_to_it() -> None:
    hello = msgspec.structs.replace(HELLO, max_frame_bytes=2**24)
    config = ServerConfig(binary_port=None, max_frame_bytes=2**24)
    async with (
        gateway_running(server_config=config) as running,
        joined(running, hello=hello) as peer,
    ):
        answer = await peer.hear()
        assert isinstance(answer, HelloOk)
        assert answer.max_frame_bytes == 2**20


async def test_a_fragmented_message_is_one_message() -> None:
    async with gateway_running() as running:
        reader, writer = await upgraded(running.path, "/v1/ws", protocol="wkvm.v1")
        payload = CLIENT.encode(HELLO)
        writer.write(frame(payload[:4], opcode=2, fin=False) + frame(payload[4:], opcode=0))
        head = await reader.readexactly(4)
        assert head[0] == 0x82
        writer.close()


@pytest.mark.parametrize("payload", [b"", b"\x01", CLIENT.encode(Ping(1)), b"\x94\x01\x02"])
async def test_a_violation_is_answered_by_the_engines_error(payload: bytes) -> None:
    async with gateway_running() as running, joined(running) as peer:
        await peer.socket.send_bytes(payload)
        error = await peer.hear()
        assert isinstance(error, Error)
        assert error.code == ErrorCode.PROTOCOL_VIOLATION
        assert await peer.closed() == 1002


@pytest.mark.parametrize("name", ILLEGAL)
async def test_a_recorded_violation_is_one_here_too(name: str) -> None:
    vector = ILLEGAL[name]
    payload = bytes.fromhex(vector["frame"])[HEADER_BYTES:]
    async with gateway_running() as running, joined(running) as peer:
        if vector["state"] == "open":
            await peer.say(HELLO)
            assert isinstance(await peer.hear(), HelloOk)
            await peer.say(Generate(1, pack_ids([1]), Sampling(n=2, max_tokens=10**6)))
        await peer.socket.send_bytes(payload)
        error = await peer.hear_until(Error)
        assert isinstance(error, Error)
        assert error.code == vector["code"]
        assert await peer.closed() == 1002


@pytest.mark.timed(0.05)
async def test_who_says_no_hello_is_sent_away() -> None:
    config = ServerConfig(binary_port=None, auth_timeout_s=0.05)
    async with gateway_running(server_config=config) as running, joined(running) as peer:
        error = await peer.hear()
        assert isinstance(error, Error)
        assert error.code == ErrorCode.AUTH_TIMEOUT
        assert await peer.closed() == 1008


async def test_a_websocket_counts_as_a_connection_of_its_tenant() -> None:
    config = ServerConfig(binary_port=None, max_connections_per_tenant=2)
    async with (
        gateway_running(server_config=config) as running,
        joined(running, hello=HELLO) as one,
    ):
        assert isinstance(await one.hear(), HelloOk)
        async with joined(running, hello=HELLO) as other:
            error = await other.hear()
            assert isinstance(error, Error)
            assert error.code == ErrorCode.TOO_MANY_CONNECTIONS
            assert await other.closed() == 1013


async def test_pings_of_both_kinds_are_answered() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        assert isinstance(await peer.hear(), HelloOk)
        await peer.say(Ping(5))
        assert await peer.hear() == Pong(5)
        reader, writer = await upgraded(running.path, "/v1/ws", protocol="wkvm.v1")
        writer.write(frame(b"abc", opcode=9))
        assert await reader.readexactly(5) == b"\x8a\x03abc"
        writer.close()


@pytest.mark.timed(0.2)
async def test_who_does_not_read_is_held_up_and_then_cut_off() -> None:
    config = GatewayConfig(write_timeout_s=0.2)
    async with gateway_running(config=config) as running:
        reader, writer = await upgraded(running.path, "/v1/ws", protocol="wkvm.v1", limit=1)
        many = Generate(
            1, pack_ids([1]), Sampling(max_tokens=10**6, ignore_eos=True, logprobs=20, n=8)
        )
        writer.write(frame(CLIENT.encode(HELLO)) + frame(CLIENT.encode(many)))
        await until_stats(running, n_running=8)
        await until_stats(running, n_running=0)
        assert running.server.n_connections == 2
        writer.close()
        del reader


# --- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leave",
    [
        lambda peer: peer.socket.close(),
        lambda peer: asyncio.sleep(0, peer.socket._response.close()),
    ],
    ids=["closes", "vanishes"],
)
async def test_the_requests_of_a_client_that_is_gone_are_cancelled(
    leave: Callable[[Peer], Any],
) -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        await peer.say(LONG)
        await until_stats(running, n_running=1)
        await leave(peer)
        await until_stats(running, n_running=0)
        client = await running.gateway.engines.own()
        while (await client.stats())["n_connections"] != 2:
            pass


async def test_a_client_that_leaves_in_peace_has_its_last_ids() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        await peer.say(Generate(1, pack_ids([1, 2]), Sampling(max_tokens=30, ignore_eos=True)))
        await peer.say(GoAway())
        end = await peer.hear_until(End)
        assert isinstance(end, End)
        assert end.n_output == 30
        assert await peer.closed() == 1000


async def test_a_drain_is_announced_once_and_open_lanes_go_on() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        await peer.say(LONG)
        await until_stats(running, n_running=1)
        running.gateway.begin_drain()
        draining = asyncio.create_task(running.server.drain())
        await peer.hear_until(GoAway)
        await peer.say(Cancel(1))
        while not isinstance(message := await peer.hear(), End):
            assert not isinstance(message, GoAway)
        await draining
        closing = asyncio.create_task(running.server.close())
        assert await peer.closed() == 1012
        await closing


async def test_a_drain_ends_a_websocket_without_lanes_at_once() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        assert isinstance(await peer.hear(), HelloOk)
        running.gateway.begin_drain()
        assert isinstance(await peer.hear(), GoAway)
        assert await peer.closed() == 1012


async def test_a_drain_ends_a_websocket_with_its_last_lane() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        await peer.say(LONG)
        await until_stats(running, n_running=1)
        running.gateway.begin_drain()
        await peer.hear_until(GoAway)
        assert isinstance(await peer.hear(), Tokens)
        await peer.say(GoAway())
        await peer.say(Cancel(1))
        await peer.hear_until(End)
        assert await peer.closed() == 1012


@pytest.mark.parametrize(
    "message",
    [
        Generate(2, pack_ids([1])),
        GenerateOn(2, pack_ids([1]), save_as="tale"),
        StateGet(2, "tale"),
        Stats(2),
    ],
)
async def test_a_lane_that_crosses_with_the_drain_is_refused_by_itself(
    message: Generate | GenerateOn | StateGet | Stats,
) -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        await peer.say(LONG)
        await until_stats(running, n_running=1)
        running.gateway.begin_drain()
        await peer.say(message)
        failed = await peer.hear_until(Failed)
        assert isinstance(failed, Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, ErrorCode.DRAINING, True)
        assert isinstance(await peer.hear(), Tokens)


async def test_a_gateway_that_closes_says_so() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        assert isinstance(await peer.hear(), HelloOk)
        closing = asyncio.create_task(running.door.close())
        assert isinstance(await peer.hear(), GoAway)
        assert await peer.closed() == 1012
        await closing


async def test_a_drain_ends_a_handshake_that_has_not_begun() -> None:
    async with gateway_running() as running, joined(running) as peer:
        running.gateway.begin_drain()
        assert await peer.closed() == 1012


async def test_an_engine_that_is_gone_ends_the_websocket() -> None:
    async with gateway_running() as running, joined(running, hello=HELLO) as peer:
        assert isinstance(await peer.hear(), HelloOk)
        closing = asyncio.create_task(running.server.close())
        assert await peer.closed() == 1011
        await closing


# --- a WebSocket by hand --------------------------------------------------------------------


def frame(payload: bytes, *, opcode: int = 2, fin: bool = True) -> bytes:
    """A frame of a client, with a mask of zeros."""
    size = len(payload)
    assert size < 126
    return bytes([opcode | 0x80 * fin, 0x80 | size, 0, 0, 0, 0]) + payload
