"""A tenant that asks for far more than it may have gets what it may have, over both doors."""

import asyncio
import time

import pytest
from wkvm_client.errors import InvalidParameterError

from tests.soak import amount, tell
from tests.states.book import History
from tests.states.doors import Door, Refused
from tests.states.rig import MakeRig, Rig

QUOTA = 1001
AT_ONCE = 9
"""Names of a call: 111 calls take the 999 that two handles leave."""


async def bomb(door: Door, n: int) -> dict[str, int]:
    """Fork ``n`` times, whatever comes of it: how many were made, and refused by which code."""
    told = {"made": 0}
    await door.create("parent", [1, 2, 3])
    for at in range(0, n, AT_ONCE):
        names = [f"child-{at + i}" for i in range(AT_ONCE)]
        try:
            told["made"] += len(await door.fork("parent", names, durability="memory"))
        except Refused as refused:
            told[refused.code] = told.get(refused.code, 0) + len(names)
    return told


async def turns(door: Door, until: asyncio.Event) -> list[float]:
    """Turns of another tenant, each of them checked, and how long each took."""
    history, times = History(), list[float]()
    while not until.is_set() or len(times) < 3:
        began = time.perf_counter()
        expected, history = history.generated([5], 4)
        state = "other" if times else ""
        turn = await door.generate([5], 4, state=state, save_as="other", durability="memory")
        assert turn.ids == expected
        times.append(time.perf_counter() - began)
    return times


async def test_a_fork_bomb_takes_its_tenants_quota_and_nothing_of_others(make_rig: MakeRig) -> None:
    n = amount(1_800, 100_008)
    async with make_rig(kept={"handles_per_tenant": QUOTA, "forks_per_s": 0}) as rig:
        over = asyncio.Event()
        before = await turns(rig.door("bert"), _set())
        other = asyncio.create_task(turns(rig.door("anna"), over))
        told = await bomb(rig.door("bert"), n)
        over.set()
        during = await other
        made = told["made"]
        assert made + told["QUOTA"] == n
        assert made == QUOTA - 2
        assert len(await all_of(rig, "bert")) == QUOTA
        await rig.door("bert").delete("child-0")
        await rig.door("bert").fork("parent", ["one-more"], durability="memory")
        assert await all_of(rig, "anna") == {"other"}
    tell(
        9,
        f"fork bomb, {rig.kind}",
        n,
        "forks",
        made=made,
        turn_ms_alone=1e3 * sorted(before)[len(before) // 2],
        turn_ms_beside=1e3 * sorted(during)[len(during) // 2],
    )


async def all_of(rig: Rig, tenant: str) -> set[str]:
    """Names of all handles of a tenant."""
    names, after = set[str](), ""
    while True:
        page = await rig.states.handles(tenant, after=after, limit=256)
        names |= {one.handle.name for one in page.states}
        if page.next_after is None:
            return names
        after = page.next_after


def hold_clock(rig: Rig) -> None:
    """No time passes any more for what is done with states."""
    backing = rig.states._backing
    now = backing.clock()
    object.__setattr__(backing, "clock", lambda: now)


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize(("n", "fits"), [(4, True), (5, True), (6, False)])
async def test_a_tenant_has_as_many_handles_as_it_may(
    make_rig: MakeRig, n: int, fits: bool
) -> None:
    async with make_rig(kept={"handles_per_tenant": 5}) as rig:
        door = rig.door("anna")
        await door.create("parent", [1])
        names = [f"child-{at}" for at in range(n - 1)]
        if fits:
            assert len(await door.fork("parent", names)) == n - 1
        else:
            with pytest.raises(Refused) as caught:
                await door.fork("parent", names)
            assert caught.value.code == "QUOTA"
        assert len(await all_of(rig, "anna")) == (n if fits else 1)
        await rig.door("bert").create("parent", [1])


@pytest.mark.parametrize(("n", "fits"), [(9, True), (10, True), (11, False)])
async def test_a_tenant_forks_as_many_states_in_a_second_as_it_may(
    make_rig: MakeRig, n: int, fits: bool
) -> None:
    async with make_rig(kept={"forks_per_s": 10}) as rig:
        await rig.door("anna").create("parent", [1])
        # A level that rises with time: to be at the limit, all have to come at one time.
        hold_clock(rig)
        for at in range(n if fits else n - 1):
            await rig.door("anna").fork("parent", [f"child-{at}"])
        if not fits:
            with pytest.raises(Refused) as caught:
                await rig.door("anna").fork("parent", ["one-too-many"])
            assert caught.value.code == "RATE_LIMITED"
            assert "10 forks a second" in caught.value.message
        assert len(await all_of(rig, "anna")) == 1 + min(n, 10)
        await rig.door("bert").create("parent", [1])
        await rig.door("bert").fork("parent", ["child"])


@pytest.mark.parametrize(("n", "fits"), [(2, True), (3, True), (4, False)])
async def test_a_request_asks_for_as_many_choices_as_it_may(
    make_rig: MakeRig, n: int, fits: bool
) -> None:
    async with make_rig(max_n=3) as rig:
        client = rig.clients["anna"]
        if fits:
            stream = await client.generate([1], max_tokens=2, n=n)
            assert len(stream.choices) == n
            for choice in stream.choices:
                await choice.completion()
        else:
            with pytest.raises(InvalidParameterError) as caught:
                await (await client.generate([1], max_tokens=2, n=n)).choices[0].completion()
            assert caught.value.field == "n"
