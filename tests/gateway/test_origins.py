"""Pages of browsers on all routes; those that ask for a WebSocket are in ``test_websocket``."""

import re

import pytest

from tests.gateway.harness import ANNA, KEYS, gateway_running
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.errors import SettingError
from wkvm.gateway.routes import ROUTES

FOREIGN = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
BODY = b'{"ids":[1],"max_tokens":1}'


async def test_without_keys_a_page_from_elsewhere_makes_nothing_run() -> None:
    async with (
        gateway_running() as running,
        running.http.post("/v1/generate", data=BODY, headers=FOREIGN) as response,
    ):
        assert response.status == 403
        assert (await response.json())["error"]["code"] == "origin_not_allowed"
        client = await running.gateway.engines.own()
        assert (await client.stats())["requests_total"] == 0


async def test_without_keys_a_name_that_was_pointed_here_is_no_page_of_ours() -> None:
    rebound = {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}
    async with (
        gateway_running() as running,
        running.http.post("/v1/generate", data=BODY, headers=rebound) as response,
    ):
        assert response.status == 403


async def test_a_page_that_has_a_key_is_let_in() -> None:
    async with (
        gateway_running(keys=KEYS) as running,
        running.http.post("/v1/generate", data=BODY, headers={**FOREIGN, **ANNA}) as response,
    ):
        assert response.status == 200


async def test_a_page_that_the_settings_name_is_let_in() -> None:
    config = GatewayConfig(allowed_origins=("http://evil.example",))
    async with (
        gateway_running(config=config) as running,
        running.http.post("/v1/generate", data=BODY, headers=FOREIGN) as response,
    ):
        assert response.status == 200


PAGE = "https://chat.example"
NAMED = GatewayConfig(allowed_origins=(PAGE,))
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.mark.parametrize("config", [NAMED, GatewayConfig(allowed_origins=("*",))])
async def test_a_page_that_the_settings_name_may_ask_without_a_key_what_it_may_send(
    config: GatewayConfig,
) -> None:
    async with (
        gateway_running(config=config, keys=KEYS) as running,
        running.http.options("/v1/stream", headers=PREFLIGHT) as response,
    ):
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        methods = set(response.headers["Access-Control-Allow-Methods"].split(", "))
        assert methods >= {route.method for route in ROUTES}
        allowed = response.headers["Access-Control-Allow-Headers"]
        assert allowed == PREFLIGHT["Access-Control-Request-Headers"]


async def test_a_page_may_ask_so_of_every_route() -> None:
    async with gateway_running(config=NAMED, keys=KEYS) as running:
        for route in ROUTES:
            path = re.sub(r"\{\w+(:[^{}]*)?\}", "x", route.path)
            async with running.http.options(path, headers=PREFLIGHT) as response:
                assert response.status == 204, path
                assert response.headers["Access-Control-Allow-Origin"] == PAGE


async def test_a_page_of_the_internet_may_use_a_server_in_the_users_network() -> None:
    asked = {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
    async with (
        gateway_running(config=NAMED) as running,
        running.http.options("/v1/stream", headers=asked) as response,
    ):
        assert response.headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/v1/stream", ANNA, 200), ("/v1/generate", ANNA, 200), ("/v1/generate", {}, 401)],
)
async def test_a_page_that_the_settings_name_may_read_streams_answers_and_errors(
    path: str, headers: dict[str, str], status: int
) -> None:
    async with (
        gateway_running(config=NAMED, keys=KEYS) as running,
        running.http.post(path, data=BODY, headers={"Origin": PAGE, **headers}) as response,
    ):
        assert response.status == status
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]
        assert response.headers["Vary"] == "Origin"


@pytest.mark.parametrize("config", [NAMED, GatewayConfig()])
async def test_no_other_page_may_read_anything(config: GatewayConfig) -> None:
    foreign = {**PREFLIGHT, **FOREIGN, **ANNA}
    async with gateway_running(config=config, keys=KEYS) as running:
        async with running.http.options("/v1/generate", headers=foreign) as response:
            assert response.status >= 400
            assert "Access-Control-Allow-Origin" not in response.headers
        async with running.http.post("/v1/generate", data=BODY, headers=foreign) as response:
            assert response.status == 200
            assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("origin", ["example.com", "https://", "https://a/", "https://a b", ""])
def test_what_is_no_origin_is_no_setting(origin: str) -> None:
    with pytest.raises(SettingError, match="allowed-origins"):
        GatewayConfig(allowed_origins=(origin,))
