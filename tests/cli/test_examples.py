"""The programs in examples/ run as they stand."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import uvloop

from tests.cli.conftest import KEY, RunningServer, environment
from wkvm.assembly.engine import build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.assembly.states import OpenStates
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.state_config import StateConfig
from wkvm.engine.loop import EngineLoop
from wkvm.server.serve import Server

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def open_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for no key, as the examples expect it."""
    engine = build_engine(BUNDLED, EngineConfig(n_slots=2, device="cpu"), served_name="bundled")
    folder = tmp_path_factory.mktemp("open")
    path = str(folder / "wkvm.sock")
    started = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def host() -> None:
        engine_loop, stop = EngineLoop(engine), asyncio.Event()
        states = OpenStates(engine, StateConfig(folder=str(folder / "states"))).serve(engine_loop)
        server = Server(states, ServerConfig(binary_port=None, binary_uds=path), states)
        stepping = asyncio.create_task(engine_loop.run())
        await server.start()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        await server.close()
        await states.close()
        engine_loop.close()
        await stepping

    def work() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(host())

    thread = threading.Thread(target=work)
    thread.start()
    loop, stop = started.result(timeout=60)
    yield f"unix://{path}"
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=60)


def output_of(name: str, *arguments: str, key: str | None = None) -> str:
    """Run an example; its standard output."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    env = environment() | ({} if key is None else {"WKVM_API_KEY": key})
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=env, timeout=300
    ).stdout


def test_complete_text(open_address: str) -> None:
    text = output_of("complete_text.py", "Once upon a time", open_address)
    assert text.startswith("Once upon a time")
    assert len(text.split()) > 20


def test_stream_blocking(open_address: str) -> None:
    answer = output_of("stream_blocking.py", open_address)
    assert re.match(r"Assistant: \w", answer)
    assert "star" in answer


def test_offline() -> None:
    *stories, answer = output_of("offline.py").split("\n\n")
    assert [story.split(",")[0].split(" ")[0] for story in stories] == ["Once", "The", "A"]
    assert all(len(story.split()) > 20 for story in stories)
    assert answer.startswith("What is the sun? ")
    assert "star" in answer


def test_agent_session(open_address: str) -> None:
    form = re.compile(
        r"0:(.+)\n1:(.+)\n2:(.+)\nsaid:(.+)\nunsaid, and said again:(.+)\n"
        r"agent@(\d+): .+ durable\n",
        re.DOTALL,
    )
    versions = list[int]()
    for _ in range(2):
        found = form.fullmatch(output_of("agent_session.py", open_address))
        assert found
        *tries, said, again, version = found.groups()
        assert len(set(tries)) == 3
        assert said == again
        versions.append(int(version))
    assert versions[0] < versions[1]


def test_agent_branches(tmp_path: Path) -> None:
    told = output_of("agent_branches.py", str(tmp_path / "new"))
    rows = re.findall(r"(agent-\d\d): (\w+), (\w+)", told)
    assert len(rows) == 64
    assert [agent for agent, hero, _ in rows if hero != "Omar"] == ["agent-17"]
    assert told.endswith(
        "64 of 64 states have the bytes that they had before\n"
        "63 agents know the fox, 63 their own friend\n"
    )
    assert (tmp_path / "new" / "states" / "catalogue.db").is_file()


@pytest.fixture
def base_url(server: RunningServer) -> str:
    """What OpenAI's client is given; a key is needed there."""
    return f"{server.url()}/v1"


def test_openai_chat(base_url: str) -> None:
    answer = output_of("openai_chat.py", base_url, key=KEY)
    assert answer.startswith("The sun is")
    assert "star" in answer


def test_there_are_no_examples_without_a_test() -> None:
    assert {file.name for file in EXAMPLES.iterdir() if file.is_file()} == {
        "agent_branches.py",
        "agent_session.py",
        "complete_text.py",
        "offline.py",
        "openai_chat.py",
        "stream_blocking.py",
    }
