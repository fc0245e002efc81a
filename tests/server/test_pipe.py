"""A connection in memory: order, flow control, and its ends."""

import asyncio
from typing import cast

import pytest
from wkvm_client import aio
from wkvm_client.errors import LinkError

from tests.fakes import fake_continuation
from tests.server.harness import VOCAB_SIZE, serving, until
from wkvm.server.pipe import PipeEnd, join


class Peer(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.portions = list[bytes]()
        self.notes = list[str]()

    @property
    def data(self) -> bytes:
        return b"".join(self.portions)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.end = cast(PipeEnd, transport)

    def data_received(self, data: bytes) -> None:
        self.portions.append(data)

    def pause_writing(self) -> None:
        self.notes.append("pause")

    def resume_writing(self) -> None:
        self.notes.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        assert exc is None
        self.notes.append("lost")


class Narrow(asyncio.BufferedProtocol):
    """Takes three bytes at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray(3)
        self.portions = list[bytes]()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.portions.append(bytes(self._buffer[:nbytes]))


def pair() -> tuple[Peer, Peer]:
    a, b = Peer(), Peer()
    join(a, b)
    return a, b


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_what_is_written_arrives_in_a_later_turn_in_order_and_together() -> None:
    a, b = pair()
    a.end.write(b"one")
    a.end.write(b"two")
    b.end.write(b"back")
    assert b.portions == []
    await turns()
    assert (b.portions, a.portions) == ([b"onetwo"], [b"back"])


async def test_a_protocol_with_a_buffer_is_handed_as_much_as_fits() -> None:
    a, narrow = Peer(), Narrow()
    join(a, narrow)
    a.end.write(b"seven..")
    await turns()
    assert narrow.portions == [b"sev", b"en.", b"."]


async def test_a_buffer_that_is_written_and_then_changed_arrives_as_it_was() -> None:
    a, b = pair()
    data = bytearray(b"before")
    a.end.write(data)
    data[:] = b"after."
    await turns()
    assert b.data == b"before"


async def test_a_writer_pauses_above_its_limit_until_all_was_taken() -> None:
    a, b = pair()
    a.end.set_write_buffer_limits(high=4)
    b.end.pause_reading()
    a.end.write(b"1234")
    assert a.notes == []
    a.end.write(b"5")
    assert a.notes == ["pause"]
    await turns()
    assert (b.data, a.notes, a.end.get_write_buffer_size()) == (b"", ["pause"], 5)
    b.end.resume_reading()
    await turns()
    assert (b.data, a.notes, a.end.get_write_buffer_size()) == (b"12345", ["pause", "resume"], 0)


async def test_who_stops_reading_is_not_handed_what_is_on_its_way() -> None:
    a, b = pair()
    a.end.write(b"on its way")
    b.end.pause_reading()
    await turns()
    assert b.data == b""
    b.end.resume_reading()
    await turns()
    assert b.portions == [b"on its way"]


async def test_what_was_written_before_a_close_arrives_and_then_both_are_told_once() -> None:
    a, b = pair()
    b.end.pause_reading()
    a.end.write(b"last words")
    a.end.close()
    a.end.close()
    a.end.write(b"too late")
    await turns()
    assert (a.notes, b.notes) == ([], [])
    b.end.resume_reading()
    await turns()
    assert (b.data, a.notes, b.notes) == (b"last words", ["lost"], ["lost"])
    b.end.write(b"to nobody")
    await turns()
    assert a.data == b""


async def test_who_closes_is_handed_nothing_more() -> None:
    a, b = pair()
    b.end.write(b"late")
    a.end.close()
    await turns()
    assert (a.data, a.notes, b.notes) == (b"", ["lost"], ["lost"])


async def test_an_abort_loses_what_was_not_taken() -> None:
    a, b = pair()
    a.end.write(b"lost")
    a.end.abort()
    await turns()
    assert (b.data, a.notes, b.notes) == (b"", ["lost"], ["lost"])


async def test_both_may_close_while_neither_has_read() -> None:
    a, b = pair()
    for one in (a, b):
        one.end.pause_reading()
        one.end.write(b"x")
    a.end.close()
    b.end.close()
    await turns()
    assert (a.notes, b.notes) == (["lost"], ["lost"])


async def test_a_protocol_that_fails_at_its_input_loses_the_connection() -> None:
    class Broken(Peer):
        def data_received(self, data: bytes) -> None:
            raise KeyError("bug")

    a, broken = Peer(), Broken()
    join(a, broken)
    reported = list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    a.end.write(b"x")
    await turns()
    assert (a.notes, broken.notes) == (["lost"], ["lost"])
    assert isinstance(reported[0], KeyError)


async def test_a_client_is_served_in_memory() -> None:
    async with serving() as rig:
        n_before = rig.server.n_connections
        async with aio.over(rig.server.attach) as client:
            assert rig.server.n_connections == n_before + 1
            stream = await client.generate([1, 2], temperature=0, max_tokens=50)
            completion = await stream.completion()
            assert completion.ids == fake_continuation([1, 2], 50, VOCAB_SIZE)
        await until(lambda: rig.server.n_connections == n_before)


async def test_a_server_that_closes_ends_a_client_in_memory() -> None:
    async with serving() as rig:
        client = await aio.over(rig.server.attach)
        await rig.server.close()
        await until(lambda: not client.is_connected)
        with pytest.raises(LinkError):
            await client.generate([1])
        await client.aclose()
