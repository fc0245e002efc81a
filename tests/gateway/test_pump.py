"""A choice that is written as it arrives: in order, no further than its client reads, no longer
than its handler lives."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from aiohttp import web
from wkvm_client.errors import StepFailedError
from wkvm_protocol.messages import EndReason

from tests.gateway.harness import byte_texts, gateway_running
from tests.gateway.scripted import FilledChoice
from wkvm.gateway.calls import Call, Route
from wkvm.gateway.streams.pace import Pace
from wkvm.gateway.streams.pieces import ChoiceText, Piece
from wkvm.gateway.streams.pump import pump
from wkvm.gateway.streams.sse import DONE, EventStream

TEXTS = byte_texts()


class Client:
    """What an EventStream is to a pump: a client that reads or does not."""

    def __init__(self, interval: int = 1) -> None:
        self.interval = interval
        self.pace = Pace()
        self.sent = list[bytes]()
        self.is_open = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_gone = False

    async def send_raw(self, data: bytes) -> None:
        self.is_open = True
        self.send_now(data)

    def send_now(self, data: bytes) -> bool:
        if self.is_gone:
            raise ConnectionResetError("gone")
        self.sent.append(data)
        return self.reads.is_set()

    async def writable(self) -> None:
        await self.reads.wait()


def of_piece(piece: Piece) -> bytes:
    return piece.text.encode() + (b"." if piece.finish is not None else b"")


def start(
    filled: FilledChoice, client: Client, to_events: Callable[[Piece], bytes] = of_piece
) -> asyncio.Task[bytes]:
    text = ChoiceText(filled.choice, TEXTS)
    return asyncio.create_task(pump(text, cast(EventStream, client), to_events))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def begun(filled: FilledChoice, client: Client) -> asyncio.Task[bytes]:
    """A pump whose first piece is sent."""
    task = start(filled, client)
    filled.arrive(b"a")
    await turns()
    assert client.sent == [b"a"]
    return task


async def test_what_arrives_is_sent_before_any_task_runs_and_the_last_is_returned() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    filled.arrive(b"b")
    filled.arrive(b"cd")
    assert client.sent == [b"a", b"b", b"cd"]
    filled.end(EndReason.LENGTH)
    assert await task == b"."
    assert client.sent == [b"a", b"b", b"cd"]


async def test_a_choice_that_is_over_at_once_is_returned_whole() -> None:
    filled, client = FilledChoice(), Client()
    filled.arrive(b"ab")
    filled.end()
    assert await start(filled, client) == b"ab."
    assert client.sent == []


async def test_nothing_is_sent_to_a_client_that_does_not_read_until_it_does() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    client.reads.clear()
    filled.arrive(b"b")
    filled.arrive(b"c")
    filled.arrive(b"d")
    await turns()
    assert client.sent == [b"a", b"b"]
    client.reads.set()
    await turns()
    assert client.sent == [b"a", b"b", b"cd"]
    filled.end()
    assert await task == b"."


async def test_a_failure_is_raised_by_the_pump_after_what_came_before() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    filled.arrive(b"b")
    filled.fail(StepFailedError("no"))
    with pytest.raises(StepFailedError):
        await task
    assert client.sent == [b"a", b"b"]


async def test_a_client_that_is_gone_and_a_bug_are_raised_by_the_pump() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    client.is_gone = True
    filled.arrive(b"b")
    with pytest.raises(ConnectionResetError):
        await task

    def of_few(piece: Piece) -> bytes:
        if piece.text == "b":
            raise KeyError("bug")
        return of_piece(piece)

    filled, client = FilledChoice(), Client()
    task = start(filled, client, of_few)
    filled.arrive(b"a")
    await turns()
    filled.arrive(b"b")
    with pytest.raises(KeyError):
        await task


async def test_nothing_is_sent_for_a_handler_that_was_cancelled() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    task.cancel()
    filled.arrive(b"b")
    with pytest.raises(asyncio.CancelledError):
        await task
    filled.arrive(b"c")
    filled.end()
    assert client.sent in ([b"a"], [b"a", b"b"])
    assert b"c" not in client.sent


class Recorder:
    """A transport that keeps what is written to it, write by write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes = list[bytes]()

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()


async def test_headers_leave_with_the_first_event_and_the_end_with_the_last() -> None:
    writes = list[bytes]()

    async def handler(call: Call) -> web.StreamResponse:
        protocol, transport = call.request.protocol, call.request.transport
        assert transport is not None
        recorder = Recorder(transport)
        protocol.transport = cast(asyncio.Transport, recorder)
        async with EventStream(call) as events:
            await events.send(b"1")
            await events.finish(b"data: 2\n\n" + DONE)
        protocol.transport = transport
        writes.extend(recorder.writes)
        return events.response

    async with (
        gateway_running(routes=[Route("GET", "/x", handler)]) as running,
        running.http.get("/x") as response,
    ):
        assert await response.text() == "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    first, last = writes
    assert first.startswith(b"HTTP/1.1 200 ")
    assert first.endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")
    assert last == b"17\r\ndata: 2\n\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def test_ids_are_put_together_until_there_are_as_many_as_were_asked_for() -> None:
    filled, client = FilledChoice(), Client(interval=3)
    task = await begun(filled, client)
    for one in (b"b", b"c", b"d", b"e"):
        filled.arrive(one)
    assert client.sent == [b"a", b"bcd"]
    filled.arrive(b"fghij")
    assert client.sent == [b"a", b"bcd", b"efghij"]
    filled.arrive(b"k")
    filled.end(EndReason.LENGTH)
    assert await task == b"k."


async def test_what_was_put_together_is_sent_before_a_failure() -> None:
    filled, client = FilledChoice(), Client(interval=9)
    task = await begun(filled, client)
    filled.arrive(b"bc")
    filled.fail(StepFailedError("broken"))
    with pytest.raises(StepFailedError):
        await task
    assert client.sent == [b"a", b"bc"]


async def test_where_the_response_has_begun_before_the_first_id_still_does_not_wait() -> None:
    filled, client = FilledChoice(), Client(interval=9)
    client.is_open = True
    task = start(filled, client)
    await turns()
    client.pace.is_behind = True
    filled.arrive(b"a")
    assert client.sent == [b"a"]
    filled.end(EndReason.LENGTH)
    await task


async def test_while_the_loop_is_behind_an_event_has_what_came_until_its_next_turn() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    client.pace.is_behind = True
    for one in (b"b", b"c", b"d"):
        filled.arrive(one)
    assert client.sent == [b"a"]
    client.pace._turn()
    assert client.sent == [b"a", b"bcd"]
    client.pace.is_behind = True
    filled.arrive(b"e")
    filled.end(EndReason.LENGTH)
    assert await task == b"e."


async def test_what_waits_for_the_loop_is_not_written_after_its_handler_was_cancelled() -> None:
    filled, client = FilledChoice(), Client()
    task = await begun(filled, client)
    client.pace.is_behind = True
    filled.arrive(b"b")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.pace._held == {}
    assert client.pace._timer is None
    assert client.sent == [b"a"]
