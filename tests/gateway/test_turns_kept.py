"""What is kept of the turns of sessions, and for whom."""

import asyncio
import gc
import weakref

import pytest

from tests.gateway.harness import TIMEOUT_S
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.failures import HttpError
from wkvm.gateway.sessions import turns as module
from wkvm.gateway.sessions.turns import Turn, Turns


async def ends(turn: Turn) -> None:
    turn.add(b"1")
    turn.end(b"{}")


async def runs(turn: Turn) -> None:
    await asyncio.Event().wait()


async def over(turn: Turn) -> Turn:
    async with asyncio.timeout(TIMEOUT_S):
        await turn.over()
    await asyncio.sleep(0)
    return turn


async def test_events_are_numbered_and_read_from_any_of_them() -> None:
    turn = Turn()
    for event in (b"a", b"b", b"c"):
        turn.add(event)
    name = turn.turn_id.encode()
    assert turn.since(1) == [b"id: %b:2\ndata: b\n\n" % name, b"id: %b:3\ndata: c\n\n" % name]
    assert turn.since(3) == []


async def test_events_that_never_were_are_gone() -> None:
    turn = Turn()
    turn.add(b"a")
    with pytest.raises(HttpError) as caught:
        turn.since(2)
    assert (caught.value.status, caught.value.code) == (410, "events_gone")


async def test_of_a_long_turn_the_first_events_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TURN_BYTES", 100)
    turn = Turn()
    for _ in range(10):
        turn.add(b"x" * 20)
    assert turn.n_events == 10
    assert turn.n_bytes <= 100
    assert len(turn.since(9)) == 1
    with pytest.raises(HttpError, match="no more"):
        turn.since(0)


async def test_of_a_session_one_turn_runs() -> None:
    kept = Turns(GatewayConfig())
    kept.begin(b"anna", "s", runs)
    with pytest.raises(HttpError) as caught:
        kept.begin(b"anna", "s", ends)
    assert (caught.value.status, caught.value.code) == (409, "session_busy")
    kept.begin(b"anna", "t", ends)
    kept.begin(b"bert", "s", ends)


async def test_a_tenant_does_not_see_anothers_turn() -> None:
    kept = Turns(GatewayConfig())
    turn = kept.begin(b"anna", "s", ends)
    assert kept.find(b"anna", "s") is turn
    assert kept.find(b"bert", "s") is None


async def test_so_many_turns_run_and_no_more() -> None:
    kept = Turns(GatewayConfig(max_submitted=2))
    await over(kept.begin(b"anna", "over", ends))
    kept.begin(b"anna", "1", runs)
    kept.begin(b"anna", "2", runs)
    assert kept.find(b"anna", "over") is None, "the one that was over made room"
    with pytest.raises(HttpError) as caught:
        kept.begin(b"anna", "3", runs)
    assert (caught.value.status, caught.value.code) == (429, "too_many_turns")
    kept.begin(b"bert", "1", runs)


async def test_what_ended_is_forgotten_in_time() -> None:
    kept = Turns(GatewayConfig(submitted_ttl_s=0.001))
    await over(kept.begin(b"anna", "s", ends))
    async with asyncio.timeout(TIMEOUT_S):
        while kept.find(b"anna", "s") is not None:  # noqa: ASYNC110  (nothing announces it)
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("how", ["deleted", "too many", "too long", "followed by another"])
async def test_nothing_holds_a_turn_that_is_kept_no_more(how: str) -> None:
    n, n_bytes = (1 if how == "too many" else 9), (1 if how == "too long" else 10**6)
    turns = Turns(GatewayConfig(max_submitted=n, max_submitted_bytes=n_bytes))
    held = weakref.ref(await over(turns.begin(b"t", "one", ends)))
    match how:
        case "deleted":
            turns.forget(b"t", "one")
        case "followed by another":
            await over(turns.begin(b"t", "one", ends))
        case _:
            await over(turns.begin(b"t", "two", ends))
    gc.collect()
    assert held() is None


async def test_a_turn_that_begins_is_not_forgotten_with_the_one_before() -> None:
    kept = Turns(GatewayConfig(submitted_ttl_s=0.001))
    await over(kept.begin(b"anna", "s", ends))
    turn = kept.begin(b"anna", "s", runs)
    await asyncio.sleep(0.01)
    assert kept.find(b"anna", "s") is turn


async def test_the_last_reader_to_leave_is_the_one_that_counts() -> None:
    turn, left = Turn(), list[int]()
    turn.when_left(lambda: left.append(1))
    with turn:
        with turn:
            pass
        assert left == []
    assert left == [1]


async def test_who_leaves_before_a_turn_runs_has_left_too() -> None:
    turn, left = Turn(), list[int]()
    turn.when_left(lambda: left.append(1))
    assert left == [], "nobody has come yet"
    early = Turn()
    with early:
        pass
    early.when_left(lambda: left.append(1))
    assert left == [1]


async def test_who_leaves_after_the_end_has_not_left() -> None:
    turn, left = Turn(), list[int]()
    turn.when_left(lambda: left.append(1))
    with turn:
        turn.end(b"{}")
    assert left == []


async def test_a_turn_that_breaks_ends_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(turn: Turn) -> None:
        raise RuntimeError("a bug")

    turn = await over(Turns(GatewayConfig()).begin(b"anna", "s", breaks))
    assert turn.error is not None
    assert turn.error.status == 500
    assert "a turn was lost" in caplog.text
