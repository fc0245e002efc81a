"""Names are data: no name that a client can write reaches the file system, over either door."""

import asyncio
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.isolation.world import World, world_running
from tests.soak import amount, seed, tell
from tests.states.doors import Refused
from tests.states.test_refusals import MAKING, OPERATIONS
from wkvm.gateway.routes import ROUTES

HOSTILE = (
    "../x",
    "../../x",
    "..",
    ".",
    "/etc/passwd",
    "//x",
    "a/b",
    "a/../b",
    "..\\x",
    "C:\\x",
    "\\\\host\\x",
    "%2e%2e",
    "%2e%2e%2fx",
    "..%2fx",
    "%00",
    "nul\0byte",
    "a\n",
    "a\r\nX: y",
    "\uff0e\uff0e/x",
    "\u2024\u2024",
    "\u202ename",
    "\xe9",
    "e\u0301",
    "-rf",
    "--help",
    "~root",
    "$HOME",
    "`id`",
    "$(id)",
    "a;id",
    "a|id",
    "a'--",
    'a"b',
    "*",
    "?",
    "[a]",
    "{a,b}",
    " a",
    "a ",
    "a\tb",
    ".hidden",
    "_x",
    "x" * 129,
    "x" * 256,
    "x" * 5000,
    "\ud7ff",
    "\U0001f9ff",
    "a@1",
    "a@../x",
    "@",
    "",
)
"""None of these is a name."""
LEGAL = (
    "CON",
    "con",
    "nul",
    "AUX.txt",
    "a..b",
    "a.",
    "x" * 128,
    "A",
    "a",
    "lock",
    "catalogue.db",
    "catalogue.db-wal",
    "payloads",
    "quarantine",
    "ballast",
    "responses",
    "0",
    "00",
    "1e5",
    "a-",
)
"""These are, whatever a file system makes of them: twins by case are two."""
CANARY = "nobody touches this"


def tree(folder: Path, *, but: Path) -> dict[str, Any]:
    """Everything below a folder, with times and contents; what is in ``but`` left out."""
    found = dict[str, Any]()
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if Path(place, one) != but]
        for name in (*folders, *files):
            path = Path(place, name)
            stat = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = stat.st_mode, stat.st_mtime_ns, stat.st_ino, data
    return found


def surroundings(tmp_path: Path) -> None:
    """Things outside of the store that a hostile name may mean."""
    for place in ("x", "b", "etc/passwd", "store", "lock"):
        path = tmp_path / "around" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CANARY)


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    surroundings(tmp_path)
    monkeypatch.chdir(tmp_path / "around")
    return tmp_path / "around"


@pytest.mark.parametrize("kind", ["binary", "http", "websocket"])
async def test_no_hostile_name_is_one_and_nothing_outside_the_store_is_touched(
    around: Path, kind: str
) -> None:
    async with world_running(around / "world", has_websockets=kind == "websocket") as world:
        door = world.door("anna", kind)
        await door.create("mine", [1, 2, 3])
        before = tree(around, but=around / "world")
        inside = sorted(os.listdir(around / "world" / "store"))
        for name in HOSTILE:
            for what, ask in (*OPERATIONS.items(), *MAKING.items()):
                if name == "" and what.startswith("generate"):
                    continue  # an empty name is none at all: nothing is kept
                with pytest.raises(Refused) as refused:
                    await ask(door, name)
                assert refused.value.code in (
                    "INVALID_PARAMETER",
                    "STATE_NOT_FOUND",
                    "UNSUPPORTED_OPERATION",
                    "InvalidParameterError",
                    "METHOD_NOT_ALLOWED",
                ), (what, name)
        await world.at_rest()
        assert [known.name for known in await door.handles()] == ["mine"]
        assert tree(around, but=around / "world") == before
        assert sorted(os.listdir(around / "world" / "store")) == inside


@pytest.mark.parametrize("kind", ["binary", "http"])
async def test_a_legal_name_is_no_file_and_its_twin_by_case_is_another_state(
    around: Path, kind: str
) -> None:
    async with world_running(around / "world", has_websockets=False) as world:
        door = world.door("anna", kind)
        before = tree(around, but=around / "world")
        for at, name in enumerate(LEGAL):
            await door.create(name, [at + 1])
            await door.hibernate(name)
        for at, name in enumerate(LEGAL):
            assert (await door.get(name)).n_tokens == 1
            assert (await door.log(name)) is not None
            data = await door.export(name)
            assert (at + 1).to_bytes(4, "little") in data or at >= 0
        assert {known.name for known in await door.handles()} == set(LEGAL)
        assert len({known.content_id for known in await door.handles()}) == len(LEGAL)
        files = os.listdir(around / "world" / "store" / "payloads")
        assert len(files) == len(LEGAL)
        assert all(re.fullmatch(r"[0-9a-f]{32}(\.\w+)?", one) for one in files), files
        assert tree(around, but=around / "world") == before


def paths_of(name: str) -> Iterator[tuple[str, str]]:
    """Each route that has a name in its path, with this one in its place, as it is and quoted."""
    for route in ROUTES:
        if "{" not in route.path or "models" in route.path:
            continue
        for text in (quote(name, safe=""), quote(name, safe="/.%~$'*;|@\\")):
            outer = re.split(r"\{[^}]*\}", route.path)
            yield route.method, text.join(outer)


async def test_no_path_of_http_leads_out_of_the_store(around: Path) -> None:
    """As bytes of the request line: no client tidies the path up on its way."""
    async with world_running(around / "world", has_websockets=False) as world:
        before = tree(around, but=around / "world")
        names = [name for name in HOSTILE if name.isprintable() and len(name) < 1000]
        names = random.Random(seed()).sample(names, amount(8, len(names)))
        for name in {"../x", "..", *names}:
            for method, path in paths_of(name):
                status, data = await raw_call(world, method, path)
                assert status in (400, 404, 405, 410, 409, 422), (method, path, data)
                assert CANARY.encode() not in data
                assert str(around).encode() not in data
        assert await world.door("anna", "http").handles() == []
        assert os.listdir(world.folder / "payloads") == []
        assert tree(around, but=around / "world") == before
    tell(11, "hostile names in paths", len(names), "names")


async def raw_call(world: World, method: str, path: str) -> tuple[int, bytes]:
    """The status and all bytes of an answer to a request line that is sent as it is."""
    reader, writer = await asyncio.open_unix_connection(world.running.path)
    key = world.headers("anna")["Authorization"]
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: {key}\r\nConnection: close\r\n"
    writer.write(head.encode() + b"Content-Length: 2\r\n\r\n{}")
    data = await reader.read()
    writer.close()
    return int(data[9:12]), data
