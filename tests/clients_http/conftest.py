"""One real server for the HTTP clients of others: the bundled model, on a free port, with a key.

The clients are imported by fixtures, since some take seconds to load, and every process of a test
run looks into every test module.
"""

import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import KEY, RunningServer, running_server

MODEL = "rwkv7-tinystories"
N_SLOTS = 8
MAX_QUEUE = 112

QUESTION = "What is the sun?"
ANSWER = "The sun is a very big and hot star. It gives us light and warmth."
"""What the model answers at temperature 0."""


@dataclass(frozen=True, slots=True)
class Door:
    """A server that speaks HTTP.

    Attributes:
        url: without a path.
        server: its process, and its binary address.
    """

    url: str
    server: RunningServer

    @property
    def base_url(self) -> str:
        """What clients of OpenAI's interface are given."""
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    settings = ("--slots", str(N_SLOTS), "--max-queue", str(MAX_QUEUE), "--seed", "1")
    # Answers that nobody limits end by themselves; images are replaced by a note.
    http = ("--default-max-tokens", "1024", "--omit-media")
    more = shlex.split(os.environ.get("WKVM_DOOR_FLAGS", ""))
    folder = tmp_path_factory.mktemp("door")
    with running_server(folder, *settings, *http, *more, http="0") as server:
        yield Door(server.url(), server)
        assert server.end() == 0


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Door]:
    """One slot, and room for two more."""
    with running_server(tmp_path, "--slots", "1", "--max-queue", "2", http="0") as server:
        yield Door(server.url(), server)
        assert server.end() == 0


@pytest.fixture(scope="session")
def key() -> str:
    return KEY


@pytest.fixture(autouse=True)
def only_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No library asks for a host but this one, whatever it makes of being refused."""
    asked = list[str]()
    real = socket.getaddrinfo

    def getaddrinfo(host: str | bytes | None, *args: object, **kwargs: object) -> object:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in ("127.0.0.1", "localhost", None):
            asked.append(str(name))
            raise socket.gaierror(socket.EAI_NONAME, "no network in this test")
        return real(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    yield
    assert asked == []
