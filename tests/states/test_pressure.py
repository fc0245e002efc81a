"""A server that is short of memory or disk takes less, then nothing new; what runs goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.states.doors import Door, Refused
from tests.states.rig import MakeRig, Rig
from wkvm.core.errors import ConfigError
from wkvm.core.pressure_config import PressureConfig
from wkvm.server.pressure import Pressure, free_share, rss_bytes

SHED, FULL = 900, 1000
NEW: dict[str, Callable[[Door], Awaitable[Any]]] = {
    "create": lambda door: door.create("new", [1, 2]),
    "fork": lambda door: door.fork("mine", ["new"]),
    "mutate": lambda door: door.mutate(["mine"], "scale", "new", factor=0.5),
}
WORK: dict[str, Callable[[Door], Awaitable[Any]]] = {
    "generate": lambda door: door.generate([1], 2),
    "generate on": lambda door: door.generate([1], 2, state="mine", save_as="mine"),
    "snapshot": lambda door: door.snapshot("mine"),
    "resume": lambda door: door.resume("mine"),
    "export": lambda door: door.export("mine"),
}
MAKES_ROOM: dict[str, Callable[[Door], Awaitable[Any]]] = {
    "get": lambda door: door.get("mine"),
    "list": lambda door: door.handles(),
    "log": lambda door: door.log("mine"),
    "hibernate": lambda door: door.hibernate("mine"),
    "delete": lambda door: door.delete("mine"),
}


def short_of(rig: Rig, *, rss: int = 0, free: float = 1.0) -> None:
    """The server has so much memory in use, and so much disk free, from now on."""
    config = PressureConfig(max_rss_bytes=FULL, shed_rss_bytes=SHED, shed_disk=0.1)
    pressure = Pressure(config, "anywhere", rss=lambda: rss, free_disk=lambda _: free)
    rig.server.sheds(pressure)


async def refused_by(asking: Awaitable[Any]) -> str:
    with pytest.raises(Refused) as caught:
        await asking
    return caught.value.code


@pytest.mark.parametrize("rss", [FULL, FULL + 1])
async def test_out_of_memory_nothing_new_is_taken(make_rig: MakeRig, rss: int) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await door.create("mine", [1, 2])
        short_of(rig, rss=rss)
        for name, what in (NEW | WORK).items():
            assert await refused_by(what(door)) == "OVERLOADED", name
        for what in MAKES_ROOM.values():
            await what(door)
        assert (await rig.clients["anna"].stats())["memory_refuses"] == 2
        short_of(rig, rss=0)
        assert (await rig.clients["anna"].stats())["memory_refuses"] == 0
        await door.create("mine", [1, 2])


async def check_new(door: Door, *, refused: str | None) -> None:
    """What makes new states is refused by this code, or done; all else is done in any case."""
    for name, what in NEW.items():
        if refused is not None:
            assert await refused_by(what(door)) == refused, name
        elif name != "mutate":  # the model of these tests has nothing to scale
            await what(door)
            await door.delete("new")
    for what in (WORK | MAKES_ROOM).values():
        await what(door)


@pytest.mark.parametrize(("rss", "is_short"), [(SHED - 1, False), (SHED, True), (FULL - 1, True)])
async def test_short_of_memory_there_are_no_new_states(
    make_rig: MakeRig, rss: int, is_short: bool
) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await door.create("mine", [1, 2])
        short_of(rig, rss=rss)
        await check_new(door, refused="OVERLOADED" if is_short else None)


async def test_short_of_memory_no_request_is_taken_that_would_wait(make_rig: MakeRig) -> None:
    async with make_rig(n_slots=1) as rig:
        door = rig.door("anna")
        short_of(rig, rss=SHED)
        running = await rig.clients["bert"].generate([1], max_tokens=1_000, credit=4)
        while rig.loop.stats()["n_free_slots"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await refused_by(door.generate([1], 2)) == "OVERLOADED"
        running.cancel()
        while not rig.loop.stats()["n_free_slots"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await door.generate([1], 2)


async def test_what_runs_when_memory_is_out_goes_on(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        running = await rig.clients["anna"].generate([1], max_tokens=50, temperature=0)
        while not rig.loop.stats()["requests_total"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        short_of(rig, rss=FULL)
        completion = await running.choices[0].completion()
        assert completion.n_output == 50


@pytest.mark.parametrize(("free", "is_short"), [(0.11, False), (0.1, False), (0.09, True)])
async def test_on_a_disk_that_is_short_there_are_no_new_states(
    make_rig: MakeRig, free: float, is_short: bool
) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await door.create("mine", [1, 2])
        short_of(rig, free=free)
        await check_new(door, refused="STORE_FULL" if is_short else None)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"max_rss_bytes": -1}, "max-rss-bytes"),
        ({"shed_rss_bytes": 1}, "shed-rss-bytes"),
        ({"max_rss_bytes": 10, "shed_rss_bytes": 11}, "shed-rss-bytes"),
        ({"shed_disk": 1.0}, "shed-disk"),
        ({"shed_disk": float("nan")}, "shed-disk"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        PressureConfig(**settings)


def test_what_is_looked_at_is_there(tmp_path: Path) -> None:
    assert rss_bytes() > 2**20
    assert 0 <= free_share(str(tmp_path)) <= 1
