"""Who comes back to a turn gets what it has missed, as its credit lets it, and nothing twice."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, TIMEOUT_S, Rig, running, until
from tests.fakes import fake_continuation
from wkvm.core.errors import StateNotFoundError
from wkvm.core.registry import Ref
from wkvm.core.request import (
    EndEvent,
    Event,
    Logprobs,
    SavedEvent,
    Status,
    TokensEvent,
)
from wkvm.core.states import OnDisconnect
from wkvm.engine.states.pacing import Pacer

PROMPT = (5, 6, 7)
N_ALL = 30
KEYED = {"save_as": "chat", "max_tokens": N_ALL, "idempotency_key": "k"}
FINISH = OnDisconnect.FINISH


async def settled() -> None:
    """Let all that can be told be told."""
    for _ in range(60):
        await asyncio.sleep(0)


async def begun(rig: Rig, n: int = 3, **more: object) -> int:
    """A turn that has produced ``n`` ids, for want of credit."""
    turn = rig.submit(PROMPT, credit=n, on_disconnect=FINISH, **KEYED, **more)
    await until(lambda: len(rig.ids.get(turn, ())) >= n)
    return turn


async def is_kept(rig: Rig) -> None:
    """Wait until the turn is over and committed."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await rig.service.get(TENANT, Ref("chat"))
            except StateNotFoundError:
                await asyncio.sleep(0.001)
            else:
                return


def come_back(rig: Rig, received: int, credit: int | None) -> int:
    rig.ids.clear()
    return rig.submit(PROMPT, credit=credit, received=received, on_disconnect=FINISH, **KEYED)


async def goes_on_as_granted(rig: Rig, received: int, credit: int) -> int:
    """Come back, and see that ids come as they are granted, up to the end."""
    again = come_back(rig, received, credit)
    expected = fake_continuation(PROMPT, N_ALL)
    for n_more in (0, 1, 4):
        if n_more:
            rig.service.grant(again, n_more)
        credit += n_more
        await until(lambda n=credit: len(rig.ids.get(again, ())) >= n)  # type: ignore[misc]
        await settled()
        assert rig.ids[again] == expected[received : received + credit]
        assert again not in rig.ends
    rig.service.grant(again, N_ALL)
    end = await rig.end(again)
    assert rig.ids[again] == expected[received:]
    assert (end.status, end.n_output) == (Status.LENGTH, N_ALL)
    assert end.state is not None
    assert end.state.ref == Ref("chat", 1)
    return again


async def test_what_was_missed_of_a_turn_that_runs_comes_as_it_is_granted(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await begun(rig)
        rig.service.disconnected(turn)
        await goes_on_as_granted(rig, 1, 2)


async def test_what_was_missed_of_a_turn_that_is_over_comes_as_it_is_granted(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        rig.service.disconnected(await begun(rig))
        await is_kept(rig)
        await goes_on_as_granted(rig, 2, 3)


async def test_what_was_missed_before_a_restart_comes_as_it_is_granted(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        rig.service.disconnected(await begun(rig))
        await is_kept(rig)
    async with running(tmp_path / "s") as rig:
        await goes_on_as_granted(rig, 3, 5)


async def test_who_takes_a_turn_over_with_more_credit_gets_as_much(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        assert await begun(rig) == await goes_on_as_granted(rig, 0, 10)


@pytest.mark.parametrize("is_gone", [True, False])
async def test_who_comes_back_without_a_limit_gets_all(tmp_path: Path, is_gone: bool) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await begun(rig)
        if is_gone:
            rig.service.disconnected(turn)
        again = come_back(rig, 2, None)
        await rig.end(again)
        assert rig.ids[again] == fake_continuation(PROMPT, N_ALL)[2:]


async def test_a_hold_of_who_listened_before_is_over(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await begun(rig)
        rig.service.hold(turn)
        again = come_back(rig, 3, N_ALL)
        await rig.end(again)
        assert rig.ids[again] == fake_continuation(PROMPT, N_ALL)[3:]


async def test_who_came_back_and_does_not_read_gets_nothing_until_it_does(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        rig.service.disconnected(await begun(rig))
        await is_kept(rig)
        again = come_back(rig, 1, N_ALL)
        rig.service.hold(again)
        await settled()
        assert again not in rig.ids
        assert again not in rig.ends
        rig.service.release(again)
        await rig.end(again)
        assert rig.ids[again] == fake_continuation(PROMPT, N_ALL)[1:]


async def test_one_may_go_and_come_back_again_and_again(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn, ids = await begun(rig), list[int]()
        rig.service.disconnected(turn)
        while len(ids) < 24:
            again = come_back(rig, len(ids), 6)
            await until(lambda n=again: len(rig.ids.get(n, ())) >= 6)  # type: ignore[misc]
            await settled()
            ids += rig.ids[again]
            rig.service.disconnected(again)
        assert ids == fake_continuation(PROMPT, 24)


@pytest.mark.parametrize("is_over", [True, False])
async def test_who_came_back_and_cancels_has_its_end_soon(tmp_path: Path, is_over: bool) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await begun(rig)
        if is_over:
            rig.service.disconnected(turn)
            await is_kept(rig)
        again = come_back(rig, 1, 2)
        await until(lambda: len(rig.ids.get(again, ())) >= 2)
        rig.service.cancel(again)
        end = await rig.end(again)
        assert len(rig.ids[again]) == 2
        assert end.status is (Status.LENGTH if is_over else Status.CANCELLED)
        assert is_over or end.n_output == 3


async def test_an_interrupt_of_who_came_back_comes_after_what_it_may_have(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await begun(rig, 5)
        again = come_back(rig, 0, 2)
        rig.service.interrupt(again, 4)
        phases = ("n_states_running", "n_states_committing")
        await until(lambda: not any(rig.service.stats()[phase] for phase in phases))
        await settled()
        assert (rig.ids[again], again in rig.ends) == (fake_continuation(PROMPT, 2), False)
        rig.service.grant(again, 9)
        end = await rig.end(again)
        assert (rig.ids[again], end.n_output) == (fake_continuation(PROMPT, 4), 4)


async def test_a_deadline_does_not_wait_for_credit(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await begun(rig)
        again = come_back(rig, 0, 2)
        rig.loop.deliver([ended(turn, Status.TIMED_OUT, 3)])
        end = await rig.end(again)
        assert (rig.ids[again], end.n_output) == (fake_continuation(PROMPT, 2), 2)


# --- events -------------------------------------------------------------------------------------


def ended(request_id: int, status: Status, n_output: int) -> EndEvent:
    return EndEvent(request_id, status, None, None, 1, n_output, 0.0, 0.0, 0.0)


def tokens(*columns: tuple[int, int, int], logprobs: Sequence[int] = ()) -> TokensEvent:
    """Request, index and id of each; ``logprobs`` by place, as the number of the id."""
    ids, indices, token_ids = zip(*columns, strict=True)
    found = {at: Logprobs(token_ids[at], -1.0, 1, ()) for at in logprobs}
    return TokensEvent(ids, indices, token_ids, found)


def told(events: Sequence[Event]) -> list[tuple[object, ...]]:
    found = list[tuple[object, ...]]()
    for event in events:
        if isinstance(event, TokensEvent):
            for at, one in enumerate(event.request_ids):
                logprobs = event.logprobs.get(at)
                token = event.token_ids[at]
                assert logprobs is None or logprobs.token_id == token
                found.append((one, event.indices[at], token, logprobs is not None))
        else:
            found.append((type(event).__name__, event.request_id))
    return found


def test_other_requests_of_a_step_go_by_at_once_and_logprobs_stay_with_their_ids() -> None:
    delivered = list[Event]()
    pacer, outputs = Pacer(delivered.extend), [10, 11]
    pacer.begin(2, outputs, n_told=1, credit=1)
    outputs.append(12)
    step = tokens((1, 0, 50), (2, 2, 12), (3, 4, 60), logprobs=[1, 2])
    pacer.pass_on([step, SavedEvent(2, None, False), ended(1, Status.LENGTH, 1)])
    assert told(delivered) == [
        (1, 0, 50, False),
        (3, 4, 60, True),
        ("SavedEvent", 2),
        ("EndEvent", 1),
        (2, 1, 11, False),
    ]
    delivered.clear()
    pacer.pass_on([ended(2, Status.LENGTH, 3)])
    assert delivered == []
    assert pacer.grant(2, 5) == 7
    pacer.tell(2)
    assert told(delivered) == [(2, 2, 12, True), ("EndEvent", 2)]
    assert pacer.grant(2, 1) is None, "it is over"


def test_a_step_of_one_that_waits_alone_is_no_event() -> None:
    delivered = list[list[Event]]()
    pacer = Pacer(delivered.append)
    pacer.begin(2, [10], n_told=0, credit=0)
    pacer.pass_on([tokens((2, 0, 10))])
    assert delivered == []


def test_what_is_not_paced_is_passed_on_as_it_is() -> None:
    delivered = list[list[Event]]()
    pacer = Pacer(delivered.append)
    events: list[Event] = [tokens((1, 0, 5)), ended(1, Status.LENGTH, 1)]
    pacer.pass_on(events)
    assert delivered == [events]
    assert not pacer.hold(1, is_held=True)
    assert not pacer.cancel(1)
    pacer.tell(1)
