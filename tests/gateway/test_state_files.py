"""The file of a state over HTTP: out as it is read, in as it comes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import ANNA, BERT, KEYS, Running
from tests.gateway.raw import raw
from tests.gateway.stateful import ask, make, states_running
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.states.fields import NO_ORIGIN, origin_of_file


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with states_running(tmp_path) as running:
        yield running


async def export(running: Running, ref: str = "tale", **headers: str) -> bytes:
    async with running.http.get(f"/v1/states/{ref}/export", headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def take(
    running: Running, data: Any, name: str = "copy", query: str = "", **headers: str
) -> tuple[int, Any]:
    url = f"/v1/states/{name}/import{query}"
    async with running.http.put(url, data=data, headers=headers) as response:
        return response.status, await response.json()


async def test_a_file_goes_out_and_comes_in_with_the_same_bytes(running: Running) -> None:
    made = await make(running)
    data = await export(running)
    status, state = await take(running, data, query="?tag=a:b&durability=disk")
    assert (status, state["name"], state["version"]) == (201, "copy", 1)
    assert (state["tail"], state["tags"]) == (made["tail"], {"a": "b"})
    assert state["content_id"] == made["content_id"]
    _, log = await ask(running, "GET", "/v1/states/copy/log")
    assert log["data"][0]["provenance"]["operation"] == "import"


async def test_an_import_was_made_from_no_state(running: Running) -> None:
    await make(running)
    data = await export(running)
    assert (await take(running, data))[1]["parents"] == []
    assert (await ask(running, "GET", "/v1/states/copy"))[1]["parents"] == []


@pytest.mark.parametrize("n_ids", [1, 2, 40])
async def test_how_a_state_ends_is_read_in_its_file(running: Running, n_ids: int) -> None:
    made = await make(running, ids=list(range(n_ids)))
    origin = origin_of_file(await export(running))
    assert list(origin.tail)[-32:] == made["tail"]
    assert origin.n_tokens == n_ids


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"])
def test_what_is_no_file_of_a_state_has_no_end(data: bytes) -> None:
    assert origin_of_file(data) == NO_ORIGIN


async def test_a_file_whose_ids_are_elsewhere_has_no_end(running: Running) -> None:
    await make(running)
    data = await export(running)
    for offsets in (b"[0,9]", b"[-8,0]", b"[999999999,9999999999]", b"[8,4]"):
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        entry = header.index(b'"wkvm.token_ids"')
        start = header.index(b"[", header.index(b"data_offsets", entry))
        end = header.index(b"]", start) + 1
        changed = header[:start] + offsets + header[end:]
        file = len(changed).to_bytes(8, "little") + changed + data[8 + len(header) :]
        assert len(origin_of_file(file).tail) <= 1 + 32


async def test_an_export_says_what_it_is_and_how_long(running: Running) -> None:
    await make(running)
    data = await export(running, "tale@1")
    async with running.http.head("/v1/states/tale/export") as response:
        assert response.status == 200
        assert response.headers["X-State"] == "tale@1"
        assert int(response.headers["Content-Length"]) == len(data)
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert 'filename="tale.safetensors"' in response.headers["Content-Disposition"]
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 200, "the connection is of use"


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
async def test_a_file_that_is_cut_off_is_none(running: Running, kept: float) -> None:
    await make(running)
    data = await export(running)
    part = data[: int(len(data) * kept)]
    status, answer = await take(running, part)
    assert (status, answer["error"]["code"]) in [(422, "bad_state_file"), (400, None)]
    assert (await ask(running, "GET", "/v1/states/copy"))[0] == 404


async def test_a_file_with_a_flipped_bit_is_none(running: Running) -> None:
    await make(running)
    data = bytearray(await export(running))
    data[-1] ^= 1
    status, answer = await take(running, bytes(data))
    assert (status, answer["error"]["code"]) == (422, "bad_state_file")
    assert (await ask(running, "GET", "/v1/states/copy"))[0] == 404


async def test_a_file_needs_a_length_and_has_a_limit(tmp_path: Path) -> None:
    async with states_running(tmp_path, config=GatewayConfig(max_state_bytes=1000)) as running:

        async def parts() -> AsyncIterator[bytes]:
            yield b"x"

        status, answer = await take(running, parts())
        assert (status, answer["error"]["code"]) == (411, "length_required")
        status, answer = await take(running, b"x" * 1001)
        assert (status, answer["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "query", ["?format=zip", "?expires_in_s=x", "?expected_version=-1", "?a=b"]
)
async def test_what_is_wrong_with_a_query_is_named(running: Running, query: str) -> None:
    status, answer = await take(running, b"x" * 100, query=query)
    assert (status, answer["error"]["param"]) == (400, query[1:].partition("=")[0])


async def test_a_stale_import_is_a_conflict(running: Running) -> None:
    await make(running)
    data = await export(running)
    status, answer = await take(running, data, "tale", "?expected_version=0")
    assert (status, answer["error"]["code"]) in [(409, "stale_version"), (409, "state_exists")]
    assert (await ask(running, "GET", "/v1/states/tale"))[1]["version"] == 1


async def test_an_import_that_its_client_breaks_off_leaves_nothing(running: Running) -> None:
    await make(running)
    data = await export(running)
    head = f"PUT /v1/states/copy/import HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    async with raw(running.path) as one:
        one.send(head.encode() + data[: len(data) // 2])
        await asyncio.sleep(0.05)
    assert (await ask(running, "GET", "/v1/states/copy"))[0] == 404
    assert (await take(running, data))[0] == 201


async def test_a_file_that_comes_too_slowly_is_not_waited_for(tmp_path: Path) -> None:
    async with states_running(tmp_path, config=GatewayConfig(body_timeout_s=0.05)) as running:
        head = b"PUT /v1/states/copy/import HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nx"
        async with raw(running.path) as one:
            one.send(head)
            status, body = await one.answer()
        assert (status, b"body_timeout" in body) == (408, True)


async def test_a_client_that_waits_to_be_asked_is_asked(running: Running) -> None:
    await make(running)
    data = await export(running)
    async with running.http.put("/v1/states/copy/import", data=data, expect100=True) as response:
        assert response.status == 201


async def test_an_import_is_its_tenants(tmp_path: Path) -> None:
    async with states_running(tmp_path, keys=KEYS) as running:
        await make(running, headers=ANNA)
        data = await export(running, **ANNA)
        assert (await take(running, data, "tale", **BERT))[0] == 201
        _, page = await ask(running, "GET", "/v1/states", **ANNA)
        assert [(one["name"], one["version"]) for one in page["data"]] == [("tale", 1)]
