"""One line for each request, and nothing of its content."""

import json
from typing import Any

import pytest

from tests.gateway.harness import ANNA, KEYS, Running, gateway_running
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.errors import SettingError

BODY = {"ids": [77, 78, 79], "max_tokens": 5, "ignore_eos": True}
JSON = GatewayConfig(request_log="json")


def lines_of(running: Running) -> list[str]:
    """What is written from now on."""
    lines = list[str]()
    running.gateway.log._write = lines.append
    return lines


async def test_a_line_tells_whose_a_request_was_and_what_it_cost() -> None:
    async with gateway_running(keys=KEYS, config=JSON) as running:
        lines = lines_of(running)
        headers = {**ANNA, "X-Request-Id": "mine"}
        async with running.http.post("/v1/generate", json=BODY, headers=headers) as response:
            await response.read()
        (line,) = lines
    assert line.endswith("\n")
    told: dict[str, Any] = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert 0 < told.pop("ttft_s") < told.pop("duration_s")
    assert told == {
        "id": "mine",
        "tenant": "anna",
        "route": "POST /v1/generate",
        "status": 200,
        "prompt_tokens": 3,
        "output_tokens": 5,
    }


async def test_a_stream_has_its_line_when_it_is_over() -> None:
    async with gateway_running(config=JSON) as running:
        lines = lines_of(running)
        async with running.http.post("/v1/stream", json=BODY) as response:
            assert lines == []
            await response.read()
        while not lines:
            async with running.http.get("/health"):
                pass
    told = json.loads(lines[0])
    assert (told["status"], told["output_tokens"]) == (200, 5)


async def test_what_is_refused_has_a_line_too() -> None:
    async with gateway_running(keys=KEYS, config=JSON) as running:
        lines = lines_of(running)
        for path in ("/v1/generate", "/none"):
            async with running.http.post(path, json=BODY) as response:
                assert response.status == 401
    told = [json.loads(line) for line in lines]
    assert [one["status"] for one in told] == [401, 401]
    assert [one["tenant"] for one in told] == ["-", "-"]


async def test_nothing_that_a_client_sent_is_in_a_line_but_the_id() -> None:
    config = GatewayConfig(request_log="text")
    async with gateway_running(keys=KEYS, config=config) as running:
        lines = lines_of(running)
        body = {"prompt": "secretword", "max_tokens": 3}
        for path in ("/v1/completions?q=secretword", "/v1/states/secretword/fork"):
            async with running.http.post(path, json=body, headers=ANNA) as response:
                await response.read()
    assert len(lines) == 2
    assert not any("secretword" in line or "a" * 20 in line for line in lines)
    assert " POST /v1/states/{ref}/fork " in lines[1]
    assert all(line.count("\n") == 1 for line in lines)


async def test_without_the_flag_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        gateway_running() as running,
        running.http.post("/v1/generate", json=BODY) as response,
    ):
        await response.read()
    assert capsys.readouterr().err == ""


async def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        gateway_running(config=JSON) as running,
        running.http.get("/v1/models") as response,
    ):
        await response.read()
    assert json.loads(capsys.readouterr().err)["route"] == "GET /v1/models"


async def test_where_no_key_is_needed_a_line_is_nobodys() -> None:
    async with gateway_running(config=JSON) as running:
        lines = lines_of(running)
        for headers in {}, ANNA:
            async with running.http.get("/v1/models", headers=headers) as response:
                await response.read()
    assert [json.loads(line)["tenant"] for line in lines] == ["-", "-"]


def test_another_format_is_no_setting() -> None:
    with pytest.raises(SettingError, match="request-log"):
        GatewayConfig(request_log="xml")  # type: ignore[arg-type]
