"""What every request goes through, whatever it asks for."""

import asyncio
import re

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from tests.gateway.harness import gateway_running
from tests.gateway.raw import ROUTES, ok, raw, until
from wkvm.core.api_keys import ApiKey
from wkvm.gateway.calls import BODIES_HELD, Call, Route
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.routes import ROUTES as ALL_ROUTES

KEYS = (ApiKey.of("secret", "anna"),)
ANNA = {"Authorization": "Bearer secret"}


async def test_without_a_key_nothing_is_said_about_what_is_there() -> None:
    async with gateway_running(keys=KEYS) as running, running.http.get("/nothing") as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "invalid_api_key"
        assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["wrong", "", "secret2", "Secret"])
async def test_a_wrong_key_is_refused(key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        gateway_running(keys=KEYS) as running,
        running.http.get("/nothing", headers=headers) as response,
    ):
        assert response.status == 401


async def test_whoever_has_a_key_is_told_that_a_path_is_unknown() -> None:
    headers = {"Authorization": "Bearer secret", "X-Request-Id": "abc"}
    async with (
        gateway_running(keys=KEYS) as running,
        running.http.get("/nothing", headers=headers) as response,
    ):
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "not_found"
        assert response.headers["X-Request-Id"] == "abc"


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("POST", "/v1/v1/messages", "there is no /v1/v1/messages, but /v1/messages: "),
        ("POST", "/chat/completions", "there is no /chat/completions, but /v1/chat/completions: "),
        ("GET", "/models/a/b", "there is no /models/a/b, but /v1/models/a/b: "),
        ("POST", "/v1/completion", "there is no /v1/completion, but /completion: "),
        ("GET", "/docs", "there is no /docs; /openapi.json names all routes"),
        ("GET", "/v1", "there is no /v1; /openapi.json names all routes"),
        ("GET", "/none", "there is no /none; /openapi.json names all routes"),
    ],
)
async def test_an_unknown_path_is_answered_by_the_one_that_may_be_meant(
    method: str, path: str, message: str
) -> None:
    async with (
        gateway_running(routes=ALL_ROUTES) as running,
        running.http.request(method, path, data=b"{}") as response,
    ):
        assert response.status == 404
        assert (await response.json())["error"]["message"].startswith(message)


async def test_answers_do_not_tell_what_the_server_is_made_with() -> None:
    async with gateway_running() as running:
        for path in ("/health", "/nothing"):
            async with running.http.get(path) as response:
                assert response.headers["Server"] == "wkvm"


async def test_an_engine_without_keys_lets_any_key_in_and_keeps_one_connection() -> None:
    async with gateway_running() as running:
        for key in ("one", "two", ""):
            async with running.http.get("/x", headers={"Authorization": f"Bearer {key}"}) as answer:
                assert answer.status == 404
        own, everybody = 1, 1
        assert running.server.n_connections == own + everybody


async def test_two_keys_in_one_request_are_none() -> None:
    headers = [("Authorization", "Bearer secret"), ("Authorization", "Bearer wrong")]
    async with gateway_running(keys=KEYS) as running:
        for given in (headers, headers[::-1]):
            async with running.http.get("/v1/models", headers=CIMultiDict(given)) as response:
                assert response.status == 401


@pytest.mark.parametrize("key", ["k" * 5000, "\udcff\udcfe"], ids=["long", "not UTF-8"])
async def test_a_key_that_can_be_nobodys_is_refused_as_any_other(key: str) -> None:
    head = f"GET /nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
    async with gateway_running(keys=KEYS) as running, raw(running.path) as one:
        one.send(head.encode("utf-8", "surrogateescape"))
        status, body = await one.answer()
        assert (status, b"invalid_api_key" in body) == (401, True)
        assert running.gateway.counts.n_refused_keys == 1


async def test_another_method_is_answered_by_those_that_there_are() -> None:
    async with gateway_running(routes=(*ROUTES, Route("POST", "/both/{id}", ok))) as running:
        for method, path, allowed in (
            ("GET", "/size", "POST"),
            ("PUT", "/ok", "GET,HEAD,POST"),
            ("DELETE", "/both/1", "POST"),
        ):
            headers = {"X-Request-Id": "abc"}
            async with running.http.request(method, path, headers=headers) as response:
                assert (response.status, response.headers["Allow"]) == (405, allowed)
                assert response.headers["X-Request-Id"] == "abc"
                error = (await response.json())["error"]
                assert error["type"] == "invalid_request_error"
                assert error["message"].endswith(f"use {' or '.join(allowed.split(','))}")


async def test_head_is_get_without_a_body() -> None:
    async with gateway_running(routes=ROUTES) as running:
        async with running.http.head("/ok") as response:
            assert (response.status, response.headers["Content-Length"]) == (200, "2")
        async with running.http.get("/ok") as response:
            assert await response.text() == "ok"


async def test_what_clients_sent_makes_no_error_long() -> None:
    async with (
        gateway_running() as running,
        running.http.post("/v1/generate", json={"ids": [1], "model": "m" * 100_000}) as response,
    ):
        assert response.status == 404
        message = (await response.json())["error"]["message"]
        assert len(message) < 1100
        assert "mmm" in message


# --- bodies of many requests -----------------------------------------------------------------


async def test_the_bodies_of_a_tenants_open_requests_have_a_limit_together() -> None:
    release = asyncio.Event()

    async def wait(call: Call) -> web.StreamResponse:
        n_bytes = len(await call.read_body())
        await release.wait()
        return web.Response(text=str(n_bytes))

    config = GatewayConfig(max_body_bytes=1000)
    keys = (*KEYS, ApiKey.of("other", "bert"))
    async with gateway_running(
        keys=keys, config=config, routes=[Route("POST", "/wait", wait)]
    ) as running:
        held = running.gateway.held

        async def post(key: str, n_bytes: int) -> tuple[int, str | None]:
            headers = {"Authorization": f"Bearer {key}"}
            async with running.http.post("/wait", data=bytes(n_bytes), headers=headers) as response:
                return response.status, response.headers.get("Retry-After")

        full = [asyncio.create_task(post("secret", 1000)) for _ in range(BODIES_HELD)]
        await until(lambda: len(held) == 1000 * BODIES_HELD)
        assert await post("secret", 1) == (429, "1")
        others = asyncio.create_task(post("other", 1000))
        await until(lambda: len(held) == 1000 * (BODIES_HELD + 1))
        release.set()
        assert {status for status, _ in await asyncio.gather(*full, others)} == {200}
        assert len(held) == 0
        assert await post("secret", 1) == (200, None)


async def test_a_body_that_is_not_read_to_its_end_is_given_back() -> None:
    async with gateway_running(routes=ROUTES) as running:
        async with raw(running.path) as one:
            one.send(b'POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"abc')
            await until(lambda: len(running.gateway.held) == 4)
        await until(lambda: len(running.gateway.held) == 0)


async def test_a_client_that_leaves_before_the_answer_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave(call: Call) -> web.StreamResponse:
        assert call.request.transport is not None
        call.request.transport.abort()
        response = web.StreamResponse()
        await response.prepare(call.request)
        return response

    async with gateway_running(routes=[Route("POST", "/leave", leave)]) as running:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await running.http.post("/leave")
        counts = running.gateway.counts.routes[0]
        await until(lambda: counts.n_open == 0)
        assert counts.by_outcome == {"gone": 1}
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/health", {}),
        ("GET", "/v1/models", ANNA),
        ("GET", "/v1/models", {}),
        ("GET", "/none", ANNA),
        ("PUT", "/v1/models", ANNA),
        ("POST", "/v1/stream", ANNA),
        ("POST", "/v1/generate", ANNA),
        ("POST", "/v1/messages", ANNA),
        ("OPTIONS", "/v1/generate", {"Access-Control-Request-Method": "POST"}),
    ],
)
async def test_every_answer_has_the_id_of_its_request(
    method: str, path: str, headers: dict[str, str]
) -> None:
    config = GatewayConfig(allowed_origins=("*",))
    async with gateway_running(keys=KEYS, config=config, routes=ALL_ROUTES) as running:
        for given in ("mine", "", "no id"):
            named = {**headers, "Origin": "http://page.example", "X-Request-Id": given}
            body = {"ids": [1], "max_tokens": 2}
            async with running.http.request(method, path, json=body, headers=named) as response:
                (told,) = response.headers.getall("X-Request-Id")
                if given == "mine":
                    assert told == "mine"
                else:
                    assert re.fullmatch("[0-9a-f]{32}", told)


@pytest.mark.parametrize("n", [127, 128, 129])
async def test_the_id_of_a_request_has_128_characters_at_most(n: int) -> None:
    named = {"X-Request-Id": "x" * n}
    async with (
        gateway_running(keys=KEYS, routes=ALL_ROUTES) as running,
        running.http.get("/health", headers=named) as response,
    ):
        told = response.headers["X-Request-Id"]
    assert (told == "x" * n) == (n <= 128)
