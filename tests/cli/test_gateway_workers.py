"""``wkvm serve --gateway-workers``: several processes that serve one port, as if they were one."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from wkvm_protocol.codec import Codec
from wkvm_protocol.messages import Hello, HelloOk

from tests.cli.conftest import KEY, RunningServer, environment, started, wkvm_command

TIMEOUT_S = 60.0
"""Nothing that is waited for here takes this long unless it is broken."""
AUTH = {"Authorization": f"Bearer {KEY}"}
N_CALLS = 24
"""Over connections of their own: that all come to one of two workers happens once in 2**23."""
SECOND = "a second key of that tenant"
SERVE = ("serve", "--binary-port", "none", "--port", "0", "--gateway-workers", "2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("workers")
    places = ("--binary-uds", str(folder / "b"), "--uds", str(folder / "h"))
    states = ("--state-dir", str(folder / "states"))
    keys = folder / "keys"
    keys.write_text(f"local:{SECOND}\n[requests=9]\nlimited:a key with limits\n")
    log = ("--request-log", "json", "--api-keys-file", str(keys))
    with started(wkvm_command(*SERVE, *places, *states, *log), stderr=folder / "log") as process:
        yield process
        assert process.end() == 0
        assert not (folder / "h").exists()


@pytest.fixture
def log(server: RunningServer) -> Path:
    """What the server writes to standard error."""
    assert server.stderr is not None
    return server.stderr


def is_there(path: str) -> bool:
    return Path(path).exists()


def written(log: Path) -> str:
    return log.read_text(encoding="utf-8")


@asynccontextmanager
async def client(base: str, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that makes a connection for each call."""
    options.setdefault("connector", aiohttp.TCPConnector(force_close=True))
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(base, headers=AUTH, timeout=timeout, **options) as http:
        yield http


async def call(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
    """The JSON of an answer that is no error."""
    async with http.request(method, path, json=body) as response:
        text = await response.text()
        assert response.status < 300, text
        return json.loads(text)


async def figure(http: aiohttp.ClientSession, pattern: str) -> float:
    """A number of /metrics."""
    async with http.get("/metrics") as response:
        found = re.search(rf"^{pattern} ([0-9.e+]+)$", await response.text(), re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def workers_of(server: RunningServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [one for one in children if "wkvm.assembly.worker" in one.cmdline()]


async def test_all_workers_serve_the_one_address(server: RunningServer) -> None:
    async with client(server.url()) as http:
        assert await figure(http, "wkvm_http_workers") == 2
    assert len(workers_of(server)) == 2
    assert server.ready_line.count("http://") == 1


async def test_metrics_are_those_of_all_workers_whoever_answers(server: RunningServer) -> None:
    name = r'wkvm_http_requests_total\{method="GET",route="/version",status="2xx"\}'
    async with client(server.url()) as http:
        before = await figure(http, name)
        for _ in range(N_CALLS):
            await call(http, "GET", "/version")
        found = {await figure(http, name) for _ in range(N_CALLS)}
    assert found == {before + N_CALLS}


async def test_a_submitted_request_is_found_by_whichever_worker_is_asked(
    server: RunningServer,
) -> None:
    async with client(server.url()) as http:
        for _ in range(4):
            body = {"ids": [5, 6], "max_tokens": 3, "ignore_eos": True}
            accepted = await call(http, "POST", "/v1/submit", body)
            for _ in range(N_CALLS // 2):
                found = await call(http, "GET", f"/v1/status/{accepted['id']}?from=0")
                assert found["id"] == accepted["id"]


async def test_what_one_key_of_a_tenant_has_another_finds_at_whichever_worker(
    server: RunningServer,
) -> None:
    others = {"Authorization": f"Bearer {SECOND}"}
    foreign = {"Authorization": "Bearer a key with limits"}
    body = {"ids": [5, 6], "max_tokens": 3, "ignore_eos": True}
    async with client(server.url()) as http:
        submitted = await call(http, "POST", "/v1/submit", body)
        talk = await call(http, "POST", "/v1/conversations", {})
        for path in (f"/v1/status/{submitted['id']}", f"/v1/conversations/{talk['id']}"):
            for _ in range(N_CALLS // 3):
                async with http.get(path, headers=others) as response:
                    assert response.status == 200, path
                async with http.get(path, headers=foreign) as response:
                    assert response.status == 404, path


async def test_a_request_is_cancelled_by_its_name_through_whichever_worker(
    server: RunningServer,
) -> None:
    body = {"ids": [5, 6], "max_tokens": 100_000, "ignore_eos": True}
    async with client(server.url()) as http:
        for n in range(8):
            named = {"X-Request-Id": f"long-{n}"}
            async with http.post("/v1/stream", json=body, headers=named) as response:
                await response.content.readline()
                answer = await call(http, "POST", "/v1/cancel", {"id": f"long-{n}"})
                assert answer["cancelled"]
                assert b'"reason":"cancelled"' in await response.read()


async def test_what_no_worker_knows_cannot_be_cancelled(server: RunningServer) -> None:
    async with (
        client(server.url()) as http,
        http.post("/v1/cancel", json={"id": "nothing"}) as response,
    ):
        assert response.status == 404


async def test_a_session_goes_on_through_whichever_worker(server: RunningServer) -> None:
    turn = {"text": " there", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    async with client(server.url()) as http:
        opened = await call(http, "POST", "/v1/sessions", {"name": "s", "text": "Once"})
        assert opened["id"] == "s"
        for n in range(6):
            async with http.post("/v1/sessions/s/generate", json={**turn, "stream": True}) as one:
                assert one.headers["Content-Type"].startswith("text/event-stream")
                streamed = await one.read()
            assert streamed.endswith(b"data: [DONE]\n\n")
            async with http.get("/v1/sessions/s/events") as again:
                assert await again.read() == streamed
            found = await call(http, "GET", "/v1/sessions/s")
            assert found["turn"]["status"] == "done"
            assert found["state"]["version"] == n + 2
        await call(http, "DELETE", "/v1/sessions/s")


async def test_a_new_session_of_an_old_name_has_no_turn(server: RunningServer) -> None:
    async with client(server.url()) as http:
        for n in range(4):
            await call(http, "POST", "/v1/sessions", {"name": f"t{n}", "text": "Once"})
            body = {"text": "a", "max_tokens": 1, "ignore_eos": True}
            await call(http, "POST", f"/v1/sessions/t{n}/generate", body)
            await call(http, "DELETE", f"/v1/states/t{n}")
            again = await call(http, "POST", "/v1/sessions", {"name": f"t{n}", "text": "Once"})
            assert again["turn"] is None
            assert (await call(http, "GET", f"/v1/sessions/t{n}"))["turn"] is None


async def test_responses_go_on_from_one_another_whichever_worker_made_them(
    server: RunningServer,
) -> None:
    async with client(server.url()) as http:
        model = (await call(http, "GET", "/v1/models"))["data"][0]["id"]
        body = {"model": model, "max_output_tokens": 4, "temperature": 0}
        previous = await call(http, "POST", "/v1/responses", {**body, "input": "Hello"})
        for _ in range(6):
            asked = {**body, "input": "And?", "previous_response_id": previous["id"]}
            previous = await call(http, "POST", "/v1/responses", asked)
            assert previous["usage"]["input_tokens_details"]["cached_tokens"] > 0
            assert await call(http, "GET", f"/v1/responses/{previous['id']}") == previous


async def test_a_response_in_the_background_is_cancelled_by_whichever_worker_is_asked(
    server: RunningServer,
) -> None:
    async with client(server.url()) as http:
        model = (await call(http, "GET", "/v1/models"))["data"][0]["id"]
        for _ in range(4):
            body = {"model": model, "input": "Hi", "background": True, "ignore_eos": True}
            made = await call(http, "POST", "/v1/responses", {**body, "max_output_tokens": 100_000})
            for _ in range(4):
                found = await call(http, "GET", f"/v1/responses/{made['id']}")
                assert found["status"] in ("queued", "in_progress")
            cancelled = await call(http, "POST", f"/v1/responses/{made['id']}/cancel")
            assert cancelled["status"] == "cancelled"


async def test_the_binary_protocol_over_websocket_reaches_the_engine_by_any_worker(
    server: RunningServer,
) -> None:
    hello = Codec(Hello).encode(Hello("wkvm", 1, 1))
    async with client(server.url()) as http:
        for _ in range(4):
            async with http.ws_connect("/v1/ws", protocols=("wkvm.v1",)) as socket:
                await socket.send_bytes(hello)
                told = Codec(HelloOk).decode(await socket.receive_bytes())
                assert told.model == "rwkv7-tinystories"


async def test_questions_of_workers_are_not_answered_to_clients(server: RunningServer) -> None:
    async with (
        client(server.url()) as http,
        http.post("/-/ask", json={"type": "Tell"}) as response,
    ):
        assert response.status == 404


async def test_the_request_id_comes_back_from_the_worker_that_answers(
    server: RunningServer,
) -> None:
    async with client(server.url()) as http:
        for _ in range(N_CALLS // 2):
            named = {"X-Request-Id": "mine"}
            async with http.get("/v1/status/gen-none", headers=named) as response:
                assert response.status == 404
                assert response.headers.getall("X-Request-Id") == ["mine"]


async def test_a_unix_socket_is_served_too(server: RunningServer) -> None:
    path = server.ready_line.split("http+unix://")[1].strip()
    connector = aiohttp.UnixConnector(path, force_close=True)
    async with client("http://wkvm", connector=connector) as http:
        for _ in range(4):
            assert (await call(http, "GET", "/v1/models"))["data"]


def test_workers_are_not_told_the_key(server: RunningServer) -> None:
    for worker in workers_of(server):
        assert "WKVM_API_KEY" not in worker.environ()


async def test_a_key_has_its_limit_once_over_all_workers(server: RunningServer) -> None:
    limited = {"Authorization": "Bearer a key with limits"}
    body = {"ids": [5, 6], "max_tokens": 1}
    async with client(server.url()) as http:
        statuses = list[int]()
        for _ in range(N_CALLS):
            async with http.post("/v1/generate", json=body, headers=limited) as response:
                statuses.append(response.status)
    assert statuses.count(200) == 9
    assert statuses[9:] == [429] * (N_CALLS - 9)


async def test_all_workers_log_to_the_servers_standard_error(
    server: RunningServer, log: Path
) -> None:
    async with client(server.url()) as http:
        for n in range(N_CALLS):
            async with http.get("/v1/states/none", headers={"X-Request-Id": f"logged-{n}"}) as one:
                assert one.status == 404
    lines = [json.loads(line) for line in written(log).splitlines() if line.startswith("{")]
    told = {line["id"]: line for line in lines}
    for n in range(N_CALLS):
        assert told[f"logged-{n}"]["status"] == 404
        assert told[f"logged-{n}"]["route"] == "GET /v1/states/{ref}"


async def test_what_workers_ask_each_other_is_not_in_the_log_of_requests(
    server: RunningServer, log: Path
) -> None:
    async with client(server.url()) as http:
        assert await figure(http, "wkvm_http_workers") == 2  # so each asked the other
    assert '"route":"GET /metrics"' in written(log)
    assert "/-/ask" not in written(log)


async def test_a_call_that_another_worker_answers_is_logged_once(
    server: RunningServer, log: Path
) -> None:
    async with client(server.url()) as http:
        for n in range(N_CALLS):
            async with http.get("/v1/status/gen-0", headers={"X-Request-Id": f"once-{n}"}):
                pass
    text = written(log)
    assert [text.count(f'"id":"once-{n}"') for n in range(N_CALLS)] == [1] * N_CALLS


async def test_a_worker_that_is_killed_is_started_anew_and_nobody_is_refused(
    server: RunningServer,
) -> None:
    killed, other = workers_of(server)
    async with client(server.url()) as http:
        killed.kill()
        for _ in range(N_CALLS):
            await call(http, "GET", "/version")
        assert await figure(http, "wkvm_http_workers") == 2
    running = workers_of(server)
    assert len(running) == 2
    assert other in running
    assert killed not in running


async def test_a_worker_that_is_killed_again_and_again_leaves_the_port_to_the_others(
    server: RunningServer, log: Path
) -> None:
    for _ in range(2):
        workers_of(server)[-1].kill()
        async with client(server.url()) as http, asyncio.timeout(TIMEOUT_S):
            while await figure(http, "wkvm_http_workers") != 2:
                pass
    assert "started anew in 0.5 s" in written(log)


async def test_an_engine_that_is_stopped_is_not_ready_within_five_seconds_and_loses_nothing(
    server: RunningServer,
) -> None:
    body = {"ids": [5, 6], "max_tokens": 200, "ignore_eos": True}
    async with client(server.url()) as http, http.post("/v1/stream", json=body) as response:
        await response.content.readline()
        server.process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            told = await readiness(http, 503)
            took_s = time.monotonic() - stopped_at
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert (told["reason"], took_s < 5.0) == ("engine_unavailable", True)
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert (await readiness(http, 200))["status"] == "ready"


async def readiness(http: aiohttp.ClientSession, status: int) -> Any:
    """What ``/ready`` says once it has a status."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            async with http.get("/ready") as response:
                told = await response.json()
                if response.status == status:
                    return told


async def test_a_worker_that_is_stopped_is_killed_and_started_anew(tmp_path: Path) -> None:
    impatient = (
        "import sys, wkvm.assembly.workers as workers; from wkvm.cli import main;"
        "workers.SILENT_S = 3.0; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", impatient, *SERVE[:-1], "1", "--port", "0"]
    with started([*command, "--binary-uds", str(tmp_path / "b")], stderr=tmp_path / "log") as one:
        (stopped,) = workers_of(one)
        stopped.suspend()
        await asyncio.to_thread(psutil.wait_procs, [stopped], TIMEOUT_S)
        async with client(one.url()) as http:
            assert (await readiness(http, 200))["status"] == "ready"
        assert "it stood still for 3 s; it is started anew in 0 s" in written(tmp_path / "log")
        assert one.end() == 0


def refused(*arguments: str) -> str:
    """What a gateway says that does not come to serve."""
    command = wkvm_command("gateway", "--engine", "unix:///none", *arguments)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment() | {"WKVM_API_KEY": KEY},
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 2
    return done.stderr


def test_the_port_is_not_shared_with_another_server(server: RunningServer) -> None:
    port = server.url().rpartition(":")[2]
    said = refused("--port", port, "--gateway-workers", "2")
    assert f"port: {port}" in said


@pytest.mark.parametrize("n", ["-1", "65"])
def test_a_number_of_workers_that_cannot_be_is_refused(n: str) -> None:
    said = refused("--port", "0", "--gateway-workers", n)
    assert "gateway-workers" in said


async def test_a_stream_is_sent_to_its_end_when_the_server_is_told_to_end(tmp_path: Path) -> None:
    with started(wkvm_command(*SERVE, "--binary-uds", str(tmp_path / "b"))) as server:
        workers = workers_of(server)
        body = {"ids": [5, 6], "max_tokens": 400, "ignore_eos": True}
        async with client(server.url()) as http, http.post("/v1/stream", json=body) as response:
            await response.content.readline()
            server.process.send_signal(signal.SIGTERM)
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 0
        assert not any(one.is_running() for one in workers)


async def test_a_gateway_apart_from_its_engine_has_workers_too(tmp_path: Path) -> None:
    engine = [sys.executable, "-m", "tests.cli.engine_process", str(tmp_path / "b"), "5", KEY]
    address, uds = f"unix://{tmp_path / 'b'}", str(tmp_path / "h")
    where = ("--engine", address, "--port", "0", "--uds", uds, "--gateway-workers", "2")
    with started(engine), started(wkvm_command("gateway", *where)) as gateway:
        workers = workers_of(gateway)
        assert len(workers) == 2
        async with client(gateway.url()) as http:
            assert await figure(http, "wkvm_http_workers") == 2
            body = {"ids": [5, 6], "max_tokens": 3, "ignore_eos": True}
            accepted = await call(http, "POST", "/v1/submit", body)
            for _ in range(N_CALLS // 2):
                await call(http, "GET", f"/v1/status/{accepted['id']}")
            async with http.get("/v1/models", headers={"Authorization": "Bearer x"}) as refused:
                assert refused.status == 401
        assert await asyncio.to_thread(gateway.end) == 0
        assert not any(one.is_running() for one in workers)
        assert not is_there(uds)


async def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    engine = [sys.executable, "-m", "tests.cli.engine_process", str(tmp_path / "b"), "5", KEY]
    where = ("--engine", f"unix://{tmp_path / 'b'}", "--port", "0", "--gateway-workers", "2")
    with started(engine), started(wkvm_command("gateway", *where)) as gateway:
        workers = workers_of(gateway)
        assert len(workers) == 2
        gateway.process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, TIMEOUT_S)
        assert alive == []


def test_a_gateway_whose_engine_is_not_there_says_so(tmp_path: Path) -> None:
    where = ("--engine", f"unix://{tmp_path / 'none'}", "--port", "0", "--gateway-workers", "2")
    done = subprocess.run(
        wkvm_command("gateway", *where),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert str(tmp_path / "none") in done.stderr
