"""Lanes end, whatever their clients do: cancelled, cut off, short of credit, in every state."""

import asyncio
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    Cancel,
    Credit,
    EndReason,
    GoAway,
    Ping,
    Pong,
    Tokens,
    pack_ids,
)

from tests.fakes import FakeModel, fake_continuation
from tests.server.harness import VOCAB_SIZE, RawClient, Rig, serving, tcp_config, until
from wkvm.core.config import EngineConfig
from wkvm.models.base import Batch
from wkvm.server.lanes import CreditPool

ONE_SLOT = EngineConfig(n_slots=1, max_num_batched_tokens=64)


class Gate:
    """Lets the model's steps wait, so that a request can be met in any state."""

    def __init__(self) -> None:
        self.model = FakeModel(vocab_size=VOCAB_SIZE, before_forward=self._pass)
        self.entered = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.entered.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def _pass(self, batch: Batch) -> None:
        del batch
        self.entered.set()
        assert self._open.wait(60)

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 60)


STATES = ("queued", "in its prompt", "in its output", "out of credit")


async def bring(rig: Rig, gate: Gate, client: RawClient, state: str) -> int:
    """A lane of ``client`` in a state, while the model waits inside a step where it can."""
    if state == "queued":
        other = await rig.client()
        other.start((9,), max_tokens=10**6)
        await other.next()
        lane = client.start(max_tokens=10**6)
        client.send(Ping(1))
        await client.next_of(Pong)
        assert rig.loop.stats()["n_queued"] == 1
        other.abort()
        gate.shut()
        return lane
    if state == "in its prompt":
        gate.shut()
        lane = client.start((1,) * 10_000, max_tokens=10**6)
        await gate.until_entered()
        return lane
    lane = client.start(max_tokens=10**6, credit=3 if state == "out of credit" else 0)
    for _ in range(3):
        await client.next()
    if state == "in its output":
        gate.shut()
        await gate.until_entered()
    else:
        await until(lambda: rig.loop.stats()["n_paused"] == 1)
    return lane


@pytest.mark.parametrize("state", STATES)
async def test_a_cancel_is_answered_by_an_end_in_every_state(state: str) -> None:
    gate = Gate()
    async with serving(model=gate.model, engine_config=ONE_SLOT) as rig:
        client = await rig.client()
        lane = await bring(rig, gate, client, state)
        client.send(Cancel(lane), Cancel(lane))
        # the answer does not wait for the step
        answer = await client.answer(lane)
        gate.open()
        assert answer.ends[0].reason == EndReason.CANCELLED
        assert answer.failed is None
        client.send(Cancel(lane))
        await rig.assert_idle()
        await rig.assert_alive()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", ["close", "abort", "half"])
async def test_a_connection_that_is_lost_frees_what_it_held(state: str, way: str) -> None:
    gate = Gate()
    async with serving(model=gate.model, engine_config=ONE_SLOT) as rig:
        client = await rig.client()
        await bring(rig, gate, client, state)
        match way:
            case "close":
                await client.close()
            case "abort":
                client.abort()
            case _:
                client.writer.write_eof()
        await until(lambda: rig.server.n_requests == 0)
        n_steps = rig.loop.stats()["steps_total"]
        gate.open()
        await rig.assert_idle(n_connections=1)
        # at most the step that was in flight
        assert rig.loop.stats()["steps_total"] <= n_steps + 1
        await rig.assert_alive()


async def test_a_connection_lost_in_mid_frame_or_mid_hello_leaves_nothing() -> None:
    async with serving() as rig:
        for is_open in (False, True):
            client = await rig.client() if is_open else await rig.connect()
            client.write(b"\x10\0\0\0\x93")
            await client.writer.drain()
            client.abort()
        await rig.assert_idle(n_connections=1)
        await rig.assert_alive()


async def test_1000_connections_leave_no_task_and_no_file() -> None:
    async with serving(tcp_config()) as rig:
        await rig.assert_alive()
        n_tasks, n_files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        for round_ in range(10):
            clients = await asyncio.gather(*(rig.client() for _ in range(100)))
            for number, client in enumerate(clients):
                client.start((round_ + 1, number % 50), max_tokens=10**6)
            for client in clients[::2]:
                client.abort()
            await asyncio.gather(*(client.close() for client in clients[1::2]))
            await rig.assert_idle(n_connections=1)
            del rig.clients[1:]  # the first is the control
        del clients, client
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= n_tasks
        assert len(os.listdir("/proc/self/fd")) <= n_files  # others may be collected
        await rig.assert_alive()


async def test_after_go_away_open_lanes_end_and_then_the_connection() -> None:
    async with serving() as rig:
        client = await rig.client()
        lane = client.start(max_tokens=30)
        client.send(GoAway())
        answer = await client.answer(lane)
        assert answer.ids == {0: fake_continuation((1, 2, 3), 30, VOCAB_SIZE)}
        assert await client.next() is None
        await rig.assert_idle(n_connections=1)


async def test_an_error_in_one_choice_ends_its_lane_and_no_other() -> None:
    def fail(batch: Batch) -> None:
        if len(batch.lengths) > 1 and broken.is_set():
            broken.clear()
            raise RuntimeError("secret-cause")

    broken = threading.Event()
    model = FakeModel(vocab_size=VOCAB_SIZE, before_forward=fail)
    async with serving(model=model) as rig:
        client = await rig.client()
        lane = client.start(n=3, max_tokens=10**6)
        await client.next()
        broken.set()
        failed = (await client.answer(lane)).failed
        assert failed is not None
        assert failed.code == ErrorCode.STEP_FAILED
        assert "secret" not in failed.message
        # ServerConnection and ClientConnection both refuse a message for a closed lane
        assert (await client.generate()).ids == {0: fake_continuation((1, 2, 3), 4, VOCAB_SIZE)}
        await rig.assert_idle()
        await rig.assert_alive()


# --- credit -------------------------------------------------------------------------------


async def n_ids_until_paused(rig: Rig, client: RawClient) -> int:
    """How many ids come until the server has nothing left that it may produce."""
    n_ids = 0
    for nonce in (1, 2):
        client.send(Ping(nonce))
        while not isinstance(message := await client.next(), Pong):
            assert isinstance(message, Tokens)
            n_ids += len(message.ids) // 4
        # what was sent before the first Ping has arrived; what follows from it will end
        await until(lambda: (stats := rig.loop.stats())["n_paused"] == stats["n_running"])
    return n_ids


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("n_slots", [1, 8])
async def test_a_lane_never_sends_more_ids_than_were_granted(n: int, n_slots: int) -> None:
    async with serving(engine_config=EngineConfig(n_slots=n_slots)) as rig:
        client = await rig.client()
        lane = client.start(n=n, max_tokens=100, credit=20)
        # where choices wait for a slot, one unit may be kept for the next of them
        kept = 1 if n > n_slots else 0
        assert await n_ids_until_paused(rig, client) == 20 - kept
        client.send(Credit(lane, 10))
        assert await n_ids_until_paused(rig, client) == 10
        client.send(Credit(lane, 10_000))
        answer = await client.answer(lane)
        assert sum(len(ids) for ids in answer.ids.values()) == 100 * n - 30 + kept
        assert all(end.n_output == 100 for end in answer.ends.values())
        assert len(answer.ends) == n


async def test_a_stop_id_needs_credit_to_be_looked_for_and_uses_none() -> None:
    ids = fake_continuation((1, 2), 4, VOCAB_SIZE)
    assert ids[3] not in ids[:3]
    async with serving() as rig:
        client = await rig.client()
        lane = client.start((1, 2), max_tokens=9, credit=3, stop_ids=pack_ids(ids[3:]))
        assert await n_ids_until_paused(rig, client) == 3
        client.send(Credit(lane, 1))
        answer = await client.answer(lane)
        assert answer.ids == {}
        assert answer.ends[0].reason == EndReason.STOP


async def test_the_last_id_that_was_asked_for_needs_no_more_credit() -> None:
    async with serving() as rig:
        client = await rig.client()
        answer = await client.generate((1, 2), max_tokens=4, credit=4, ignore_eos=True)
        assert answer.ends[0].reason == EndReason.LENGTH


async def test_ends_add_up_to_the_requests_taken_when_a_lane_stalls() -> None:
    async with serving(engine_config=EngineConfig(n_slots=2, stall_timeout_s=0.05)) as rig:
        client = await rig.client()
        await client.failure((), max_tokens=1)  # not taken: counted nowhere
        failed = await client.failure(n=3, credit=3, max_tokens=9, ignore_eos=True)
        assert failed.code == ErrorCode.STALLED
        stats = await client.stats()
        assert stats["requests_total"] == 3
        # those that had a slot can stall, and the others go with them
        assert 1 <= stats["finished_error_total"] <= 2
        assert stats["finished_error_total"] + stats["cancelled_total"] == 3


async def test_small_grants_bring_every_choice_to_its_end() -> None:
    async with serving(engine_config=EngineConfig(n_slots=2)) as rig:
        client = await rig.client()
        lane = client.start(n=5, max_tokens=7, credit=2, temperature=3.0)
        ends = 0
        n_granted, n_received = 2, 0
        while ends < 5:
            message = await client.next()
            assert message is not None
            n_new = len(getattr(message, "ids", b"")) // 4
            n_received += n_new
            assert n_received <= n_granted
            if n_new:
                client.send(Credit(lane, n_new))
                n_granted += n_new
            ends += type(message).__name__ == "End"
        assert n_received == 35


def test_grants_of_one_id_go_to_each_choice_in_turn() -> None:
    pool = CreditPool(1, 3)
    turns = list[int]()
    grants = pool.deal()
    for _ in range(9):
        ((choice, n_tokens),) = grants
        assert n_tokens == 1
        assert pool.used(choice) == []
        turns.append(choice)
        grants = pool.add(1)
    assert turns == [0, 1, 2] * 3


@given(
    credit=st.integers(1, 40),
    n_choices=st.integers(2, 6),
    n_slots=st.integers(1, 6),
    data=st.data(),
)
def test_a_pool_neither_gives_too_much_nor_keeps_what_could_be_used(
    credit: int, n_choices: int, n_slots: int, data: st.DataObject
) -> None:
    """Choices get slots in order, run while they have credit, and end at any time."""
    pool = CreditPool(credit, n_choices)
    held = dict.fromkeys(range(n_choices), 0)
    granted, used = credit, 0

    def apply(grants: list[tuple[int, int]]) -> None:
        for choice, n_tokens in grants:
            assert n_tokens > 0
            held[choice] += n_tokens

    apply(pool.deal())
    while held:
        assert used + sum(held.values()) <= granted
        with_slot = sorted(held)[:n_slots]
        ready = [choice for choice in with_slot if held[choice]]
        if not ready:
            # nothing can run: at most one unit is kept, for the first that has not started
            assert granted - used <= 1
            n_more = data.draw(st.integers(1, 9))
            granted += n_more
            apply(pool.add(n_more))
            continue
        choice = data.draw(st.sampled_from(ready))
        if data.draw(st.booleans()):
            held[choice] -= 1
            used += 1
            apply(pool.used(choice))
        else:
            del held[choice]
            apply(pool.ended(choice))
