"""The door itself: what is HTTP, how many may connect, TLS, and the end."""

import asyncio
import logging
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import http_parser, web

from tests.gateway.harness import TIMEOUT_S, gateway_running
from tests.gateway.raw import GET, ROUTES, Raw, Spout, raw, size, until
from wkvm.core.api_keys import ApiKey
from wkvm.gateway import routes
from wkvm.gateway.calls import Call, Route
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door import listening as door_module
from wkvm.gateway.door.listening import check_parser, tls_context
from wkvm.gateway.errors import SettingError

START = b"POST /ok HTTP/1.1\r\nHost: x\r\n"


# --- what is HTTP ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        START + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        START + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
        START + b"Content-Length: 5, 5\r\n\r\nabcde",
        START + b"Content-Length: -1\r\n\r\n",
        START + b"Content-Length: +5\r\n\r\nabcde",
        START + b"Content-Length: 5_0\r\n\r\nabcde",
        START + b"Content-Length : 5\r\n\r\nabcde",
        START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        START + b"Host: y\r\nContent-Length: 0\r\n\r\n",
        START + b"X-A: a\x00b\r\n\r\n",
        START + b"X-A: a\rb\r\n\r\n",
        START + b" folded\r\n\r\n",
        START + b"X A: b\r\n\r\n",
        START + b"X-A: " + b"a" * 9000 + b"\r\n\r\n",
        START + b"".join(b"X-%d: a\r\n" % n for n in range(200)) + b"\r\n",
        b"POST /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /ok HTTP/9.9\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=lambda data: repr(data[-40:]),
)
async def test_what_is_ambiguous_or_no_http_is_400_and_the_end(request_bytes: bytes) -> None:
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        one.send(request_bytes + GET)
        head, _, body = (await one.rest()).partition(b"\r\n\r\n")
        assert (head.split()[1], body.startswith(b'{"error":{')) == (b"400", True)
        assert b"\r\nX-Request-Id: " in head
        assert [line for line in head.split(b"\r\n") if b"erver:" in line] == [b"Server: wkvm"]
        assert body.endswith(b"}}")


@pytest.mark.parametrize("line", ["OPTIONS *", "CONNECT 127.0.0.1:22"])
async def test_a_target_that_is_no_path_is_refused_whoever_asks(line: str) -> None:
    async with (
        gateway_running(keys=[ApiKey.of("secret")], routes=ROUTES) as running,
        raw(running.path) as one,
    ):
        one.send(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, body = await one.answer()
        assert (status, b"has to be a path" in body) == (400, True)


async def test_the_log_has_nothing_of_what_is_no_http(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway_running(routes=ROUTES) as running:
        for line in (
            b"Authorization: Bearer secret\x00",
            b"X : secret",
            b"X: secret" + 9000 * b"s",
        ):
            async with raw(running.path) as one:
                one.send(START + line + b"\r\n\r\n")
                assert (await one.answer())[0] == 400
        async with raw(running.path) as one:
            one.send(START + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n")
            await one.answer()
    assert "not HTTP" in caplog.text
    assert "secret" not in caplog.text


async def test_a_chunk_that_is_none_ends_the_connection() -> None:
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        one.send(
            b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + GET
        )
        assert (await one.answer())[0] == 400
        assert await one.rest() == b""


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        one.send(b"".join(b"GET /big?n=%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(100)))
        assert [len((await one.answer())[1]) for _ in range(100)] == list(range(100))


@pytest.mark.parametrize(("n_bytes", "status"), [(1024, 200), (1025, 413)])
async def test_a_body_has_a_limit(n_bytes: int, status: int) -> None:
    config = GatewayConfig(max_body_bytes=1024)
    body = b'"' + b"a" * (n_bytes - 2) + b'"'
    async with gateway_running(config=config, routes=ROUTES) as running:
        async with running.http.post("/size", data=body) as response:
            assert response.status == status
        async with running.http.post("/size", data=chunked(body)) as response:
            assert response.status == status


async def test_a_body_that_is_announced_too_long_is_refused_before_it_comes() -> None:
    async with (
        gateway_running(config=GatewayConfig(max_body_bytes=1024), routes=ROUTES) as running,
        raw(running.path) as one,
    ):
        head = b"POST /size HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        one.send(head + b"Content-Length: 1025\r\n\r\n")
        assert (await one.answer())[0] == 413


async def test_a_body_is_asked_for_once_its_request_is_let_in() -> None:
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n"
    routes = [Route("POST", "/x", size)]
    async with gateway_running(keys=[ApiKey.of("secret")], routes=routes) as running:
        async with raw(running.path) as one:
            one.send(head + b"\r\n")
            assert (await one.answer())[0] == 401
        async with raw(running.path) as one:
            one.send(head + b"Authorization: Bearer secret\r\n\r\n")
            assert await one.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            one.send(b'"a"')
            assert await one.answer() == (200, b"1")


async def test_what_else_a_request_may_expect_is_not_fulfilled() -> None:
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        one.send(GET.replace(b"Host", b"Expect: tea\r\nHost"))
        status, body = await one.answer()
        assert (status, body.startswith(b'{"error":{')) == (417, True)


async def chunked(body: bytes) -> AsyncIterator[bytes]:
    """A body whose length is not told."""
    for at in range(0, len(body), 100):
        yield body[at : at + 100]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
async def test_a_compressed_body_is_refused(encoding: str) -> None:
    headers = {"Content-Encoding": encoding}
    async with (
        gateway_running(routes=ROUTES) as running,
        running.http.post("/size", data=b"x", headers=headers, compress=False) as response,
    ):
        assert response.status == 415
        assert (await response.json())["error"]["code"] == "unsupported_encoding"


def test_without_the_c_parser_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(SettingError, match="C parser"):
        check_parser()


# --- how many may connect --------------------------------------------------------------------


async def test_one_connection_too_many_is_refused_and_the_others_go_on() -> None:
    config = GatewayConfig(max_connections=2)
    async with gateway_running(config=config, routes=ROUTES) as running:
        async with raw(running.path) as first, raw(running.path) as second:
            for one in (first, second):
                one.send(GET)
                assert (await one.answer())[0] == 200
            async with raw(running.path) as third:
                status, body = await third.answer()
                assert (status, b"too_many_connections" in body) == (503, True)
                assert await third.rest() == b""
            for one in (first, second):
                one.send(GET)
                assert (await one.answer())[0] == 200
        await until(lambda: running.door.n_connections == 0)
        async with raw(running.path) as one:
            one.send(GET)
            assert (await one.answer())[0] == 200


async def test_connections_do_not_take_the_last_files() -> None:
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as first:
        running.door._is_full = lambda: True
        async with raw(running.path) as second:
            status, body = await second.answer()
            assert (status, b"too_many_connections" in body) == (503, True)
        first.send(GET)
        assert (await first.answer())[0] == 200
        running.door._is_full = lambda: False
        async with raw(running.path) as third:
            third.send(GET)
            assert (await third.answer())[0] == 200


async def test_one_connection_too_many_is_told_so_also_if_it_has_sent_a_request() -> None:
    config = GatewayConfig(max_connections=1)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as first:
        first.send(GET)
        assert (await first.answer())[0] == 200
        with socket.socket(socket.AF_UNIX) as second:
            # The server has had no turn between the two.
            second.connect(str(running.path))
            second.sendall(GET)
            second.setblocking(False)
            loop = asyncio.get_running_loop()
            heard = b""
            while data := await loop.sock_recv(second, 65536):
                heard += data
        assert heard.startswith(b"HTTP/1.1 503 ")


# --- who may ask -----------------------------------------------------------------------------


async def test_every_route_but_health_ready_and_the_console_needs_a_key() -> None:
    is_open = {
        "/health": {200, 503},
        "/ready": {200, 503},
        "/": {200},
        "/assets/x": {404},
        "/icon.svg": {200},
    }
    asked = 0
    async with gateway_running(keys=[ApiKey.of("secret")]) as running:
        for route in routes.ROUTES:
            path = re.sub(r"\{[^}]*\}", "x", route.path)
            method = "GET" if route.method == "*" else route.method
            async with running.http.request(method, path, json={}) as response:
                assert response.status in is_open.get(path, {401}), (method, path)
                asked += 1
    assert asked == len(routes.ROUTES) > 0


# --- TLS -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("the command openssl, which makes the certificate, is not here")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
        -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def with_tls(certificate: tuple[str, str], **settings: float) -> GatewayConfig:
    cert, key = certificate
    return GatewayConfig(ssl_certfile=cert, ssl_keyfile=key, **settings)  # type: ignore[arg-type]


def trusting(certificate: tuple[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate[0])


async def test_https_is_spoken_with_a_certificate(certificate: tuple[str, str]) -> None:
    async with (
        gateway_running(config=with_tls(certificate), routes=ROUTES) as running,
        raw(running.path, trusting(certificate)) as one,
    ):
        assert running.door.addresses == (f"https+unix://{running.path}",)
        one.send(b"GET /big?n=1000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await one.answer() == (200, bytes(1_000_000))


async def test_plain_http_is_not_spoken_where_tls_is(certificate: tuple[str, str]) -> None:
    async with (
        gateway_running(config=with_tls(certificate), routes=ROUTES) as running,
        raw(running.path) as one,
    ):
        one.send(GET)
        assert b"HTTP/1.1 200" not in await one.rest()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
async def test_a_handshake_that_stops_is_given_up(
    certificate: tuple[str, str], sent: bytes
) -> None:
    config = with_tls(certificate, header_timeout_s=0.1)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(sent)
        await one.rest()


@pytest.mark.timed(0.5)
async def test_headers_that_stop_are_given_up_under_tls(certificate: tuple[str, str]) -> None:
    config = with_tls(certificate, header_timeout_s=0.5)
    async with (
        gateway_running(config=config, routes=ROUTES) as running,
        raw(running.path, trusting(certificate)) as one,
    ):
        one.send(GET[:20])
        await one.rest()
        await until(lambda: running.door.n_connections == 0)


@pytest.mark.timed(0.1)
async def test_an_unread_stream_is_cancelled_under_tls(certificate: tuple[str, str]) -> None:
    spout = Spout()
    config = with_tls(certificate, write_timeout_s=0.1)
    async with (
        gateway_running(config=config, routes=[spout.route]) as running,
        raw(running.path, trusting(certificate)) as one,
    ):
        one.send(b"GET /spout HTTP/1.1\r\nHost: x\r\n\r\n")
        await one.reader.readexactly(1)
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(TIMEOUT_S):
            await spout.ended.wait()
        assert spout.n_written < 2 * 2**20
        await until(lambda: running.door.n_connections == 0)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_loaded_is_a_setting_error(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match="ssl-certfile"):
        tls_context(GatewayConfig(ssl_certfile=str(path), ssl_keyfile=str(path)))


def test_an_encrypted_key_is_a_setting_error_and_asks_for_nothing(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    cert, key = certificate
    locked = tmp_path / "locked.pem"
    command = f"openssl pkey -in {key} -aes256 -passout pass:word -out {locked}"
    subprocess.run(command.split(), check=True, capture_output=True)
    with pytest.raises(SettingError, match="the key is encrypted"):
        tls_context(GatewayConfig(ssl_certfile=cert, ssl_keyfile=str(locked)))


# --- the end ---------------------------------------------------------------------------------


async def stream(call: Call) -> web.StreamResponse:
    """The ids of an answer, one a line, and how it ended."""
    n = int(call.request.query["n"])
    stream = await call.client.generate([1], max_tokens=n, ignore_eos=True)
    response = web.StreamResponse()
    await response.prepare(call.request)
    try:
        while ids := await stream.read():
            await response.write(b"".join(b"%d\n" % i for i in ids))
        await response.write(f"{(await stream.completion()).reason.name}\n".encode())
    except ConnectionError:
        raise
    except Exception as error:
        await response.write(f"{type(error).__name__}\n".encode())
    return response


STREAMS = [*ROUTES, Route("GET", "/stream", stream, is_open=False), Route("GET", "/new", stream)]


async def begin_stream(one: Raw, n: int) -> None:
    """Ask for a stream, and read its beginning."""
    one.send(b"GET /stream?n=%d HTTP/1.1\r\nHost: x\r\n\r\n" % n)
    async with asyncio.timeout(TIMEOUT_S):
        await one.reader.readuntil(b"\r\n\r\n")
        await one.reader.readline()


async def test_a_drain_lets_streams_end_and_refuses_what_is_new() -> None:
    async with (
        gateway_running(routes=STREAMS) as running,
        raw(running.path) as busy,
        raw(running.path) as idle,
    ):
        idle.send(GET)
        await idle.answer()
        await begin_stream(busy, 300)
        running.door.begin_drain()
        async with running.http.get("/new", params={"n": "1"}) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "draining"
            assert int(response.headers["Retry-After"]) >= 1
        idle.send(b"GET /new?n=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await idle.answer())[0] == 503
        assert await idle.rest() == b""
        draining = asyncio.create_task(running.door.drained(TIMEOUT_S))
        whole = await busy.rest()
        assert whole.endswith(b"LENGTH\n\r\n0\r\n\r\n")
        await draining
        assert running.door.n_requests == 0


async def test_close_ends_idle_connections_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "CLOSE_TIMEOUT_S", 3600.0)
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        one.send(GET)
        await one.answer()
        async with raw(running.path) as silent:
            await until(lambda: running.door.n_connections == 2)
            async with asyncio.timeout(TIMEOUT_S):
                await running.door.close()
            assert (await one.rest(), await silent.rest()) == (b"", b"")


async def test_close_waits_for_answers_that_are_on_their_way() -> None:
    async with gateway_running(routes=STREAMS) as running, raw(running.path) as one:
        await begin_stream(one, 50)
        await running.door.close()
        assert (await one.rest()).endswith(b"LENGTH\n\r\n0\r\n\r\n")


async def test_what_outlasts_a_close_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "CLOSE_TIMEOUT_S", 0.2)
    async with gateway_running(routes=STREAMS) as running, raw(running.path) as one:
        await begin_stream(one, 10**6)
        closing = asyncio.create_task(running.door.close())
        assert b"ClientClosedError\n" in (await one.rest())
        await closing
        assert running.door.n_connections == 0


async def test_close_ends_although_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "CLOSE_TIMEOUT_S", 0.1)
    spout = Spout()
    async with gateway_running(routes=[spout.route]) as running, raw(running.path) as one:
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one.send(b"GET /spout HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: spout.n_written > 0)
        async with asyncio.timeout(TIMEOUT_S):
            await running.door.close()
        assert (running.door.n_connections, spout.ended.is_set()) == (0, True)


async def test_after_a_close_nobody_is_let_in() -> None:
    async with gateway_running(routes=ROUTES) as running:
        await running.door.close()
        with pytest.raises(OSError, match=r"refused|No such file"):
            await asyncio.open_unix_connection(str(running.path))
