"""What is deleted is gone: at once for everybody, from the disk with the last that shares it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.isolation.world import World, world_running
from tests.states.doors import Door, Refused
from wkvm.state.image import pack_ids

N_FORKS = 64
PROMPT = list(range(100, 160))
ASKS: dict[str, Callable[[Door, str], Awaitable[Any]]] = {
    "get": lambda door, name: door.get(name),
    "generate": lambda door, name: door.generate([1], 1, state=name),
    "export": lambda door, name: door.export(name),
    "fork": lambda door, name: door.fork(name, ["again"]),
    "log": lambda door, name: door.log(name),
    "resume": lambda door, name: door.resume(name),
    "version": lambda door, name: door.get(f"{name}@1"),
}


def bytes_on_disk(world: World) -> int:
    """Of all payloads."""
    return sum(one.stat().st_size for one in (world.folder / "payloads").iterdir())


def found_on_disk(folder: Path, needle: bytes) -> list[str]:
    """The files in which something is."""
    files = [one for one in folder.rglob("*") if one.is_file()]
    return [one.name for one in files if needle in one.read_bytes()]


async def assert_gone(world: World, name: str) -> None:
    for kind in ("binary", "http"):
        for ask in ASKS.values():
            with pytest.raises(Refused, match="STATE_NOT_FOUND"):
                await ask(world.door("anna", kind), name)


@pytest.mark.parametrize("kind", ["binary", "http"])
async def test_of_a_parent_with_64_forks_the_bytes_go_with_the_last_of_them(
    tmp_path: Path, kind: str
) -> None:
    async with world_running(tmp_path, has_websockets=False) as world:
        door = world.door("anna", kind)
        await door.create("other", [1, 2])
        await door.hibernate("other")
        without = bytes_on_disk(world)
        made = await door.create("parent", PROMPT)
        names = [f"fork-{number}" for number in range(N_FORKS)]
        await door.fork("parent", names)
        await door.hibernate("parent")
        whole = bytes_on_disk(world)
        assert whole > without
        await door.delete("parent")
        await assert_gone(world, "parent")
        for name in names[:-1]:
            await door.delete(name)
            assert bytes_on_disk(world) == whole  # shared, by those that are left
        await assert_gone(world, names[0])
        assert (await door.generate([], 2, state=names[-1])).ids
        await door.delete(names[-1])
        await assert_gone(world, names[-1])
        assert bytes_on_disk(world) == without
        assert [one.name for one in await door.handles()] == ["other"]
    assert found_on_disk(tmp_path, pack_ids(PROMPT)) == []
    # Of a deleted state the catalogue has the name and its last number, which it gives no other.
    assert found_on_disk(tmp_path / "store", made.content_id.encode()) == []
    async with world_running(tmp_path, has_websockets=False) as world:
        assert [one.name for one in await world.door("anna", kind).handles()] == ["other"]
        for name in ("parent", *names[::21], names[-1]):
            await assert_gone(world, name)
        assert bytes_on_disk(world) == without


async def test_a_deletion_while_the_forks_run_takes_nothing_from_them(tmp_path: Path) -> None:
    async with world_running(tmp_path, has_websockets=False, n_slots=4) as world:
        door = world.door("anna", "binary")
        await door.create("parent", PROMPT)
        expected = (await door.generate([], 40, state="parent", ignore_eos=True)).ids
        stream = await world.clients["anna"].generate(
            [], state="parent", max_tokens=40, temperature=0.0, ignore_eos=True
        )
        first = await stream.read()
        await door.delete("parent")
        await assert_gone(world, "parent")
        assert list((await stream.completion()).ids) == expected
        assert expected[: len(first)] == first
        await world.at_rest()
        assert bytes_on_disk(world) == 0


async def test_a_deleted_name_that_is_given_again_shows_nothing_of_what_it_was(
    tmp_path: Path,
) -> None:
    async with world_running(tmp_path, has_websockets=False) as world:
        door = world.door("anna", "http")
        await door.create("tale", PROMPT)
        await door.generate([1], 3, state="tale", save_as="tale")
        await door.delete("tale")
        made = await door.create("tale", [7])
        assert made.version > 2
        assert made.n_tokens == 1
        for version in (1, 2):
            with pytest.raises(Refused, match="STATE_NOT_FOUND"):
                await door.get(f"tale@{version}")
        assert len((await door.log("tale"))["data"]) == 1
        assert (await door.generate([], 3, state="tale")).ids == (await door.generate([7], 3)).ids


@pytest.mark.parametrize("what", ["response", "conversation"])
async def test_of_a_response_that_is_deleted_nothing_is_left_on_the_disk(
    tmp_path: Path, what: str
) -> None:
    said = "The fox has gone to the river by night."
    async with world_running(tmp_path, has_websockets=False) as world:
        headers = world.headers("anna")
        if what == "response":
            body: dict[str, Any] = {"model": "tales", "input": said, "max_output_tokens": 2}
            _, made = await world.post("anna", "/v1/responses", body)
        else:
            item = {"role": "user", "content": said}
            _, made = await world.post("anna", "/v1/conversations", {"items": [item]})
        path = f"/v1/{what}s/{made['id']}"
        async with world.http.delete(path, headers=headers) as response:
            assert response.status == 200
        async with world.http.get(path, headers=headers) as response:
            assert response.status == 404
        await world.running.gateway.responses.over()
        await world.at_rest()
        assert await world.door("anna", "binary").handles() == []
        assert bytes_on_disk(world) == 0
    assert found_on_disk(tmp_path, said.encode()) == []
