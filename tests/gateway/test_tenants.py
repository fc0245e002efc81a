"""All keys of a tenant are one: what one has made, another sees; who is another tenant does not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import gateway_running, until_stats
from tests.gateway.native_http import LONG, post
from tests.gateway.responding import ask_for, cached, tales_running
from tests.gateway.stateful import ask, make, states_running
from tests.gateway.test_submitted import SHORT, status, submit
from wkvm.core.api_keys import ApiKey
from wkvm.gateway.config import GatewayConfig, Limits
from wkvm.gateway.engines import Whose

KEYS = (ApiKey.of("1" * 20, "anna"), ApiKey.of("2" * 20, "anna"), ApiKey.of("3" * 20, "bert"))
ONE, TWO, BERT = ({"Authorization": f"Bearer {digit * 20}"} for digit in "123")


async def test_two_keys_of_a_tenant_see_one_anothers_responses_and_conversations(
    tmp_path: Path,
) -> None:
    async with tales_running(tmp_path, keys=KEYS) as running:
        _, first = await ask_for(running, "What is the sun?", headers=ONE)
        _, talk = await ask(running, "POST", "/v1/conversations", {"metadata": {"a": "b"}}, **ONE)
        answers = dict[str, Any]()
        for path in (f"/v1/responses/{first['id']}", f"/v1/conversations/{talk['id']}"):
            answers[path] = await ask(running, "GET", path, **ONE)
            assert answers[path][0] == 200
            assert await ask(running, "GET", path, **TWO) == answers[path]
            assert (await ask(running, "GET", path, **BERT))[0] == 404
        _, more = await ask_for(running, "Why?", previous_response_id=first["id"], headers=TWO)
        assert cached(more) == first["usage"]["total_tokens"]
        assert (await ask(running, "DELETE", f"/v1/responses/{first['id']}", **TWO))[0] == 200
        assert (await ask(running, "GET", f"/v1/responses/{first['id']}", **ONE))[0] == 404


async def test_a_submitted_request_is_the_tenants() -> None:
    async with gateway_running(keys=KEYS) as running:
        name = await submit(running, SHORT, **ONE)
        assert (await status(running, name, **TWO))[0] == 200
        assert (await status(running, name, **BERT))[0] == 404


async def test_a_request_that_runs_is_cancelled_by_any_key_of_its_tenant() -> None:
    async with gateway_running(keys=KEYS) as running:
        headers = {**ONE, "X-Request-Id": "mine"}
        waiting = asyncio.create_task(post(running, "/v1/generate", LONG, **headers))
        await until_stats(running, n_running=1)
        body = {"id": "mine"}
        assert (await post(running, "/v1/cancel", body, **BERT))[0] == 404
        assert (await post(running, "/v1/cancel", body, **TWO))[0] == 200
        assert (await waiting)[0] == 200


async def test_what_was_missed_of_a_turn_is_told_to_any_key_of_its_tenant(tmp_path: Path) -> None:
    async with states_running(tmp_path, keys=KEYS) as running:
        await make(running, "talk", headers=ONE)
        turn = {"ids": [1], "max_tokens": 2}
        assert (await post(running, "/v1/sessions/talk/generate", turn, **ONE))[0] == 200
        found = list[tuple[int, bytes]]()
        for headers in (ONE, TWO, BERT):
            path = "/v1/sessions/talk/events"
            async with running.http.get(path, headers=headers) as response:
                found.append((response.status, await response.read()))
        assert found[0] == found[1]
        assert (found[0][0], found[2][0]) == (200, 404)


async def test_limits_are_of_each_key() -> None:
    config = GatewayConfig(limits=Limits(requests=1))
    async with gateway_running(keys=KEYS, config=config) as running:
        answers = [
            (await post(running, "/v1/generate", SHORT, **headers))[0]
            for headers in (ONE, ONE, TWO, BERT)
        ]
        assert answers == [200, 429, 200, 200]


@pytest.mark.parametrize("name", ["anna", "bert"])
def test_what_is_kept_under_a_tenants_name_is_not_kept_under_a_key(name: str) -> None:
    one, two = Whose.of(b"1" * 32, name), Whose.of(b"2" * 32, name)
    assert one.tenant == two.tenant
    assert one.tenant not in (one.key, two.key, name.encode())


def test_of_an_engine_that_names_no_tenant_each_key_is_one() -> None:
    assert Whose.of(b"1" * 32, "").tenant == b"1" * 32
