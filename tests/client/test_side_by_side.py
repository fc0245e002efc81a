"""Choices that are read without waiting for each: look, be called back, give up."""

import asyncio
from collections.abc import Callable

import pytest
from wkvm_client import EndReason
from wkvm_client.errors import StepFailedError
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Cancel, Credit, Generate

from tests.client.fake_server import FakeServer
from tests.client.test_aio import dial


async def called(watch: Callable[[Callable[[], None]], None]) -> None:
    """Wait until it calls back."""
    done = asyncio.Event()
    watch(done.set)
    await asyncio.wait_for(done.wait(), 60)


def is_called_now(watch: Callable[[Callable[[], None]], None]) -> bool:
    calls = list[None]()
    watch(lambda: calls.append(None))
    return bool(calls)


async def test_take_gives_what_is_there_and_never_waits(server: FakeServer) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1])).choices
    request = await peer.next(Generate)
    assert choice.take() == []
    peer.tokens([request.request_id], [5])
    await called(choice.call_when_ready)
    assert is_called_now(choice.call_when_ready)
    assert choice.take() == [5]
    assert choice.take() == []
    assert not choice.is_over
    peer.end(request.request_id)
    await called(choice.call_when_ready)
    assert (choice.take(), choice.is_over) == ([], True)
    assert choice.result.reason is EndReason.LENGTH
    await client.aclose()


async def test_a_failure_calls_back_and_is_raised_after_the_ids(server: FakeServer) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1])).choices
    request = await peer.next(Generate)
    peer.tokens([request.request_id], [5])
    peer.fail(request.request_id, ErrorCode.STEP_FAILED)
    await called(choice.call_when_over)
    assert choice.take() == [5]
    for _ in range(2):
        with pytest.raises(StepFailedError):
            choice.take()
    with pytest.raises(StepFailedError):
        _ = choice.result
    await client.aclose()


async def test_who_waits_for_the_end_alone_is_called_once_and_grants_all(
    server: FakeServer,
) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1], max_tokens=100, credit=10)).choices
    request = await peer.next(Generate)
    calls = list[None]()
    choice.call_when_over(lambda: calls.append(None))
    assert (await peer.next(Credit)).n_tokens == 90
    for token_id in range(3):
        peer.tokens([request.request_id], [token_id])
    await called(choice.call_when_ready)
    assert calls == []
    peer.end(request.request_id)
    await choice.completion()
    assert calls == [None]
    assert is_called_now(choice.call_when_over)
    await client.aclose()


async def test_two_cannot_wait_for_ids_of_one_choice(server: FakeServer) -> None:
    client, _ = await dial(server)
    (choice,) = (await client.generate([1])).choices
    choice.call_when_ready(lambda: None)
    with pytest.raises(RuntimeError, match="one reader"):
        choice.call_when_ready(lambda: None)
    await client.aclose()


async def test_the_lane_is_cancelled_when_the_last_choice_is_given_up(server: FakeServer) -> None:
    client, peer = await dial(server)
    first, second = (await client.generate([1], n=2)).choices
    request = await peer.next(Generate)
    first.abandon()
    await peer.nothing()
    second.abandon()
    assert (await peer.next(Cancel)).request_id == request.request_id
    second.abandon()
    await peer.nothing()
    await client.aclose()


async def test_who_watches_is_called_for_each_arrival_and_for_the_end(server: FakeServer) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1])).choices
    request = await peer.next(Generate)
    seen = asyncio.Queue[tuple[list[int], bool]]()
    choice.watch(lambda: seen.put_nowait((choice.take(), choice.is_over)))
    assert seen.empty()
    for token_id in (5, 6):
        peer.tokens([request.request_id], [token_id])
        assert await seen.get() == ([token_id], False)
    peer.end(request.request_id)
    assert await seen.get() == ([], True)
    await client.aclose()


async def test_who_begins_to_watch_late_is_called_at_once(server: FakeServer) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1])).choices
    request = await peer.next(Generate)
    peer.tokens([request.request_id], [5])
    await called(choice.call_when_ready)
    assert is_called_now(choice.watch)
    await client.aclose()


async def test_after_unwatch_there_are_no_calls_and_others_may_wait(server: FakeServer) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1])).choices
    request = await peer.next(Generate)
    choice.watch(lambda: pytest.fail("called"))
    with pytest.raises(RuntimeError, match="one reader"):
        choice.call_when_ready(lambda: None)
    choice.unwatch()
    peer.tokens([request.request_id], [5])
    assert await choice.read() == [5]
    await client.aclose()


async def test_who_waits_after_a_watch_is_called_once(server: FakeServer) -> None:
    client, peer = await dial(server)
    (choice,) = (await client.generate([1])).choices
    request = await peer.next(Generate)
    choice.watch(lambda: None)
    choice.unwatch()
    calls = list[None]()
    choice.call_when_ready(lambda: calls.append(None))
    for token_id in (5, 6):
        peer.tokens([request.request_id], [token_id])
    peer.end(request.request_id)
    await choice.completion()
    assert calls == [None]
    await client.aclose()


async def test_one_of_several_choices_cannot_be_watched(server: FakeServer) -> None:
    client, _ = await dial(server)
    first, _ = (await client.generate([1], n=2)).choices
    with pytest.raises(ValueError, match="only"):
        first.watch(lambda: None)
    await client.aclose()
