"""How many states of a tenant may wait in host memory."""

import asyncio
from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, running, until
from wkvm.core.registry import Ref
from wkvm.core.request import Status
from wkvm.engine.states.gate import Gate, Place


async def enter(gate: Gate, tenant: str, name: str, order: list[str]) -> None:
    await gate.enter(tenant)
    order.append(name)


async def lined_up(gate: Gate, names: str, order: list[str]) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(enter(gate, TENANT, name, order)) for name in names]
    await asyncio.sleep(0)
    return tasks


async def test_no_more_than_the_limit_are_inside_and_who_came_first_is_next() -> None:
    gate, order = Gate(2), list[str]()
    await lined_up(gate, "abcd", order)
    assert (order, gate.n_inside(TENANT)) == (["a", "b"], 2)
    gate.leave(TENANT)
    await asyncio.sleep(0)
    assert (order, gate.n_inside(TENANT)) == (["a", "b", "c"], 2)


async def test_a_tenant_keeps_no_other_out() -> None:
    gate, order = Gate(1), list[str]()
    await lined_up(gate, "ab", order)
    await gate.enter("eve")
    assert (order, gate.n_inside("eve")) == (["a"], 1)


async def test_who_gives_up_takes_no_place() -> None:
    gate, order = Gate(1), list[str]()
    tasks = await lined_up(gate, "abc", order)
    tasks[1].cancel()
    await asyncio.sleep(0)
    gate.leave(TENANT)
    await asyncio.sleep(0)
    assert order == ["a", "c"]
    gate.leave(TENANT)
    assert gate.n_inside(TENANT) == 0


async def test_who_gives_up_just_when_it_is_let_in_leaves_the_place_to_others() -> None:
    gate, order = Gate(1), list[str]()
    tasks = await lined_up(gate, "abc", order)
    gate.leave(TENANT)
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    await asyncio.sleep(0)
    assert order == ["a", "c"]


async def inside(gate: Gate, *places: Place) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(gate.enter(TENANT, place)) for place in places]
    await asyncio.sleep(0)
    return tasks


async def test_states_take_no_more_bytes_than_the_limit() -> None:
    gate = Gate(10, limit_bytes=100)
    first, second, third = await inside(gate, Place("a", 60), Place("b", 60), Place("c", 10))
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    gate.leave(TENANT, Place("a", 60))
    await asyncio.sleep(0)
    assert gate.n_inside(TENANT) == 2
    assert second.done()
    assert third.done()


async def test_turns_from_the_same_bytes_count_once() -> None:
    gate, place = Gate(10, limit_bytes=100), Place("a", 60)
    assert all(task.done() for task in await inside(gate, place, place, place))
    gate.leave(TENANT, place)
    (other,) = await inside(gate, Place("b", 50))
    gate.leave(TENANT, place)
    await asyncio.sleep(0)
    assert not other.done()
    gate.leave(TENANT, place)
    await asyncio.sleep(0)
    assert other.done()


async def test_a_state_above_the_limit_comes_in_alone() -> None:
    gate = Gate(10, limit_bytes=100)
    large, small = await inside(gate, Place("a", 1000), Place("b", 1))
    assert (large.done(), small.done()) == (True, False)
    gate.leave(TENANT, Place("a", 1000))
    await asyncio.sleep(0)
    assert small.done()


async def test_who_waits_behind_one_that_gives_up_comes_in() -> None:
    gate = Gate(10, limit_bytes=100)
    _, large, small = await inside(gate, Place("a", 60), Place("b", 60), Place("c", 10))
    large.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert small.done()


@pytest.mark.usefixtures("either_kind")
async def test_turns_beyond_the_limit_load_when_others_are_over(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn((5, 6, 7), save_as="chat")
        limit = rig.service.max_starts
        held = [rig.submit((1,), state="chat", credit=0) for _ in range(limit)]
        late = rig.submit((1,), state="chat", max_tokens=2)
        timed = rig.submit((1,), state="chat", timeout_s=0.02)
        gone = rig.submit((1,), state="chat")
        await until(lambda: rig.service.stats()["n_states_running"] >= limit)
        rig.service.cancel(gone)
        assert (await rig.end(timed)).status is Status.TIMED_OUT
        assert (await rig.end(gone)).status is Status.CANCELLED
        assert late not in rig.ends
        for turn in held:
            rig.service.cancel(turn)
        assert (await rig.end(late)).status is Status.LENGTH
        for _ in range(2):
            await asyncio.sleep(0)
        assert rig.service.stats()["n_states_loading"] == 0
        assert (await rig.service.get(TENANT, Ref("chat"))).version.version == 1
