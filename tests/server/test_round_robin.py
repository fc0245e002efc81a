"""Turns: one at a time, tenant after tenant, and a rest after each."""

import asyncio

import pytest

from wkvm.server import round_robin
from wkvm.server.round_robin import RoundRobin


async def settled() -> None:
    """Until nothing is left to do but to wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_tenant_with_many_waits_no_less_for_one_of_another() -> None:
    turns, order = RoundRobin(), list[str]()

    async def work(tenant: str) -> None:
        async with turns.turn(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    await asyncio.gather(*(work("many") for _ in range(5)), work("one"))
    assert order == ["many", "many", "one", "many", "many", "many"]


async def test_after_a_turn_nobody_has_one_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_robin, "REST", 1e9)  # longer than any test
    turns = RoundRobin()
    async with turns.turn("a"):
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(turns.turn("b").__aenter__())
    await settled()
    assert turns.n_waiting == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert turns.n_waiting == 0


async def test_who_gives_up_passes_on_the_turn_that_it_was_given() -> None:
    turns, had = RoundRobin(), list[str]()

    async def work(name: str) -> None:
        async with turns.turn(name):
            had.append(name)

    async with turns.turn("first"):
        second, third = (asyncio.create_task(work(name)) for name in ("second", "third"))
        await settled()
    while turns.n_waiting == 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    second.cancel()  # it has the turn, and has not begun with it
    await asyncio.wait_for(third, 60)
    assert had == ["third"]
    async with asyncio.timeout(60), turns.turn("last"):
        pass


async def test_who_is_cancelled_just_before_its_turn_keeps_it_from_nobody() -> None:
    turns, had = RoundRobin(), list[str]()

    async def work(name: str) -> None:
        async with turns.turn(name):
            had.append(name)

    async with turns.turn("first"):
        second, third = (asyncio.create_task(work(name)) for name in ("second", "third"))
        await settled()
    second.cancel()  # the next turn comes before it hears of that
    await asyncio.wait_for(third, 60)
    assert had == ["third"]
    assert turns.n_waiting == 0
