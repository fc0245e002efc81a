"""Both clients over WebSocket, and what they think of servers that break its rules."""

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wkvm_client.errors import (
    ConnectFailedError,
    InvalidParameterError,
    LinkError,
    PlaintextKeyError,
)
from wkvm_client.websocket import (
    MAX_ANSWER_BYTES,
    WebSocketAddress,
    WebSocketError,
    WebSocketTunnel,
    parse_websocket_address,
)
from wkvm_protocol.messages import MAX_FRAME_BYTES

from tests.client.drivers import AioDriver, BlockingDriver
from tests.client.keeping import running

both = pytest.mark.parametrize("make", [AioDriver, BlockingDriver], ids=["aio", "blocking"])
Make = type[AioDriver] | type[BlockingDriver]
HERE = WebSocketAddress("here", 80, "/v1/ws", is_encrypted=False)


def answer_to(upgrade: bytes, **fields: str) -> bytes:
    """What a server says that takes an upgrade."""
    key = upgrade.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
    accept = base64.b64encode(
        hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    ).decode()
    told = {"Sec-WebSocket-Accept": accept, "Sec-WebSocket-Protocol": "wkvm.v1"} | {
        name.replace("_", "-"): value for name, value in fields.items()
    }
    lines = ["HTTP/1.1 101 Switching Protocols", *(f"{k}: {v}" for k, v in told.items() if v)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def opened() -> WebSocketTunnel:
    tunnel = WebSocketTunnel(HERE)
    assert tunnel.feed(answer_to(tunnel.upgrade())) == b""
    assert tunnel.is_open
    return tunnel


def sent(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """A frame as servers send them."""
    head = bytes([opcode | 0x80 * final])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    if len(payload) < 2**16:
        return head + b"\x7e" + len(payload).to_bytes(2, "big") + payload
    return head + b"\x7f" + len(payload).to_bytes(8, "big") + payload


def unmasked(data: bytes) -> list[tuple[int, bytes]]:
    """Frames as clients send them: kind and payload."""
    found = list[tuple[int, bytes]]()
    while data:
        opcode, length, start = data[0] & 0x0F, data[1] & 0x7F, 2
        assert data[0] & 0x80
        assert data[1] & 0x80
        if length >= 126:
            start = 4 if length == 126 else 10
            length = int.from_bytes(data[2:start], "big")
        mask, payload = data[start : start + 4], data[start + 4 : start + 4 + length]
        found.append((opcode, bytes(b ^ mask[i % 4] for i, b in enumerate(payload))))
        data = data[start + 4 + length :]
    return found


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536])
def test_each_frame_becomes_a_masked_message(length: int) -> None:
    tunnel, payload = opened(), bytes(i % 251 for i in range(length))
    data = frame(payload) + frame(b"next")
    messages = b"".join(tunnel.wrap(data[i : i + 1000]) for i in range(0, len(data), 1000))
    assert unmasked(messages) == [(2, payload), (2, b"next")]


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536])
@pytest.mark.parametrize("step", [1, 7, 10**6])
def test_each_message_becomes_a_frame_however_it_is_cut(length: int, step: int) -> None:
    tunnel, payload = opened(), bytes(i % 251 for i in range(length))
    data = sent(2, payload) + sent(2, b"a", final=False) + sent(9, b"") + sent(0, b"b")
    stream = b"".join(tunnel.feed(data[i : i + step]) for i in range(0, len(data), step))
    assert stream == frame(payload) + frame(b"ab")


def test_pings_and_closes_are_answered() -> None:
    tunnel = opened()
    assert tunnel.feed(sent(9, b"now") + sent(8, b"\x03\xe8bye") + sent(2, b"late")) == b""
    assert unmasked(bytes(tunnel.replies)) == [(10, b"now"), (8, b"\x03\xe8")]
    assert tunnel.is_over


@pytest.mark.parametrize(
    "data",
    [
        sent(1, b"text"),
        sent(0, b"nothing goes on"),
        sent(2, b"a", final=False) + sent(2, b"b"),
        sent(9, b"", final=False),
        b"\x89\x7e\x00\x7e",
        b"\xc2\x00",
        b"\x82\x80\x00\x00\x00\x00",
        b"\x82\x7f" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big"),
        sent(3, b""),
    ],
)
def test_what_breaks_the_rules_is_found(data: bytes) -> None:
    with pytest.raises(WebSocketError):
        opened().feed(data)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 401 Unauthorized\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"\0" * (MAX_ANSWER_BYTES + 1),
        answer_to(b"Sec-WebSocket-Key: another\r\n"),
    ],
)
def test_an_answer_that_is_no_upgrade_is_found(answer: bytes) -> None:
    with pytest.raises(WebSocketError):
        WebSocketTunnel(HERE).feed(answer)


@pytest.mark.parametrize(
    "fields",
    [{"Sec_WebSocket_Protocol": "other"}, {"Sec_WebSocket_Extensions": "permessage-deflate"}],
)
def test_an_upgrade_to_something_else_is_found(fields: dict[str, str]) -> None:
    tunnel = WebSocketTunnel(HERE)
    with pytest.raises(WebSocketError):
        tunnel.feed(answer_to(tunnel.upgrade(), **fields))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ws://here", "ws://here:80/v1/ws"),
        ("ws://here:8000/", "ws://here:8000/v1/ws"),
        ("wss://here/other", "wss://here:443/other"),
        ("ws://[::1]:8000", "ws://[::1]:8000/v1/ws"),
    ],
)
def test_addresses_are_read(text: str, address: str) -> None:
    assert str(parse_websocket_address(text)) == address


@pytest.mark.parametrize(
    "text", ["ws://", "ws:here", "wss://a?b", "ws://u@h", "ws://h/ x", "ws://h:1e", "http://h"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_websocket_address(text)


@both
async def test_a_key_does_not_cross_a_network_in_the_clear(make: Make) -> None:
    with pytest.raises(PlaintextKeyError):
        await make().connect("ws://192.0.2.1", api_key="secret")


async def test_the_blocking_client_says_that_it_has_no_tls() -> None:
    with pytest.raises(InvalidParameterError):
        await BlockingDriver().connect("wss://127.0.0.1:1")


@both
async def test_a_session_is_over_websocket_what_it_is_over_a_socket(
    make: Make, tmp_path: Path
) -> None:
    async with running(tmp_path / "a", over_websocket=True) as address:
        driver = make()
        await driver.connect(address)
        session = driver.client.session("s")
        await driver.do(session, "append", [1, 2])
        stream = await driver.do(session, "generate", [3], max_tokens=200, ignore_eos=True)
        assert len(await driver.take(stream)) == 200
        assert (await driver.do(session, "info")).n_tokens == 203
        data = b"".join(await driver.exported("s"))
        assert (await driver.states("import_from", "t", data)).n_tokens == 203
        assert await driver.ping() > 0
        await driver.close()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """A server of one connection; its port."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await answer(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            over.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            await over.wait()


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def say_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(answer_to(await reader.readuntil(b"\r\n\r\n")) + sent(1, b"hello"))
    await reader.read()


@both
@pytest.mark.parametrize(
    ("answer", "error"),
    [(refuse, ConnectFailedError), (hang_up, ConnectFailedError), (say_text, LinkError)],
)
async def test_a_server_that_does_not_do_as_it_should_is_no_server(
    make: Make, answer: Answer, error: type[Exception]
) -> None:
    async with answering(answer) as port:
        driver = make()
        with pytest.raises(error):
            await driver.connect(f"ws://127.0.0.1:{port}", connect_timeout_s=60)
        await driver.close()


@both
@pytest.mark.parametrize("api_key", [None, "a key, of any kind: \u00e4"])
async def test_a_key_is_offered_with_the_upgrade_and_no_key_is_not(
    make: Make, api_key: str | None
) -> None:
    heads = list[bytes]()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))

    async with answering(note) as port:
        driver = make()
        with pytest.raises(ConnectFailedError):
            await driver.connect(f"ws://127.0.0.1:{port}", api_key=api_key)
        await driver.close()
    (offered,) = re.findall(rb"^Sec-WebSocket-Protocol: (.*)\r$", heads[0], re.MULTILINE)
    expected = [b"wkvm.v1"]
    if api_key is not None:
        key = base64.urlsafe_b64encode(api_key.encode()).rstrip(b"=")
        expected.append(b"wkvm.key." + key)
    assert offered.split(b", ") == expected
