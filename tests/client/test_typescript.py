"""The TypeScript client: its messages are those of the protocol, and its own tests pass.

The latter need Node and what ``npm install`` in ``clients/typescript`` fetches.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.typescript_messages import TARGET, text

CLIENT = Path(__file__).parents[2] / "clients/typescript"
COMPILER = CLIENT / "node_modules/.bin/tsc"
needs_node = pytest.mark.skipif(
    not (shutil.which("node") and COMPILER.exists()),
    reason="needs node, and npm install in clients/typescript",
)


def test_the_messages_of_the_typescript_client_are_those_of_the_protocol() -> None:
    assert TARGET.read_text(encoding="utf-8") == text()


def test_the_typescript_client_needs_no_other_package() -> None:
    imported = {
        name
        for file in (CLIENT / "src").glob("*.ts")
        for name in re.findall(r'from "([^"]+)"', file.read_text(encoding="utf-8"))
    }
    assert all(name.startswith("./") for name in imported)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled client and its tests, as far from the checkout as they lie within it."""
    folder = tmp_path_factory.mktemp("typescript")
    subprocess.run([COMPILER, "--outDir", folder / "dist"], cwd=CLIENT, check=True)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder / "dist"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "wkvm", "serve"),
        *("--port", str(port), "--binary-port", "none"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("ready")
        yield f"ws://127.0.0.1:{port}/v1/ws"
        server.terminate()


@needs_node
def test_the_typescript_client_passes_its_tests_against_a_server(compiled: Path, url: str) -> None:
    tests = sorted(str(one) for one in (compiled / "test").glob("*.test.js"))
    environment = os.environ | {
        "WKVM_URL": url,
        "WKVM_VECTORS": str(CLIENT.parents[1] / "protocol/vectors"),
    }
    run = subprocess.run(
        ["node", "--experimental-websocket", "--test", *tests],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert re.search(r"^# skipped 0$", run.stdout, re.MULTILINE)
