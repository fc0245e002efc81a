"""An engine that fails tells everybody, in the form of each interface, and ends its process."""

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from wkvm_client import aio
from wkvm_client.errors import EngineFailedError

from tests.cli.conftest import KEY, RunningServer, started
from tests.cli.failing_server import LOST, TEXT

TIMEOUT_S = 60.0
"""Nothing that is waited for here takes this long unless it is broken."""
AUTH = {"Authorization": f"Bearer {KEY}"}
MODEL = "rwkv7-tinystories"
CANARY = "zebra-canary"
"""In every text that is sent, and in the names of states."""
ENDLESS = {"max_tokens": 10**5, "ignore_eos": True, "temperature": 0}
QUESTION = [{"role": "user", "content": f"Tell me a long story of a {CANARY}."}]

FIELDS = ("time", "level", "logger", "process", "pid", "message")
"""Of a line of the log."""

Read = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Failing:
    """A folder with a server that can be made to fail.

    Attributes:
        fault: the file that says how.
    """

    folder: Path

    @property
    def fault(self) -> Path:
        return self.folder / "fault"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def served(self, *flags: str) -> AbstractContextManager[RunningServer]:
        command = [sys.executable, "-m", "tests.cli.failing_server", str(self.fault), "serve"]
        places = ["--binary-port", "none", "--binary-uds", str(self.folder / "b"), "--port", "0"]
        kept = ["--state-dir", str(self.folder / "states")]
        log = ["--log-format", "json", "--log-level", "debug", "--request-log", "json"]
        return started([*command, *places, *kept, *log, *flags], stderr=self.log)

    def reports(self) -> list[Path]:
        return sorted((self.folder / "states" / "crashes").glob("*"))


@asynccontextmanager
async def client(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(url, headers=AUTH, timeout=timeout) as http:
        yield http


async def call(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
    async with http.request(method, path, json=body) as response:
        text = await response.text()
        assert response.status < 300, text
        return json.loads(text)


async def begin(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Read:
    """Ask for a stream and read its first line; what reads the rest."""
    asked = body if path == "/v1/stream" else {**body, "stream": True}
    response = await http.post(path, json=asked)
    assert response.status == 200, await response.text()
    await response.content.readline()

    async def read() -> str:
        return (await response.content.read()).decode()

    return read


def last_data(text: str) -> Any:
    """The data of a stream's last event that is JSON."""
    found = [line for line in text.splitlines() if line.startswith("data: {")]
    return json.loads(found[-1].removeprefix("data: "))


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": CANARY, **ENDLESS},
    "/v1/chat/completions": {"model": MODEL, "messages": QUESTION, **ENDLESS},
    "/v1/messages": {"model": MODEL, "messages": QUESTION, "max_tokens": 10**5, "temperature": 0},
    "/completion": {"prompt": CANARY, "n_predict": 10**5, "ignore_eos": True},
    "/generate": {"text": CANARY, "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}},
    "/v1/stream": {"ids": [5, 6], **ENDLESS},
    "/v1/responses": {"model": MODEL, "input": QUESTION[0]["content"], "temperature": 0},
}
"""One of each interface that streams server-sent events."""


def check_ends(path: str, text: str) -> None:
    """That a stream ends by an error, as its interface says one."""
    told, names = last_data(text), re.findall(r"^event: (.*)$", text, re.MULTILINE)
    match path:
        case "/v1/messages":
            assert (names[-1], told["type"]) == ("error", "error")
            assert told["error"]["type"] == "overloaded_error"
        case "/completion":
            assert (told["error"]["code"], told["error"]["type"]) == (503, "unavailable_error")
        case "/v1/responses":
            assert told["type"] == "response.failed"
            assert told["response"]["error"]["code"] == "engine_failed"
        case _:
            assert told["error"]["code"] == "engine_failed", text[-500:]
    if path != "/v1/responses":
        assert "[DONE]" not in text


@pytest.mark.parametrize("workers", ["0", "1"])
async def test_every_open_request_is_told_and_the_status_is_70(
    tmp_path: Path, workers: str
) -> None:
    failing = Failing(tmp_path)
    with failing.served("--gateway-workers", workers) as server:
        async with client(server.url()) as http:
            await call(
                http,
                "POST",
                "/v1/completions",
                {"model": MODEL, "prompt": CANARY, "max_tokens": 1, "save_as": CANARY},
            )
            turn = {"model": MODEL, "messages": QUESTION, "state": CANARY, "save_as": CANARY}
            reads = await asyncio.gather(
                *(begin(http, path, body) for path, body in STREAMS.items()),
                begin(http, "/v1/chat/completions", {**turn, **ENDLESS}),
            )
            question = {"model": MODEL, "input": CANARY, "background": True}
            behind = await call(http, "POST", "/v1/responses", question)
            whole = asyncio.create_task(
                http.post("/v1/completions", json={"model": MODEL, "prompt": CANARY, **ENDLESS})
            )
            web_socket = await http.ws_connect("/v1/responses")
            await web_socket.send_json({"type": "response.create", "model": MODEL, "input": CANARY})
            web = server.url().replace("http", "ws", 1) + "/v1/ws"
            async with (
                await aio.connect(server.address, api_key=KEY) as binary,
                await aio.connect(web, api_key=KEY) as over_web_socket,
            ):
                streams = [
                    await one.generate((5,), max_tokens=10**5, ignore_eos=True)
                    for one in (binary, over_web_socket)
                ]
                for stream in streams:
                    await stream.choices[0].read()
                failing.fault.write_text("lost", encoding="utf-8")
                for stream in streams:
                    with pytest.raises(EngineFailedError):
                        await stream.completion()
            for path, read in zip([*STREAMS, "/v1/chat/completions"], reads, strict=True):
                check_ends(path, await read())
            answer = await whole
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert (await answer.json())["error"]["code"] == "engine_failed"
            told = [json.loads(one.data) async for one in web_socket if one.type.value == 1]
            assert told[-1]["type"] == "response.failed", told[-1]["type"]
            assert told[-1]["response"]["error"]["code"] == "engine_failed"
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 70
    failing.fault.unlink()
    check_report(failing, "engine_failed")
    if workers == "0":
        return  # what is kept is the same
    with failing.served() as server:
        async with client(server.url()) as http:
            kept = await call(http, "GET", f"/v1/responses/{behind['id']}")
            assert (kept["status"], kept["error"]["code"]) == ("failed", "engine_failed")
            state = await call(http, "GET", f"/v1/states/{CANARY}")
            assert (state["head"], state["ack"]) == (1, "durable")
        assert server.end() == 0


def check_report(failing: Failing, reason: str) -> None:
    """That there is one report, with what it should have and nothing that it should not."""
    (path,) = failing.reports()
    text, log = path.read_text("utf-8"), failing.log.read_text("utf-8")
    report = json.loads(text)
    assert report["reason"] == reason
    assert report["steps"]["failed_last" if reason == "engine_failed" else "in_flight"]
    expected = {"MainThread"} if reason == "engine_failed" else {"MainThread", "wkvm-step"}
    assert {one["thread"] for one in report["threads"]} >= expected
    for one in (text, log):
        for secret in (CANARY, TEXT, KEY, str(failing.folder), "zebra"):
            assert secret not in one
    for line in log.splitlines():
        told = json.loads(line)
        if "route" in told:
            continue  # of the log of requests, which has fields of its own
        assert tuple(told)[:6] == FIELDS
        assert set(told) - {*FIELDS} <= {"errors"}
    if reason == "engine_failed":
        messages = [one["message"] for one in report["errors"] if "message" in one]
        assert messages == [LOST]


async def test_a_step_that_hangs_ends_its_requests_and_the_process_with_status_71(
    tmp_path: Path,
) -> None:
    failing = Failing(tmp_path)
    with failing.served("--step-timeout-s", "1") as server:
        async with client(server.url()) as http:
            read = await begin(http, "/v1/completions", STREAMS["/v1/completions"])
            failing.fault.write_text("hang", encoding="utf-8")
            check_ends("/v1/completions", await read())
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 71
    check_report(failing, "step_stalled")


async def seen_until_ready(port: str) -> list[tuple[int, str | None]]:
    """Status and reason of ``/ready``, again and again, from before there is a server on."""
    seen = list[tuple[int, str | None]]()
    async with client(f"http://127.0.0.1:{port}") as http:
        while seen[-1:] != [(200, None)]:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with http.get("/ready") as response:
                    told = await response.json()
                    seen.append((response.status, told.get("reason")))
            await asyncio.sleep(0.01)  # nothing announces it
    return seen


async def test_a_server_starts_then_refuses_a_step_without_memory_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    failing = Failing(tmp_path)
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 2}
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.bind(str(tmp_path / "supervisor"))
    supervisor.settimeout(TIMEOUT_S)
    monkeypatch.setenv("NOTIFY_SOCKET", supervisor.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    looking = asyncio.create_task(seen_until_ready(port))
    serving = failing.served("--port", port)
    server = await asyncio.to_thread(serving.__enter__)
    try:
        assert dict.fromkeys(await looking) == dict.fromkeys([(503, "starting"), (200, None)])
        # Before the engine fails: a quick server would be over before its first sign of life.
        told = [await asyncio.to_thread(supervisor.recv, 100) for _ in range(2)]
        assert told == [b"READY=1\nSTATUS=serving", b"WATCHDOG=1"]
        async with client(server.url()) as http:
            failing.fault.write_text("memory", encoding="utf-8")
            async with http.post("/v1/completions", json=body) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert (await response.json())["error"]["code"] == "step_memory"
            await call(http, "POST", "/v1/completions", body)
            failing.fault.write_text("exit", encoding="utf-8")
            async with http.post("/v1/completions", json=body) as response:
                assert (await response.json())["error"]["code"] == "engine_failed"
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 70
        while not (last := supervisor.recv(100)).startswith(b"STOPPING=1"):
            assert last == b"WATCHDOG=1"
    finally:
        looking.cancel()
        supervisor.close()
        serving.__exit__(None, None, None)
