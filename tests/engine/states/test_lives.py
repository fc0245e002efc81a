"""What becomes of turns whose clients go, come back, or ask twice; and of a service that ends."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, TIMEOUT_S, Rig, running, until
from tests.fakes import fake_continuation
from wkvm.core.errors import (
    DrainingError,
    InvalidParameterError,
    KeyReusedError,
    QuotaError,
    StateNotFoundError,
    TokenOutOfRangeError,
)
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import AckClass, Durability, Ref, VersionRecord
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.core.states import OnDisconnect, Tier
from wkvm.engine.states import requests

PROMPT = (5, 6, 7)
N = 3


async def streaming(rig: Rig, **keywords: object) -> int:
    """A turn that has produced 3 of its 12 ids, for want of credit."""
    terms = {"save_as": "chat", "max_tokens": 12, "credit": N, **keywords}
    turn = rig.submit(PROMPT, **terms)
    await until(lambda: len(rig.ids.get(turn, ())) >= N)
    return turn


async def test_a_turn_of_a_lost_client_is_cancelled_by_default(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        rig.service.disconnected(turn)
        assert (await rig.end(turn)).status is Status.CANCELLED
        with pytest.raises(StateNotFoundError):
            await rig.service.get(TENANT, Ref("chat"))
        assert rig.loop.n_live == 0


async def test_a_turn_can_finish_without_its_client(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig, on_disconnect=OnDisconnect.FINISH)
        rig.service.hold(turn)
        rig.service.disconnected(turn)
        end = await rig.end(turn)
        tokens = rig.tokens("chat")
    assert (end.status, end.n_output) == (Status.LENGTH, 12)
    assert len(tokens) == len(PROMPT) + 12


async def test_a_turn_can_be_kept_where_its_client_left_it(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig, on_disconnect=OnDisconnect.HIBERNATE)
        rig.service.disconnected(turn)
        end = await rig.end(turn)
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert end.state is not None
    assert end.state.ref == Ref("chat", 1)
    assert rig.ids[turn] + more == fake_continuation(PROMPT, 5)


async def test_who_comes_back_is_told_what_it_missed_and_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        keywords = {"on_disconnect": OnDisconnect.FINISH, "idempotency_key": "k"}
        turn = await streaming(rig, **keywords)
        rig.service.disconnected(turn)
        had = rig.ids.pop(turn)[:2]
        again = rig.submit(PROMPT, save_as="chat", max_tokens=12, credit=N, received=2, **keywords)
        rig.service.grant(again, 9)
        end = await rig.end(again)
        head = await rig.service.get(TENANT, Ref("chat"))
    assert again == turn
    assert end.status is Status.LENGTH
    assert had + rig.ids[turn][-10:] == fake_continuation(PROMPT, 12)
    assert head.version.version == 1


async def test_a_turn_with_a_key_runs_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        first, end = await rig.turn(PROMPT, save_as="chat", idempotency_key="k")
        n_fed = rig.loop.n_fed
        second, again = await rig.turn(PROMPT, save_as="chat", idempotency_key="k")
        rest, _ = await rig.turn(PROMPT, save_as="chat", idempotency_key="k", received=3)
        assert rig.loop.n_fed == n_fed
        assert (await rig.service.get(TENANT, Ref("chat"))).version.version == 1
    assert first == second
    assert rest == first[3:]
    assert again.state == end.state


async def test_a_key_stands_for_one_request_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", idempotency_key="k")
        with pytest.raises(KeyReusedError):
            rig.submit((1,), save_as="chat", idempotency_key="k")


async def test_a_key_is_its_tenants(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", idempotency_key="k")
        before = rig.loop.n_fed
        await rig.turn(PROMPT, save_as="chat", idempotency_key="k", tenant="eve")
        assert rig.loop.n_fed > before


async def test_a_commit_with_a_key_is_made_once_over_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(tmp_path / "s") as rig:
            _, end = await rig.turn(PROMPT, save_as="chat", idempotency_key="k", expected_version=0)
            assert end.error is None
            assert (await rig.service.get(TENANT, Ref("chat"))).version.version == 1


async def test_credit_and_holds_count_while_the_state_is_loaded(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        turn = rig.submit((1,), state="chat", max_tokens=9, credit=1)
        rig.service.grant(turn, 2)
        rig.service.hold(turn)
        await until(lambda: rig.service.stats()["n_states_running"] >= 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert turn not in rig.ids
        rig.service.release(turn)
        await until(lambda: len(rig.ids.get(turn, ())) >= 3)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(rig.ids[turn]) == 3


async def test_a_commit_that_is_refused_ends_the_turn_as_an_error(tmp_path: Path) -> None:
    limits = StoreLimits(handles_per_tenant=1)
    async with running(tmp_path / "s", limits=limits) as rig:
        await rig.turn(PROMPT, save_as="chat")
        ids, end = await rig.turn(PROMPT, save_as="other")
        assert (await rig.service.handles(TENANT)).states[0].version.ref == Ref("chat", 1)
        assert rig.service.stats()["state_commits_failed_total"] == 1
    assert len(ids) == 4
    assert (end.status, type(end.error)) == (Status.FINISHED_ERROR, QuotaError)
    assert end.state is not None
    assert end.state.ref is None


async def test_a_drain_waits_for_commits_and_keeps_what_its_client_wants_kept(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        kept = await streaming(rig, on_disconnect=OnDisconnect.HIBERNATE)
        dropped = await streaming(rig, save_as="other")
        await rig.service.drain(0.01)
        assert rig.ends[kept].state is not None
        assert rig.ends[dropped].status is Status.CANCELLED
        assert (await rig.service.get(TENANT, Ref("chat"))).version.ack is AckClass.DURABLE
        with pytest.raises(StateNotFoundError):
            await rig.service.get(TENANT, Ref("other"))
        with pytest.raises(DrainingError):
            rig.submit(PROMPT, save_as="late")


async def test_without_a_disk_nothing_is_called_durable(tmp_path: Path) -> None:
    async with running(tmp_path / "s", has_disk=False) as rig:
        _, end = await rig.turn(PROMPT, save_as="chat", max_tokens=2)
        rig.store.persist(TENANT, "chat")  # as the store does where host memory is full
        info = await rig.service.get(TENANT, Ref("chat"))
        page = await rig.service.handles(TENANT)
        with pytest.raises(InvalidParameterError, match="durability"):
            rig.submit(PROMPT, save_as="other", durability=Durability.DISK)
        with pytest.raises(InvalidParameterError, match="tier"):
            await rig.service.hibernate(TENANT, Ref("chat"))
    assert end.state is not None
    assert end.state.ack is AckClass.VISIBLE
    assert info.version.ack is info.handle.head.ack is AckClass.VISIBLE
    assert page.states[0].version.ack is AckClass.VISIBLE


async def test_a_request_goes_on_if_its_state_is_to_go_where_there_is_no_store(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        _, end = await rig.turn(PROMPT, save_as="chat", max_tokens=2)
        with pytest.raises(InvalidParameterError, match="object store"):
            await rig.service.hibernate(TENANT, Ref("chat"), Tier.COLD)
        info = await rig.service.get(TENANT, Ref("chat"))
    assert end.state is not None
    assert info.version.ref == end.state.ref


async def test_what_is_asked_for_in_memory_is_visible_and_persisted_when_idle(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        _, end = await rig.turn(PROMPT, save_as="chat", durability=Durability.MEMORY)
        assert end.state is not None
        assert end.state.ack is AckClass.VISIBLE
        assert await rig.service.sweep(60.0) == 0
        assert await rig.service.sweep(0.0) == 1
        info = await rig.service.get(TENANT, Ref("chat"))
        assert (info.version.ack, info.tier) == (AckClass.DURABLE, Tier.DISK)
        more, _ = await rig.turn((), state="chat", max_tokens=1)
        assert (await rig.service.get(TENANT, Ref("chat"))).tier is Tier.HOST
    assert more == fake_continuation(PROMPT, 5)[4:]


async def test_a_state_that_is_deleted_while_others_leave_memory_ends_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="first")
        await rig.turn(PROMPT, save_as="second")
        begun, deleted, cool = threading.Event(), threading.Event(), rig.store.cool

        def slow(tenant: str, ref: Ref) -> VersionRecord:
            begun.set()
            deleted.wait(60)
            return cool(tenant, ref)

        monkeypatch.setattr(rig.store, "cool", slow)
        sweep = asyncio.create_task(rig.service.sweep(0.0))
        await until(begun.is_set)
        await rig.service.delete(TENANT, Ref("second"))
        deleted.set()
        assert await sweep == 1


async def test_a_state_that_is_worked_on_is_not_idle(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        turn = rig.submit((1,), state="chat", save_as="chat", credit=0)
        assert await rig.service.sweep(0.0) == 0
        await until(lambda: rig.service.stats()["n_states_running"] >= 1)
        assert (await rig.service.get(TENANT, Ref("chat"))).tier is Tier.DEVICE
        rig.service.cancel(turn)


async def test_hibernating_a_state_stops_and_keeps_the_request_on_it(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        turn = rig.submit((1,), state="chat", save_as="chat", max_tokens=9, credit=2)
        await until(lambda: len(rig.ids.get(turn, ())) >= 2)
        info = await rig.service.hibernate(TENANT, Ref("chat"))
        end = await rig.end(turn)
        assert (await rig.service.resume(TENANT, Ref("chat"))).tier is Tier.HOST
    assert (info.version.ref, info.tier) == (Ref("chat", 2), Tier.DISK)
    assert end.state is not None
    assert end.state.ref == Ref("chat", 2)


async def test_an_id_that_the_vocabulary_has_not_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        for prompt in ((64,), (1, 2**31)):
            with pytest.raises(TokenOutOfRangeError):
                await rig.service.create(TENANT, "bad", prompt)


async def test_checkpoints_of_one_turn_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        prompt = [token % 60 for token in range(64 * 40)]
        await rig.service.create(TENANT, "long", prompt, checkpoint_every=64)
        positions = rig.store.checkpoints(TENANT, "long")
    assert positions == [*(64 * at for at in range(8, 40)), 64 * 40 - 1]


async def test_a_drain_ends_what_waits_for_a_move(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        parked = await streaming(rig)
        await rig.service.migrate_begin(TENANT, "chat")
        waiting = rig.submit((1,), state="chat", save_as="chat")
        async with asyncio.timeout(60):
            await rig.service.drain(0.01)
        end = await rig.end(parked)
        assert (await rig.end(waiting)).status is Status.CANCELLED
    assert end.state is not None
    assert end.state.ref == Ref("chat", 1)


async def test_names_that_were_never_there_take_no_memory_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm.engine.states.backing.MAX_USED", 3)
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        for number in range(9):
            await rig.turn((1,), state=f"none{number}")
        await rig.turn((1,), state="chat")
        assert await rig.service.sweep(0.0) == 1


async def test_what_is_in_memory_alone_outlives_a_service_that_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        first, end = await rig.turn(PROMPT, save_as="chat", durability=Durability.MEMORY)
        assert end.state is not None
        assert end.state.ack is AckClass.VISIBLE
    async with running(tmp_path / "s") as rig:
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert more == fake_continuation((*PROMPT, *first), 2)


async def test_a_disk_that_does_not_answer_holds_up_its_own_turn_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        answers, commit = threading.Event(), rig.store.commit

        def wait(*arguments: object, **keywords: object) -> object:
            answers.wait(TIMEOUT_S)
            return commit(*arguments, **keywords)  # type: ignore[arg-type]

        monkeypatch.setattr(rig.store, "commit", wait)
        slow = rig.submit((1,), state="chat", save_as="chat")
        await until(lambda: rig.service.stats()["n_states_committing"] == 1)
        others = [await rig.turn((number,), state="chat") for number in range(8)]
        assert slow not in rig.ends
        answers.set()
        assert (await rig.end(slow)).error is None
    assert all(end.error is None for _, end in others)


async def test_a_request_that_keeps_nothing_ends_when_the_time_for_a_drain_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than this test may take: it is the time of those that are to be kept.
    monkeypatch.setattr(requests, "INTERRUPT_S", 3600.0)
    async with running(tmp_path / "s") as rig:
        spec = RequestSpec(prompt=PROMPT, params=SamplingParams(max_tokens=12), credit=N)
        (plain,) = rig.service.submit(spec)
        kept = await streaming(rig, on_disconnect=OnDisconnect.HIBERNATE)
        async with asyncio.timeout(TIMEOUT_S):
            await rig.service.drain(0.01)
        assert (await rig.end(plain)).status is Status.CANCELLED
        assert (await rig.end(kept)).status is Status.CANCELLED
        assert len(rig.tokens("chat")) == len(PROMPT) + N
