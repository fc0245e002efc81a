"""HTTP from the command line: beside the engine and apart from it, from the start to the end."""

import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cli.conftest import KEY, RunningServer, environment, started, wkvm_command
from wkvm.assembly.models import BUNDLED
from wkvm.assembly.texts import load_texts
from wkvm.cli import main
from wkvm.cli.parser import parse
from wkvm.cli.serving import http_texts
from wkvm.gateway.parsing.forms import REASONING_FORMS, TOOL_FORMS
from wkvm.gateway.text import ByteTokenizer

TIMEOUT_S = 60.0
"""Nothing that is waited for here takes this long unless it is broken."""
AUTH = {"Authorization": f"Bearer {KEY}"}


def running(*arguments: str) -> AbstractContextManager[RunningServer]:
    """``wkvm`` with these arguments."""
    return started(wkvm_command(*arguments))


def engine(path: Path, *keys: str, grace_s: int = 0) -> AbstractContextManager[RunningServer]:
    """An engine that computes nothing, behind a unix socket and HTTP."""
    command = [sys.executable, "-m", "tests.cli.engine_process", str(path), str(grace_s), *keys]
    return started(command)


SERVE = ("serve", "--binary-port", "none", "--port", "0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("http")
    uds = str(folder / "h")
    with running(*SERVE, "--binary-uds", str(folder / "b"), "--uds", uds) as process:
        yield process
        assert process.end() == 0
        assert list(folder.iterdir()) == []


@asynccontextmanager
async def session(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with the key."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(headers=AUTH, timeout=timeout, **options) as http:
        yield http


async def get(url: str, http: aiohttp.ClientSession) -> int:
    """The status of a GET."""
    async with http.get(url) as response:
        await response.read()
        return response.status


async def begin(
    http: aiohttp.ClientSession, url: str, max_tokens: int, temperature: float = 0
) -> aiohttp.ClientResponse:
    """Ask for a completion as a stream, and read its first event."""
    body = {
        "model": "rwkv7-tinystories",
        "prompt": [5, 6],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": temperature,
    }
    response = await http.post(f"{url}/v1/completions", json=body)
    assert response.status == 200
    assert (await response.content.readline()).startswith(b"data: ")
    return response


async def draining(http: aiohttp.ClientSession, url: str) -> None:
    """Wait for the drain to begin."""
    async with asyncio.timeout(TIMEOUT_S):
        while await get(f"{url}/ready", http) != 503:  # noqa: ASYNC110  (nothing announces it)
            await asyncio.sleep(0.01)


def events(text: bytes) -> list[str]:
    """The data of a stream's events."""
    return [line.removeprefix("data: ") for line in text.decode().split("\n") if line]


# --- beside the engine -----------------------------------------------------------------------


async def test_http_is_beside_the_binary_protocol_with_the_same_keys(server: RunningServer) -> None:
    pattern = r"ready unix://\S+/b http://127\.0\.0\.1:\d+ http\+unix:///\S+/h\n"
    assert re.fullmatch(pattern, server.ready_line)
    async with session() as http, http.get(f"{server.url()}/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "rwkv7-tinystories"
    async with aiohttp.ClientSession() as http:
        assert await get(f"{server.url()}/v1/models", http) == 401
        assert await get(f"{server.url()}/ready", http) == 200


async def test_the_unix_socket_serves_the_same_user_alone(server: RunningServer) -> None:
    path = server.url("http+unix").removeprefix("http+unix://")
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    async with session(connector=aiohttp.UnixConnector(path)) as http:
        assert await get("http://localhost/v1/models", http) == 200


async def test_a_client_that_leaves_frees_its_slot(server: RunningServer) -> None:
    async with session() as http:
        for _ in range(3):
            response = await begin(http, server.url(), max_tokens=10**6)
            response.close()
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                async with http.get(f"{server.url()}/metrics") as response:
                    text = await response.text()
                if re.search(r"^vllm:num_requests_running\S* 0(\.0)?$", text, re.MULTILINE):
                    break


def test_a_port_in_use_is_named_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    monkeypatch.setattr("wkvm.assembly.engine.load_model", lambda *a, **k: pytest.fail("loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--binary-port", "0", "--port", str(port)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        f"wkvm serve: port: {port}: Address already in use\n",
    )


def test_one_port_for_both_doors_ends_in_one_line_and_nothing_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = subprocess.run(
        wkvm_command("serve", "--binary-port", str(port), "--port", str(port), "--uds", "h"),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"wkvm serve: port: {port}: Address already in use\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--binary-port", "none", "--binary-uds", "x"], []])
def test_without_a_key_other_machines_are_not_served(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    monkeypatch.setattr("wkvm.assembly.engine.load_model", lambda *a, **k: pytest.fail("loaded"))
    assert main(["serve", "--host", "0.0.0.0", "--port", "0", *arguments]) == 2
    assert re.match("wkvm serve: host: '0.0.0.0' is not a loopback", capsys.readouterr().err)


@pytest.mark.parametrize("more", [(), ("--gateway-workers", "1")], ids=["beside", "apart"])
async def test_http_is_served_alone(more: tuple[str, ...]) -> None:
    with running(*SERVE, *more) as process:
        _, *addresses = process.ready_line.split()
        assert [one.partition(":")[0] for one in addresses] == ["http"]
        async with session() as http:
            body = {"ids": [5, 6], "max_tokens": 2, "temperature": 0}
            async with http.post(f"{process.url()}/v1/generate", json=body) as response:
                assert len((await response.json())["choices"][0]["ids"]) == 2
        assert process.end() == 0


def test_a_model_without_tokenizer_needs_the_port_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(BUNDLED / "config.json", tmp_path)
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert re.match(
        "wkvm serve: port: HTTP needs the model's tokenizer; 'none' serves", capsys.readouterr().err
    )


@pytest.mark.parametrize("given", [None, 7])
def test_the_model_may_say_how_long_answers_are(tmp_path: Path, given: int | None) -> None:
    assert load_texts(tmp_path, ByteTokenizer(), default_max_tokens=given).default_max_tokens == (
        given or 256
    )
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 33, "top_k": 5}')
    texts = load_texts(tmp_path, ByteTokenizer(), default_max_tokens=given)
    assert (texts.default_max_tokens, texts.suggested) == (given or 33, {"top_k": 5})
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": -1}')
    texts = load_texts(tmp_path, ByteTokenizer(), default_max_tokens=given)
    assert texts.default_max_tokens == (given or 256)


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_how_answers_are_read_is_what_the_flags_say(tmp_path: Path, command: str) -> None:
    named = parse([command, "--tool-call-parser", "qwen3", "--reasoning-parser", "mistral"])
    texts = http_texts(named, tmp_path, ByteTokenizer())
    assert texts.tool_form is TOOL_FORMS["hermes"]
    assert texts.reasoning_form is REASONING_FORMS["mistral"]
    texts = http_texts(parse([command]), tmp_path, ByteTokenizer())
    assert texts.tool_form is TOOL_FORMS["json"]
    assert texts.reasoning_form is None


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("the command openssl, which makes the certificate, is not here")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
        -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


async def test_https_is_spoken_with_a_certificate(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    cert, key = certificate
    tls = ("--ssl-certfile", cert, "--ssl-keyfile", key)
    with running(*SERVE, "--binary-uds", str(tmp_path / "b"), *tls) as process:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cert))
        async with session(connector=connector) as http:
            assert await get(f"{process.url('https')}/v1/models", http) == 200
        assert process.end() == 0


# --- the end ---------------------------------------------------------------------------------


async def test_idle_connections_keep_no_server_alive(tmp_path: Path) -> None:
    with engine(tmp_path / "b", KEY, grace_s=3600) as process:
        async with session() as http:
            assert await get(f"{process.url()}/v1/models", http) == 200
            assert process.end() == 0


async def test_a_hundred_streams_end_in_full_while_the_server_drains(tmp_path: Path) -> None:
    hold = tmp_path / "b.hold"  # no stream is over before it has been seen that the server drains
    hold.touch()
    with engine(tmp_path / "b", KEY, grace_s=3600) as process:
        connector = aiohttp.TCPConnector(limit=0)
        async with session(connector=connector) as http, session() as others:
            url = process.url()
            streams = await asyncio.gather(*(begin(http, url, 150) for _ in range(100)))
            process.process.terminate()
            await draining(others, url)
            async with others.get(f"{url}/v1/models") as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) >= 1
            hold.unlink()
            for text in await asyncio.gather(*(one.read() for one in streams)):
                *_, last, done = events(text)
                assert done == "[DONE]"
                assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert process.process.wait(timeout=TIMEOUT_S) == 0


@pytest.mark.parametrize("n_signals", [1, 2])
async def test_what_is_cut_short_is_told_so_and_the_status_is_0(
    tmp_path: Path, n_signals: int
) -> None:
    with engine(tmp_path / "b", KEY, grace_s=0 if n_signals == 1 else 3600) as process:
        async with session() as http:
            streams = [await begin(http, process.url(), 10**6) for _ in range(3)]
            process.process.terminate()
            if n_signals == 2:
                # two signals at once may count as one
                await draining(http, process.url())
                process.process.terminate()
            for stream in streams:
                *_, last = events(await stream.read())
                assert set(json.loads(last)) == {"error"}
        assert process.process.wait(timeout=TIMEOUT_S) == 0


# --- apart from the engine -------------------------------------------------------------------


async def test_a_gateway_apart_outlives_its_engine(tmp_path: Path) -> None:
    path = tmp_path / "b"
    where = ("--engine", f"unix://{path}", "--port", "0")
    with engine(path, KEY) as first, running("gateway", *where) as gateway:
        url = gateway.url()
        async with session() as http:
            response = await begin(http, url, 10**6)
            assert first.end() == 0
            *_, last = events(await response.read())
            assert "error" in json.loads(last)
            async with http.get(f"{url}/v1/models") as answer:
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) >= 1
                assert (await answer.json())["error"]["message"] == "the engine cannot be reached"
            async with http.post(f"{url}/v1/completions", json={}) as answer:
                assert answer.status == 503
            with engine(path, KEY) as second:
                response = await begin(http, url, 5)
                assert events(await response.read())[-1] == "[DONE]"
                other = {"Authorization": "Bearer wrong"}
                async with http.get(f"{url}/v1/models", headers=other) as answer:
                    assert answer.status == 401
                assert gateway.end() == 0
                assert second.end() == 0


async def test_a_gateway_apart_drains(tmp_path: Path) -> None:
    where = ("--engine", f"unix://{tmp_path / 'b'}", "--port", "0", "--uds", str(tmp_path / "h"))
    with engine(tmp_path / "b", KEY) as process, running("gateway", *where) as gateway:
        async with session() as http:
            response = await begin(http, gateway.url(), 800)
            gateway.process.terminate()
            assert events(await response.read())[-1] == "[DONE]"
            assert gateway.process.wait(timeout=TIMEOUT_S) == 0
        assert not (tmp_path / "h").exists()
        with running("gateway", "--drain-timeout-s", "0", *where) as gateway:
            async with session() as http:
                response = await begin(http, gateway.url(), 10**6)
                gateway.process.terminate()
                assert "error" in json.loads(events(await response.read())[-1])
                assert gateway.process.wait(timeout=TIMEOUT_S) == 0
        assert process.end() == 0


async def test_a_gateway_apart_shows_no_engine_without_keys_to_other_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b"
    where = ("gateway", "--engine", f"unix://{path}", "--host", "0.0.0.0", "--port", "0")
    with engine(path) as process:
        assert await asyncio.to_thread(main, where) == 1
        why = "wkvm gateway: the engine asks for no key, and so is not served beyond loopback\n"
        assert capsys.readouterr().err == why
        assert process.end() == 0
    # one that asked for keys may come back without them
    with engine(path, KEY) as process, running(*where) as gateway:
        url = f"http://127.0.0.1:{gateway.url().rpartition(':')[2]}"
        async with session() as http:
            assert await get(f"{url}/v1/models", http) == 200
            assert process.end() == 0
            with engine(path) as process:
                assert await get(f"{url}/v1/models", http) == 503
                assert process.end() == 0


def test_a_gateway_names_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    path = str(tmp_path / "b")
    where = ["gateway", "--engine", f"unix://{path}", "--port", "0"]
    assert main(where) == 1
    assert path in capsys.readouterr().err
    with engine(tmp_path / "b", KEY) as process:
        assert main(where) == 1
        assert "asks for a key: --api-key or $WKVM_API_KEY" in capsys.readouterr().err
        assert main([*where, "--api-key", KEY, "--tokenizer", "bytes"]) == 2
        assert re.match("wkvm gateway: tokenizer: it is not that of", capsys.readouterr().err)
        assert process.end() == 0
    assert main(["gateway", "--port", "none"]) == 2
    assert capsys.readouterr().err.startswith("wkvm gateway: port: without TCP")
    assert main(["gateway", "--engine", "tcp://192.0.2.1:8001", "--port", "0"]) == 2
    assert "192.0.2.1" in capsys.readouterr().err


def test_a_gateway_needs_no_torch() -> None:
    code = "import sys, wkvm.cli.gateway; print({'torch', 'numpy'} & set(sys.modules))"
    command = [wkvm_command()[0], "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert ended.stdout == "set()\n"
