"""A server that is sent programs in every guise runs none: row 1 of the threats, over both doors.

Its interpreter says what it begins (``audited``), and the folder that the programs would make is
not there in the end.
"""

import contextlib
import json
import random
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from wkvm_protocol.address import parse_address
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import ClientMessage

from tests.cli.conftest import KEY, RunningServer, environment, started
from tests.protocol.vectors import examples
from tests.soak import amount, seed, tell
from tests.supply.programs import blobs, texts
from wkvm.gateway.routes import ROUTES

AUTH = {"Authorization": f"Bearer {KEY}"}
TIMEOUT_S = 120.0
MODEL = "rwkv7-tinystories"
USER = [{"role": "user", "content": "Hi"}]
SHORT = {"model": MODEL, "max_tokens": 1}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "n"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {**SHORT, "prompt": "Hi", "stop": ["x"], "user": "u", "state": "planted"},
    "/v1/chat/completions": {
        **SHORT,
        "messages": [MESSAGE],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "none",
        "chat_template_kwargs": {"thinking": "x"},
        "structured_outputs": {"regex": "a"},
    },
    "/v1/embeddings": {"model": MODEL, "input": "Hi", "encoding_format": "float"},
    "/v1/generate": {**SHORT, "ids": [5, 6], "cache_salt": "s"},
    "/v1/messages": {**SHORT, "messages": USER, "system": "s"},
    "/v1/responses": {"model": MODEL, "max_output_tokens": 1, "input": "Hi"},
    "/v1/conversations": {"metadata": {"a": "b"}},
    "/v1/score": {"ids": [5, 6], "model": MODEL},
    "/v1/sessions": {"state": "planted"},
    "/v1/states": {"name": "made", "text": "Hi", "tags": {"a": "b"}, "durability": "disk"},
    "/v1/states/planted/mutate": {
        "operation": "decay",
        "parameters": {"factor": 1.0, "tensors": ["rwkv7.wkv"]},
        "save_as": "mutated",
    },
    "/v1/states/planted/fork": {"names": ["child"], "tags": {"a": "b"}},
    "/completion": {"n_predict": 1, "prompt": "Hi", "stop": ["x"]},
    "/generate": {"text": "Hi", "sampling_params": {"max_new_tokens": 1, "regex": "a"}},
    "/tokenize": {"model": MODEL, "prompt": "Hi"},
    "/apply-template": {"messages": USER},
}
"""Good ones, for what is made of texts."""


@dataclass
class Target:
    """A server that is listened to."""

    server: RunningServer
    folder: Path
    http: requests.Session

    def ask(self, method: str, path: str, **given: Any) -> requests.Response:
        url = self.server.url("http") + path
        return self.http.request(method, url, headers=AUTH, timeout=TIMEOUT_S, **given)

    @property
    def heard(self) -> str:
        return (self.folder / "heard").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Each state is read from the disk whenever it is used."""
    folder = tmp_path_factory.mktemp("audit")
    where = ("--port", "0", "--binary-port", "none", "--binary-uds", str(folder / "wkvm.sock"))
    states = ("--state-dir", str(folder / "states"), "--state-host-bytes", "1", "--slots", "8")
    command = [sys.executable, "-m", "tests.supply.audited", str(folder), "serve", *where, *states]
    with started(command) as server, requests.Session() as http:
        target = Target(server, folder, http)
        made = target.ask("POST", "/v1/states", json={"name": "planted", "text": "Once"})
        assert made.status_code == 201, made.text
        (folder / "armed").touch()
        yield target


def test_what_comes_over_http_is_not_run(target: Target) -> None:
    canary, chance = target.folder / "canary", random.Random(seed())
    n_asked, bad = 0, []
    for blob in chance.sample(blobs(canary), amount(16, 24)):
        for form in ("state", "blinkdl", "fla"):
            answer = target.ask("PUT", f"/v1/states/new/import?format={form}", data=blob)
            assert answer.status_code == 422 or form == "state", answer.text
            n_asked += 1
        route = chance.choice([one for one in ROUTES if one.method == "POST"])
        path = route.path.replace("{ref}", "planted").replace("{", "").replace("}", "")
        target.ask("POST", path, data=blob)
    for path, body in BODIES.items():
        answer = target.ask("POST", path, json=body)
        bad += [(path, answer.text)] * (answer.status_code >= 300)
        for text in chance.sample(texts(canary), amount(4, 10)):
            for changed in _with_text(body, text):
                answer = target.ask("POST", path, json=changed)
                assert answer.status_code != 500, (path, changed, answer.text)
                n_asked += 1
    assert bad == []
    _is_well(target, canary)
    tell(7, "programs over HTTP", n_asked, "requests")


def test_what_comes_over_the_binary_protocol_is_not_run(target: Target) -> None:
    canary, chance = target.folder / "canary", random.Random(seed())
    n_sent = 0
    for message in examples(ClientMessage):
        for changed in _with_programs(message, canary, chance, amount(3, 8)):
            _send(target, encode_frame(msgspec.msgpack.encode(changed), 2**20))
            n_sent += 1
    for blob in chance.sample(blobs(canary), amount(16, 24)):
        for frame in (blob, encode_frame(blob, 2**20)):
            _send(target, frame)
            n_sent += 1
    _is_well(target, canary)
    tell(6, "programs over the binary protocol", n_sent, "frames")


def test_what_is_in_the_place_of_a_state_is_not_run(target: Target) -> None:
    canary = target.folder / "canary"
    stored = target.ask("POST", "/v1/responses", json=BODIES["/v1/responses"])
    assert stored.status_code == 200, stored.text
    payloads = list((target.folder / "states/payloads").glob("*.safetensors"))
    assert payloads
    for at, path in enumerate(payloads):
        programs = blobs(canary)
        path.write_bytes(programs[at % len(programs)])
    _spoil(target.folder / "states/responses/responses.db", blobs(canary)[6])
    for operation in ("resume", "replay"):
        answer = target.ask("POST", f"/v1/states/planted/{operation}")
        assert answer.json()["error"]["code"] == "state_damaged", answer.text
    assert target.ask("GET", "/v1/states/planted/export").status_code == 500
    answer = target.ask("GET", f"/v1/responses/{stored.json()['id']}")
    assert answer.status_code >= 500, answer.text
    _is_well(target, canary)


def test_a_program_that_did_run_would_be_heard(tmp_path: Path) -> None:
    (tmp_path / "armed").touch()
    code = """
import os, pathlib, pickle, sys
from tests.supply import audited

class Program:
    def __reduce__(self):
        return os.mkdir, (str(folder / "canary"),)

folder = pathlib.Path(sys.argv[1])
audited.listen(folder)
import colorsys
assert not (folder / "heard").read_text(), "a module may be imported"
pickle.loads(pickle.dumps(Program()))
eval("1 + 1")
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment(), check=True)
    heard = (tmp_path / "heard").read_text(encoding="utf-8")
    assert "pickle.find_class 'posix' 'mkdir'" in heard
    assert "\nexec " in heard
    assert (tmp_path / "canary").is_dir()


def _is_well(target: Target, canary: Path) -> None:
    assert target.heard == ""
    assert not canary.exists()
    answer = target.ask("POST", "/v1/completions", json={**SHORT, "prompt": "Once"})
    assert answer.status_code == 200, answer.text


def _with_text(body: Any, text: str) -> Iterator[Any]:
    """The body with each of its texts, and each of its keys, replaced by another."""
    match body:
        case str():
            yield text
        case list():
            for at, one in enumerate(body):
                for changed in _with_text(one, text):
                    yield [*body[:at], changed, *body[at + 1 :]]
        case dict():
            yield {**body, text: 1}
            for key, one in body.items():
                for changed in _with_text(one, text):
                    yield {**body, key: changed}
        case _:
            pass


def _with_programs(
    message: Any, canary: Path, chance: random.Random, n: int
) -> Iterator[msgspec.Struct]:
    """The message with each of its texts and bytes replaced by a program."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, str | bytes):
            choices: list[Any] = texts(canary) if isinstance(value, str) else blobs(canary)
            for one in chance.sample(choices, n):
                yield msgspec.structs.replace(message, **{name: one})


def _send(target: Target, data: bytes) -> None:
    """On a connection of its own, after a good Hello; until there is an answer or an end."""
    address = parse_address(target.server.address)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(address.path)  # type: ignore[union-attr]
        sock.sendall(ClientConnection().send_hello(api_key=KEY))
        sock.recv(2**16)
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(2**16):
                pass


def _spoil(path: Path, program: bytes) -> None:
    """Replace everything in a database that is bytes, or JSON."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type='table'")
        ]
        n_changed = 0
        for table in tables:
            for _, column, kind, *_ in db.execute(f"PRAGMA table_info({table})").fetchall():
                if kind in ("BLOB", "TEXT") and _is_content(db, table, column):
                    n_changed += db.execute(f"UPDATE {table} SET {column} = ?", (program,)).rowcount
        assert n_changed


def _is_content(db: sqlite3.Connection, table: str, column: str) -> bool:
    for (value,) in db.execute(f"SELECT {column} FROM {table}"):
        with contextlib.suppress(ValueError, TypeError):
            if isinstance(json.loads(value), dict):
                return True
    return False
