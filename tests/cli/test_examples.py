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

from tests.cli.conftest import environment
from wkvm.assembly.engine import build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.loop import EngineLoop
from wkvm.server.serve import Server

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def open_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for no key, as the examples expect it."""
    engine = build_engine(BUNDLED, EngineConfig(n_slots=2, device="cpu"), served_name="bundled")
    path = str(tmp_path_factory.mktemp("open") / "wkvm.sock")
    started = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def host() -> None:
        engine_loop, stop = EngineLoop(engine), asyncio.Event()
        server = Server(engine_loop, ServerConfig(binary_port=None, binary_uds=path))
        stepping = asyncio.create_task(engine_loop.run())
        await server.start()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        engine_loop.close()
        await stepping
        await server.close()

    def work() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(host())

    thread = threading.Thread(target=work)
    thread.start()
    loop, stop = started.result(timeout=30)
    yield f"unix://{path}"
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=30)


def output_of(name: str, *arguments: str) -> str:
    """Run an example; its standard output."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment(), timeout=60
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


def test_there_are_no_examples_without_a_test() -> None:
    assert {file.name for file in EXAMPLES.iterdir() if file.is_file()} == {
        "complete_text.py",
        "offline.py",
        "stream_blocking.py",
    }
