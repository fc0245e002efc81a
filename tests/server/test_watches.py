"""Watches over the service of states: what is told, how often, how much, and to whom."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    Cancel,
    Credit,
    Failed,
    GoAway,
    StateChanges,
    StatsChanges,
    Watch,
    pack_ids,
    unpack_ids,
)

from tests.engine.states.rig import Rig, running
from tests.server.harness import RawClient, until
from tests.server.state_rig import StateRig, ask, generate_on, serving_states
from wkvm.core.api_keys import ApiKey
from wkvm.core.states import StateNews
from wkvm.engine.states import watching
from wkvm.server import round_robin, watches

KEYS = (ApiKey.of("blue-key", "blue"), ApiKey.of("red-key", "red"))
FAST = 20


@dataclass
class Watcher:
    """A watch of a client, and its table as a client keeps it."""

    client: RawClient
    lane: int
    table: dict[str, wire.StateInfo] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    told: list[StateChanges] = field(default_factory=list)

    async def next(self) -> StateChanges:
        """One more message, taken into the table."""
        while not isinstance(message := await self.client.next(), StateChanges):
            assert message is not None, "the connection ended"
            assert not isinstance(message, Failed), message
        assert message.request_id == self.lane
        names = [one.name for one in message.states]
        assert not set(names) & set(message.gone)
        if message.restarts:
            self.table.clear()
        for name in message.gone:
            self.table.pop(name, None)
        for info, used in zip(message.states, unpack_ids(message.used_s), strict=True):
            self.table[info.name] = info
            self.used[info.name] = used
        self.told.append(message)
        return message

    async def complete(self) -> None:
        """All that there is to tell."""
        while not (await self.next()).is_complete:
            pass

    async def until_told(self, fact: Any) -> None:
        """Until the table says so."""
        while not fact(self.table):
            await self.next()


@asynccontextmanager
async def service(folder: Path, **settings: Any) -> AsyncIterator[tuple[StateRig, Rig]]:
    async with (
        running(folder) as states,
        serving_states(states.service, api_keys=KEYS, **settings) as rig,
    ):
        yield rig, states


async def watcher(client: RawClient, **fields: Any) -> Watcher:
    lane = client.wire.new_request_id()
    client.send(Watch(lane, **{"interval_ms": FAST, **fields}))
    return Watcher(client, lane)


async def created(client: RawClient, *names: str) -> None:
    for name in names:
        answer = await ask(client, wire.StateCreate(0, name, pack_ids([1, 2, 3])))
        assert not isinstance(answer, Failed), answer


async def world(client: RawClient) -> dict[str, wire.StateInfo]:
    """What a client gets that asks."""
    found, cursor = dict[str, wire.StateInfo](), ""
    while True:
        page = await ask(client, wire.StateList(0, cursor=cursor, limit=256))
        found |= {one.name: one for one in page.states}
        cursor = page.next
        if not cursor:
            return found


# --- states -------------------------------------------------------------------------------


async def test_a_picture_of_all_states_comes_first_and_is_that_of_a_list(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "base")
        for n in range(5):
            names = tuple(f"fork-{n}-{i:02}" for i in range(64))
            await ask(other, wire.StateFork(0, "base", names))
        one = await watcher(client)
        await one.complete()
        assert one.table == await world(other)
        assert len(one.table) == 321
        assert [told.restarts for told in one.told] == [True, *[False] * (len(one.told) - 1)]
        assert [told.is_complete for told in one.told][:-1] == [False] * (len(one.told) - 1)


async def test_where_there_is_nothing_the_picture_is_empty_and_complete(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        one = await watcher(await rig.client("blue-key"))
        assert await one.next() == StateChanges(one.lane, True, True, (), b"", ())


def operations(n: int) -> list[Any]:
    """Operations, each of which changes what a list tells."""
    return [
        wire.StateFork(0, "a", ("b",)),
        wire.StateSnapshot(0, "a"),
        wire.StateEdit(0, "a", tags={"k": str(n)}),
        wire.StateEdit(0, "a", expires_in_ms=10**9),
        wire.StateEdit(0, "a", rename="c"),
        wire.StateRollback(0, "a", version=1),
        wire.StateMutate(0, "same", ("a",), "d"),
        wire.StateHibernate(0, "a", "disk"),
        wire.StateDelete(0, "a"),
        wire.StateCreate(0, "a", pack_ids([4]), "a"),
    ]


@pytest.mark.parametrize("operation", operations(1), ids=lambda one: type(one).__name__)
async def test_what_an_operation_changes_is_told(tmp_path: Path, operation: Any) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a", "z")
        await ask(other, wire.StateSnapshot(0, "a"))
        one = await watcher(client)
        await one.complete()
        before = dict(one.table)
        answer = await ask(other, operation)
        assert not isinstance(answer, Failed), answer
        now = await world(other)
        assert now != before
        await one.until_told(lambda table: table == now)
        assert one.table["z"] == before["z"]


async def test_a_version_that_goes_and_is_not_the_newest_is_told(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a")
        await ask(other, wire.StateSnapshot(0, "a"))
        one = await watcher(client)
        await one.complete()
        await ask(other, wire.StateDelete(0, "a@1"))
        await one.until_told(lambda table: table["a"].n_versions == 1)


async def test_a_turn_is_seen_on_the_device_and_then_as_a_version(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "chat")
        one = await watcher(client)
        await one.complete()
        lane = other.wire.new_request_id()
        message = generate_on(state="chat", save_as="chat", credit=1, max_tokens=8)
        other.send(msgspec.structs.replace(message, request_id=lane))
        await one.until_told(lambda table: table["chat"].tier == "device")
        other.send(Credit(lane, 100))
        await one.until_told(lambda table: table["chat"].version == 2)
        await one.until_told(lambda table: table["chat"].tier == "host")
        assert abs(one.used["chat"] - time.time()) < 100


async def test_a_turn_that_is_cancelled_leaves_the_device(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "chat")
        one = await watcher(client)
        lane = other.wire.new_request_id()
        message = generate_on(state="chat", save_as="chat", credit=1, max_tokens=8)
        other.send(msgspec.structs.replace(message, request_id=lane))
        await one.until_told(lambda table: "chat" in table and table["chat"].tier == "device")
        other.send(Cancel(lane))
        await one.until_told(lambda table: table["chat"].tier == "host")
        assert one.table["chat"].version == 1


async def test_a_state_that_comes_up_into_memory_is_told(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a")
        await ask(other, wire.StateFork(0, "a", ("b",)))
        await ask(other, wire.StateHibernate(0, "a"))
        one = await watcher(client)
        await one.complete()
        assert {name: info.tier for name, info in one.table.items()} == {"a": "disk", "b": "disk"}
        await ask(other, wire.StateResume(0, "a"))
        # they share their bytes
        await one.until_told(lambda table: {info.tier for info in table.values()} == {"host"})


async def test_a_state_that_expires_is_gone_with_nobody_to_say_so(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a", "b")
        one = await watcher(client)
        await one.complete()
        await ask(other, wire.StateEdit(0, "a", expires_in_ms=50))
        await one.until_told(lambda table: "a" not in table)
        assert "b" in one.table


async def test_only_names_with_the_prefix_are_told(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "agent-1", "b")
        one = await watcher(client, prefix="agent-")
        await one.complete()
        await created(other, "c", "agent-2")
        await one.until_told(lambda table: "agent-2" in table)
        assert sorted(one.table) == ["agent-1", "agent-2"]


async def test_nothing_of_another_tenant_is_told_nor_when_it_does_something(
    tmp_path: Path,
) -> None:
    async with service(tmp_path) as (rig, _):
        red, blue = await rig.client("red-key"), await rig.client("blue-key")
        await created(red, "same", "secret")
        one = await watcher(blue)
        await one.complete()
        await created(red, "another")
        await ask(red, wire.StateDelete(0, "secret"))
        await created(await rig.client("blue-key"), "mine")
        await one.until_told(lambda table: "mine" in table)
        assert sorted(one.table) == ["mine"]
        # Its own, which was about to be made, may have been told before it was there.
        assert {name for message in one.told for name in message.gone} <= {"mine"}


# --- pace and room ------------------------------------------------------------------------


async def test_who_grants_no_more_is_told_the_latest_once_it_does(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a")
        one = await watcher(client, credit=1)
        await one.complete()
        for _ in range(20):
            await ask(other, wire.StateSnapshot(0, "a"))
        client.send(Credit(one.lane, 1))
        told = await one.next()
        assert [info.version for info in told.states] == [21]
        assert told.is_complete


async def test_between_two_messages_is_the_interval(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a")
        one = await watcher(client, interval_ms=200)
        await one.complete()
        before = time.monotonic()
        await ask(other, wire.StateSnapshot(0, "a"))
        await one.until_told(lambda table: table["a"].version == 2)
        after = time.monotonic()
        await ask(other, wire.StateSnapshot(0, "a"))
        await one.until_told(lambda table: table["a"].version == 3)
        assert time.monotonic() - after >= 0.15
        assert after - before < 60


async def test_more_changes_than_are_remembered_are_a_picture_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_CHANGED", 8)
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a", "b")
        one = await watcher(client, credit=1)
        await one.complete()
        await ask(other, wire.StateDelete(0, "b"))
        await ask(other, wire.StateFork(0, "a", tuple(f"f{n}" for n in range(7))))
        client.send(Credit(one.lane, 1))
        told = await one.next()
        assert (told.restarts, len(told.states), told.gone) == (False, 7, ("b",))
        await ask(other, wire.StateFork(0, "a", tuple(f"g{n}" for n in range(9))))
        client.send(Credit(one.lane, 100))
        await one.until_told(lambda table: len(table) == 17)
        assert one.told[-1].restarts
        assert one.table == await world(other)


async def test_messages_fit_the_frames_of_a_connection(tmp_path: Path) -> None:
    async with service(tmp_path, max_frame_bytes=64 * 1024) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        tags = {f"key{n}": "ä" * 256 for n in range(32)}
        await created(other, "a")
        for n in range(10):
            await ask(other, wire.StateFork(0, "a", (f"f{n}", f"g{n}"), tags=tags))
        one = await watcher(client)
        await one.complete()
        assert len(one.table) == 21
        assert len(one.told) > 3


async def test_a_client_that_does_not_read_is_told_the_latest_when_it_does(
    tmp_path: Path,
) -> None:
    """What the sockets hold was true when it was sent; all that follows is how things are."""
    async with service(tmp_path) as (rig, states):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a")
        names = tuple(f"f{n:02}" for n in range(64))
        await ask(other, wire.StateFork(0, "a", names))
        one = await watcher(client)
        await one.complete()
        watch = next(iter(states.service._watching._watches["blue"]))
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection: Any = next(iter(rig.server._dispatcher._watches._of_clients))
        n = 0
        while not connection.is_behind:
            n += 1
            await ask(other, wire.StateEdit(0, "f00", tags={"n": str(n), "x": "y" * 200}))
            watch.mark(names[1:])
        for _ in range(100):
            n += 1
            await ask(other, wire.StateEdit(0, "f00", tags={"n": str(n)}))
            watch.mark(names[1:])
        assert len(watch._changed) <= 64
        assert connection._output.n_unsent < 256 * 1024
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await one.until_told(lambda table: table["f00"].tags.get("n") == str(n))


async def test_watches_wait_for_their_turn_and_nobody_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "REST", 1e9)  # longer than any test
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        await created(other, "a")
        lanes = [(await watcher(client)).lane for _ in range(3)]
        turns = rig.server._dispatcher._watches._turns
        await until(lambda: turns.n_waiting == 3)
        await created(other, "b")
        for lane in lanes:
            client.send(Cancel(lane))
            failed = await client.next_of(Failed)
            assert (failed.request_id, failed.code) == (lane, ErrorCode.CANCELLED)


async def test_of_what_is_told_no_more_is_made_than_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[int]()
    monkeypatch.setattr(watches, "info_message", made.append)
    monkeypatch.setattr(msgspec.msgpack, "encode", lambda _: b"")
    news: Any = StateNews(
        states=tuple(range(200)),  # type: ignore[arg-type]
        used_at=(None,) * 200,
        gone=("x",) * 300,
        restarts=True,
        is_complete=True,
    )
    parts = watches.parts_of(1, news, 2**20)
    assert next(parts).restarts
    assert len(made) <= 2 * watches.STATES_PER_MESSAGE
    others = list(parts)
    assert (len(made), 1 + len(others)) == (200, 5)
    assert [one.is_complete for one in others] == [False, False, False, True]
    assert not any(one.restarts for one in others)


async def test_handles_of_many_payloads_are_looked_for_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks for something in the catalogue waits for whoever looks before."""
    monkeypatch.setattr(watching, "PAYLOADS_AT_ONCE", 2)
    async with service(tmp_path) as (rig, states):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        names = [f"s{n}" for n in range(5)]
        for n, name in enumerate(names):
            await ask(other, wire.StateCreate(0, name, pack_ids([n + 1])))
        one = await watcher(client)
        await one.complete()
        store, asked = states.service._backing.store, list[set[str]]()
        headed_by = type(store).headed_by

        def look(self: Any, uids: set[str]) -> list[tuple[str, str]]:
            asked.append(uids)
            return headed_by(self, uids)

        monkeypatch.setattr(type(store), "headed_by", look)
        for name in names:
            ref = (store.handle("blue", name)).head.ref
            await ask(other, wire.StateHibernate(0, str(ref)))
        await one.until_told(lambda table: {i.tier for i in table.values()} == {"disk"})
        asked.clear()
        for uid in (uids := {f"{n}" for n in range(5)}):
            store.notices.note_payload(uid)
        await until(lambda: sum(map(len, asked)) == 5)
        assert set().union(*asked) == uids
        assert max(map(len, asked)) <= 2


# --- gauges -------------------------------------------------------------------------------


async def test_gauges_come_whole_and_then_what_has_changed(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        lane = client.wire.new_request_id()
        client.send(Watch(lane, False, stats_ms=100))
        first = await client.next_of(StatsChanges)
        asked = (await ask(other, wire.Stats(0))).values
        assert first.values.keys() == asked.keys()
        await created(other, "a")
        before, second = first, await client.next_of(StatsChanges)
        assert second.at_us - before.at_us >= 90_000
        while "state_commits_total" not in second.values:
            second = await client.next_of(StatsChanges)
        assert second.values["state_commits_total"] == 1
        assert second.values.keys() < first.values.keys()
        assert "n_slots" not in second.values


# --- ends ---------------------------------------------------------------------------------


async def test_a_cancel_ends_a_watch(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, states):
        client = await rig.client("blue-key")
        one = await watcher(client)
        client.send(Cancel(one.lane))
        failed = await client.next_of(Failed)
        assert (failed.request_id, failed.code) == (one.lane, ErrorCode.CANCELLED)
        assert rig.server._dispatcher._watches.n_open == 0
        assert states.service._watching.n_open == 0


async def test_a_connection_that_is_lost_leaves_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, states):
        client = await rig.client("blue-key")
        for _ in range(3):
            await watcher(client, stats_ms=100)
        await until(lambda: states.service._watching.n_open == 3)
        client.abort()
        await until(lambda: rig.server._dispatcher._watches.n_open == 0)
        assert states.service._watching.n_open == 0
        assert states.service._backing.store.notices._wake is None


async def test_a_client_that_goes_away_is_not_kept_by_its_watch(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        one = await watcher(client)
        await one.complete()
        client.send(GoAway())
        failed = await client.next_of(Failed)
        assert (failed.request_id, failed.code) == (one.lane, ErrorCode.DRAINING)
        assert await client.next() is None


async def test_a_drain_ends_watches_and_does_not_wait_for_them(tmp_path: Path) -> None:
    async with service(tmp_path, drain_timeout_s=1000) as (rig, _):
        client = await rig.client("blue-key")
        one = await watcher(client)
        await one.complete()
        async with asyncio.timeout(60):
            await rig.server.drain()
        failed = await client.next_of(Failed)
        assert (failed.code, failed.retryable) == (ErrorCode.DRAINING, True)


async def test_a_store_that_fails_ends_the_watch_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(tmp_path) as (rig, states):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        one = await watcher(client)
        await one.complete()

        async def broken(*arguments: Any) -> Any:
            raise RuntimeError("/secret/path")

        monkeypatch.setattr(states.service, "some", broken)
        await created(other, "a")
        failed = await client.next_of(Failed)
        assert failed.code == ErrorCode.INTERNAL
        assert "secret" not in failed.message


async def test_a_connection_and_a_tenant_have_so_many_watches_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "WATCHES_PER_TENANT", 10)
    async with service(tmp_path) as (rig, _):
        client, other = await rig.client("blue-key"), await rig.client("blue-key")
        for _ in range(watches.WATCHES_PER_CONNECTION):
            await (await watcher(client)).complete()
        refused = await watcher(client)
        failed = await client.next_of(Failed)
        assert (failed.request_id, failed.code) == (refused.lane, ErrorCode.QUEUE_FULL)
        for _ in range(2):
            await (await watcher(other)).complete()
        await watcher(other)
        assert (await other.next_of(Failed)).code == ErrorCode.QUEUE_FULL
        red = await watcher(await rig.client("red-key"))
        await red.complete()


async def test_without_the_feature_a_watch_is_a_violation(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        client.wire._features = frozenset({"watch"})
        stranger = RawClient(*await asyncio.open_unix_connection(rig.server.addresses[0][7:]))
        rig.clients.append(stranger)
        assert "watch" not in (await stranger.hello("blue-key", ["states"])).features
        stranger.write(client.wire.send(Watch(1)))
        assert (await stranger.error()).code == ErrorCode.PROTOCOL_VIOLATION
