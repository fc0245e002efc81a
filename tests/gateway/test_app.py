"""What every request goes through, whatever it asks for."""

import pytest

from tests.gateway.harness import gateway_running
from wkvm.core.config import ApiKey

KEYS = (ApiKey.of("secret", "anna"),)


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
