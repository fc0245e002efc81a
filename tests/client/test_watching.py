"""Both clients against a whole server: what a watch tells, and its ends."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest
import wkvm_client
from wkvm_client import aio
from wkvm_client.errors import (
    BadPeerError,
    DrainingError,
    InvalidParameterError,
    UnsupportedOperationError,
)
from wkvm_client.watching import StateNews, StateTable, StatsNews
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Cancel, Credit, Failed, StateChanges, Watch

from tests.client.fake_server import FakeServer
from tests.client.keeping import running
from tests.client.test_aio import dial

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


async def test_a_table_follows_what_others_do(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as address, aio.connect(address) as client:
        other = await aio.connect(address)
        await other.states.create("a", [1, 2, 3])
        table = StateTable()
        async with contextlib.aclosing(client.watch(interval_s=0.02)) as news:
            async for one in news:
                assert isinstance(one, StateNews)
                table.apply(one)
                if table.is_complete and set(table.states) == {"a"}:
                    await other.states.fork("a", ["b"])
                elif table.is_complete and "b" in table.states:
                    break
        assert table.states["b"] == await other.states.get("b")
        assert table.used_at.keys() == {"a", "b"}
        await other.aclose()


async def test_readings_come_at_their_interval_and_leaving_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as address, aio.connect(address) as client:
        seen = list[StatsNews]()
        async with contextlib.aclosing(client.watch(states=False, stats_interval_s=0.1)) as news:
            async for one in news:
                assert isinstance(one, StatsNews)
                seen.append(one)
                if len(seen) == 2:
                    break
        assert seen[0].values["n_slots"] > 0
        assert seen[1].at_s > seen[0].at_s
        link = client.connections.link
        assert link is not None
        async with asyncio.timeout(60):
            while link.core._wire.lanes:  # noqa: ASYNC110  (the answer to the Cancel)
                await asyncio.sleep(0.005)


async def test_the_blocking_client_is_told_the_same(tmp_path: Path) -> None:
    def follow(address: str) -> set[str]:
        table = StateTable()
        with wkvm_client.connect(address) as client, contextlib.closing(client.watch()) as news:
            for one in news:
                assert isinstance(one, StateNews)
                table.apply(one)
                if "b" in table.states:
                    break
                begun.set()
            return set(table.states)

    begun = threading.Event()
    async with running(tmp_path / "store") as address, aio.connect(address) as other:
        await other.states.create("a", [1])
        following = asyncio.create_task(asyncio.to_thread(follow, address))
        await asyncio.to_thread(begun.wait, 60)
        await other.states.create("b", [1])
        assert await following == {"a", "b"}


async def test_the_lineage_of_all_versions_comes_page_by_page(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as address, aio.connect(address) as client:
        await client.states.create("a", [1])
        await client.states.create("a", [2], state="a")
        await client.states.fork("a@1", ["b"])
        first = await client.states.lineage(limit=2)
        second = await client.states.lineage(limit=2, cursor=first.next)
        found = [(f"{one.name}@{one.version}", one.parents) for one in first.entries]
        assert found == [("a@1", ()), ("a@2", ("a@1",))]
        assert [(one.name, one.parents) for one in second.entries] == [("b", ("a@1",))]

        def blocking() -> int:
            with wkvm_client.connect(address) as other:
                return other.states.lineage(newest=1).entries[0].version

        assert await asyncio.to_thread(blocking) == 2


async def test_a_server_that_does_not_tell_is_an_error_and_nothing_is_sent(
    server: FakeServer,
) -> None:
    client, _ = await dial(server)
    with pytest.raises(UnsupportedOperationError):
        await anext(client.watch())
    await client.aclose()


async def test_more_messages_than_were_granted_end_the_connection(server: FakeServer) -> None:
    client, peer = await dial(server, features=["watch"])
    news = client.watch()
    first = asyncio.create_task(anext(news))
    request = await peer.next(Watch)
    assert request.credit == 4
    message = StateChanges(request.request_id, True, True, (), b"", ())
    for _ in range(6):
        peer.send(message)
    await first
    with pytest.raises(BadPeerError):
        async with asyncio.timeout(20):
            _ = [one async for one in news]
    await client.aclose()


async def test_one_more_is_granted_for_each_that_is_taken(server: FakeServer) -> None:
    client, peer = await dial(server, features=["watch"])
    news = client.watch()
    first = asyncio.create_task(anext(news))
    request = await peer.next(Watch)
    peer.send(StateChanges(request.request_id, True, True, (), b"", ()))
    await first
    assert (await peer.next(Credit)).n_tokens == 1
    await news.aclose()
    assert (await peer.next(Cancel)).request_id == request.request_id
    await client.aclose()


async def test_a_server_that_goes_away_ends_it_so_that_one_can_watch_again(
    server: FakeServer,
) -> None:
    client, peer = await dial(server, features=["watch"])
    news = client.watch()
    first = asyncio.create_task(anext(news))
    request = await peer.next(Watch)
    peer.send(Failed(request.request_id, ErrorCode.DRAINING, True, "it goes away"))
    with pytest.raises(DrainingError) as found:
        await first
    assert found.value.retryable
    await client.aclose()


async def test_an_interval_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        wkvm_client.watching.watch_message(
            states=True, prefix="", interval_s=float("nan"), stats_interval_s=None
        )
