"""Files that lie, over both doors; and exports, which have nothing in them but the state."""

import json
import random
import struct
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.isolation.sessions import but_history
from tests.isolation.world import World, world_running
from tests.soak import amount, seed, tell
from tests.state.test_exchange import corrupted, places
from tests.states.doors import Refused
from wkvm.core.registry import canonical_json
from wkvm.state.format import digest_of

TYPED = {
    "BAD_STATE_FILE",
    "STATE_MISMATCH",
    "NON_FINITE",
    "NOT_FINITE",
    "PROMPT_TOO_LONG",
    "STATE_NOT_FINITE",
}
VALUES: list[Any] = [
    *(None, 0, -1, 1, 2**31, 2**63, 2**70, True, 1.5, "", "F64", "I64", "x" * 5000, "../x"),
    *([], [0], [0, -1], [2**60, 2**60], {}, [[[[]]]], "a" * 64, "0" * 32),
]


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and its data."""
    n_header = struct.unpack("<Q", file[:8])[0]
    return json.loads(file[8 : 8 + n_header]), file[8 + n_header :]


def joined(header: dict[str, Any], data: bytes) -> bytes:
    """A file with the digest that belongs to it: whoever lies may lie well."""

    def written() -> bytes:
        text = canonical_json(header).encode("utf-8", "surrogatepass")
        text = text.ljust(-(-(8 + len(text)) // 256) * 256 - 8)
        return struct.pack("<Q", len(text)) + text

    if isinstance(metadata := header.get("__metadata__"), dict) and "wkvm.digest" in metadata:
        metadata["wkvm.digest"] = "0" * 32
        metadata["wkvm.digest"] = digest_of(written(), [memoryview(data)])
    return written() + data


def lies(file: bytes, rng: random.Random) -> Iterator[bytes]:
    """Files that are not what they say, without an end."""
    header, data = split(file)
    paths = [path for path in places(header) if path[-1] != "wkvm.digest"]
    inner = {
        name: json.loads(value)
        for name, value in header["__metadata__"].items()
        if value.startswith("{") and name != "wkvm.history"
    }
    numbers = np.random.default_rng(rng.randrange(2**32))
    while True:
        changed, _ = split(file)
        match rng.randrange(6):
            case 0:  # a value of the header
                yield joined(_with(changed, rng.choice(paths), rng.choice(VALUES)), data)
            case 1:  # a value within the texts of its metadata
                name = rng.choice(list(inner))
                told = json.loads(header["__metadata__"][name])
                path = rng.choice(places(told))
                _with(told, path, rng.choice(VALUES))
                changed["__metadata__"][name] = canonical_json(told)
                yield joined(changed, data)
            case 2:  # an entry too many, too few, or under another name
                name = rng.choice(list(changed))
                match rng.randrange(3):
                    case 0:
                        changed[f"{name}.more"] = changed[name]
                    case 1:
                        del changed[name]
                    case _:
                        changed[name[:-1]] = changed.pop(name)
                yield joined(changed, data)
            case 3:  # data that is longer, shorter, or has something else in it
                at, n = rng.randrange(len(data)), rng.randint(1, 64)
                match rng.randrange(3):
                    case 0:
                        yield file[:-n]
                    case 1:
                        yield file + bytes(n)
                    case _:
                        at += len(file) - len(data)
                        yield file[:at] + rng.randbytes(n) + file[at + n :]
            case 4:  # the text of the header, with the old digest
                text = file[8 : len(file) - len(data)].rstrip()
                text = corrupted(text, numbers)
                text = text.ljust(-(-(8 + len(text)) // 256) * 256 - 8)
                yield struct.pack("<Q", len(text)) + text + data
            case _:  # the length of the header
                length = rng.choice([0, 1, len(file), 2**20, 2**20 + 1, 2**32, 2**63, 2**64 - 1])
                yield struct.pack("<Q", length) + file[8:]


def _with(entries: Any, path: tuple[Any, ...], value: Any) -> Any:
    inner = entries
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return entries


async def code_of(asking: Awaitable[Any]) -> str | None:
    """Why it was refused; None if it was not."""
    try:
        await asking
    except Refused as refused:
        return refused.code
    return None


async def world_of(world: World) -> Any:
    door = world.door("anna", "binary")
    files = sorted(one.name for one in (world.folder / "payloads").iterdir())
    return await door.handles(), await world.door("bert", "binary").handles(), files


@pytest.mark.parametrize("kind", ["binary", "http"])
async def test_a_file_that_lies_is_refused_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    rng, n = random.Random(seed()), amount(120, 2600)
    async with world_running(tmp_path, has_websockets=False) as world:
        door = world.door("anna", kind)
        await door.create("mine", [5, 6, 7, 8])
        file = await door.export("mine")
        before, n_taken = await world_of(world), 0
        for number, lie in zip(range(n), lies(file, rng), strict=False):
            name = f"n{number}"
            code = await code_of(door.importing(name, lie))
            assert code is None or code in TYPED, (code, lie[:400])
            if code is None:  # it is no lie, but another state
                assert but_history(await door.export(name)) == but_history(lie)
                await door.delete(name)
                n_taken += 1
        assert n_taken < n / 5
        assert await world_of(world) == before
        taken = await door.importing("same", file)
        assert taken.content_id == (await door.get("mine")).content_id
    tell(11, f"files that lie, over {kind}", n, "files", n_true=n_taken)


@pytest.mark.parametrize("kind", ["binary", "http"])
async def test_an_export_of_an_import_is_the_same_file_but_for_its_history(
    tmp_path: Path, kind: str
) -> None:
    """And of an import of that, to the byte."""
    async with world_running(tmp_path, has_websockets=False) as world:
        door = world.door("anna", kind)
        await door.create("a", [5, 6, 7])
        await door.generate([8], 3, state="a", save_as="a")
        files = [await door.export("a")]
        for number in range(3):
            await door.importing(f"n{number}", files[-1])
            files.append(await door.export(f"n{number}"))
        assert len({json.dumps(but_history(one)[0]) for one in files}) == 1
        assert len({but_history(one)[1] for one in files}) == 1
        assert files[2] == files[3]


async def test_states_of_as_many_tokens_have_files_of_one_length(tmp_path: Path) -> None:
    """No tail of what was in memory before, and no room for one."""
    async with world_running(tmp_path, has_websockets=False) as world:
        door, lengths = world.door("anna", "binary"), set[int]()
        for number in range(20):
            await door.create(f"s{number}", [number + 1] * 9)
            lengths.add(len(await door.export(f"s{number}")))
        assert len(lengths) == 1


@pytest.mark.parametrize("kind", ["binary", "http"])
async def test_an_export_has_nothing_of_the_memory_that_it_is_written_in(
    tmp_path: Path, kind: str
) -> None:
    """What is handed out unwritten is filled, with NaN or not at all: the files are the same."""
    files = list[bytes]()
    for is_filled in (False, True):
        torch.use_deterministic_algorithms(is_filled, warn_only=True)
        try:
            async with world_running(tmp_path / str(is_filled), has_websockets=False) as world:
                foreign, door = world.door("bert", kind), world.door("anna", kind)
                if is_filled:
                    for number in range(20):
                        await foreign.create(f"s{number}", [200 + number] * 40)
                        await foreign.delete(f"s{number}")
                await door.create("mine", [5, 6, 7])
                files.append(await door.export("mine"))
        finally:
            torch.use_deterministic_algorithms(False)
    assert files[0] == files[1]


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 300, -1])
async def test_of_an_upload_that_is_cut_off_there_is_nothing_to_export(
    tmp_path: Path, cut: int
) -> None:
    async with world_running(tmp_path, has_websockets=False) as world:
        door = world.door("anna", "binary")
        await door.create("mine", [5, 6, 7])
        file = await door.export("mine")
        before = await world_of(world)
        sink = await world.states.importing("anna", "half", n_bytes=len(file))
        if cut:
            await sink.write(file[:cut])
        for ask in asks(world, "half"):
            with pytest.raises(Refused, match="STATE_NOT_FOUND"):
                await ask()
        sink.abort()
        for ask in asks(world, "half"):
            with pytest.raises(Refused, match="STATE_NOT_FOUND"):
                await ask()
        assert await world_of(world) == before


def asks(world: World, name: str) -> Iterator[Callable[[], Any]]:
    """An export, and a turn, through both doors."""
    for kind in ("binary", "http"):
        door = world.door("anna", kind)
        yield partial(door.export, name)
        yield partial(door.generate, [], 1, state=name)
