"""Bytes of states on their way: as many as were granted, in time, and none beside."""

import asyncio
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    Cancel,
    Failed,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateExport,
    StateExportBegin,
    StateImport,
    StateVersions,
)

from tests.server.harness import RawClient, until
from tests.server.scripted_states import FILE_BYTES, ScriptedStates
from tests.server.state_rig import (
    StateRig,
    ask,
    generate_on,
    numbered,
    refusal,
    reply,
    rest_of,
    serving_states,
    turn,
    upload,
)
from wkvm.core.errors import BadStateFileError, StoreFullError
from wkvm.core.states import StateEnd
from wkvm.server import operations
from wkvm.server.connection import Connection
from wkvm.server.operations import (
    LARGE_TRANSFERS_PER_TENANT,
    TRANSFERS_PER_TENANT,
)
from wkvm.server.state_bytes import WINDOW_BYTES

DATA = bytes(range(250)) * (FILE_BYTES // 250)


def hurry(rig: StateRig, timeout_s: float = 0.05, whole_s: float = 600.0) -> None:
    """Let the server have little patience."""
    operations = rig.server._dispatcher._operations
    assert operations is not None
    operations._timeout_s, operations._whole_s = timeout_s, whole_s


def stop_reading(client: RawClient) -> None:
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]


# --- from a client ------------------------------------------------------------------------


@pytest.mark.parametrize("digest", ["", blake3(DATA).hexdigest()])
async def test_an_import_keeps_the_bytes_that_were_sent(digest: str) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        await upload(client, 7, DATA, digest=digest)
        answer = await reply(client, 7)
        assert isinstance(answer, StateVersions)
        assert answer.states[0].operation == "import"
        assert rig.states.kept == {"a": DATA}
        assert rig.states.n_sinks == 0
        await rig.assert_idle()


@pytest.mark.parametrize("n_bytes", [0, 1, FILE_BYTES - 1, FILE_BYTES + 1, 2**63 - 1])
async def test_a_length_that_no_state_has_is_refused_before_a_byte_is_granted(n_bytes: int) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        failed = await refusal(client, StateImport(0, "a", n_bytes))
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert rig.states.n_sinks == 0
        await rig.assert_idle()


async def test_no_more_is_granted_than_a_window_ahead_of_what_was_used() -> None:
    states = ScriptedStates()
    states.slow_sinks = True
    states.waits.add("write")
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        credit = await reply(client, 7)
        assert credit == StateCredit(7, WINDOW_BYTES)
        client.send(*(StateChunk(7, DATA[: 2**18]) for _ in range(4)))
        await until(lambda: states.n_waiting == 1)
        await ask(client, wire.Stats(0))
        assert client._received == []
        assert client.wire.room(7) == 0


async def test_all_that_is_granted_is_what_there_is() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        n_granted = n_sent = 0
        while n_sent < FILE_BYTES:
            if not client.wire.room(7):
                credit = await reply(client, 7)
                n_granted += credit.n_bytes
            n = min(client.wire.room(7), 100_000)
            client.send(StateChunk(7, DATA[n_sent : n_sent + n]))
            n_sent += n
        assert n_granted == FILE_BYTES
        client.send(StateBytesEnd(7))
        assert isinstance(await reply(client, 7), StateVersions)
        assert rig.states.kept["a"] == DATA


@pytest.mark.parametrize("n_sent", [0, 1, 2**18])
async def test_an_upload_that_ends_early_keeps_nothing(n_sent: int) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        await upload(client, 7, DATA[:n_sent])
        failed = await answer_of(client, 7)
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert "early" in failed.message
        assert rig.states.kept == {}
        assert rig.states.n_sinks == 0
        await rig.assert_idle()


async def answer_of(client: RawClient, lane: int) -> Any:
    """What closes a lane."""
    return (await rest_of(client, lane)).end


async def test_a_digest_of_other_bytes_keeps_nothing() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        await upload(client, 7, DATA, digest=blake3(b"other").hexdigest())
        failed = await answer_of(client, 7)
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert rig.states.kept == {}
        assert rig.states.n_sinks == 0


@pytest.mark.parametrize("n_sent", [0, 1000])
async def test_silence_ends_an_upload_and_keeps_nothing(n_sent: int) -> None:
    async with serving_states() as rig:
        if not n_sent:
            hurry(rig)
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        await reply(client, 7)
        if n_sent:
            hurry(rig)  # for what comes after these bytes: the wait for them has begun
            client.send(StateChunk(7, DATA[:n_sent]))
        failed = await answer_of(client, 7)
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert f"{FILE_BYTES - n_sent:,} bytes are missing" in failed.message
        assert rig.states.n_sinks == 0
        await rig.assert_idle()


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_trickle_of_bytes_or_of_credit_ends(way: str) -> None:
    async with serving_states() as rig:
        hurry(rig, 10.0, whole_s=0.1)
        client = await rig.client()
        is_up = way == "up"
        client.send(StateImport(7, "a", FILE_BYTES) if is_up else StateExport(7, "a", credit=1))
        first = await reply(client, 7)
        assert not isinstance(first, Failed)
        reading = asyncio.create_task(rest_of(client, 7))
        while not reading.done():
            client.send(StateChunk(7, b"x") if is_up else StateCredit(7, 1))
            await asyncio.sleep(0.005)
        code = (await reading).end.code
        assert code == (ErrorCode.BAD_STATE_FILE if is_up else ErrorCode.STALLED)
        assert rig.states.n_sinks == 0
        await rig.assert_idle()


async def test_all_bytes_without_their_end_are_not_kept() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        sent = 0
        while sent < FILE_BYTES:
            while not client.wire.room(7):
                await client.next()
            n = min(client.wire.room(7), 2**18)
            if sent + n == FILE_BYTES:
                hurry(rig)  # for what comes after them
            client.send(StateChunk(7, DATA[sent : sent + n]))
            sent += n
        failed = await answer_of(client, 7)
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert rig.states.kept == {}


async def test_more_than_was_granted_ends_the_connection_and_keeps_nothing() -> None:
    states = ScriptedStates()
    states.slow_sinks = True
    states.waits.add("write")
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        await reply(client, 7)
        payload = msgspec.msgpack.encode(StateChunk(7, bytes(2**18)))
        client.write(encode_frame(payload, 2**20) * 5)  # a window, and one more
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        await until(lambda: rig.states.n_sinks == 0)
        assert rig.states.kept == {}
        await rig.assert_idle()


@pytest.mark.parametrize("where", ["importing", "write", "finish"])
async def test_a_client_that_vanishes_in_an_import_leaves_nothing(where: str) -> None:
    states = ScriptedStates()
    states.slow_sinks = True
    states.waits.add(where)
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        sending = asyncio.create_task(upload(client, 7, DATA))
        await until(lambda: states.n_waiting == 1)
        sending.cancel()
        client.abort()
        await until(lambda: states.n_waiting == 0 and states.n_sinks == 0)
        assert states.kept == {}
        await rig.assert_idle()


@pytest.mark.parametrize("where", ["write", "finish"])
async def test_an_import_that_is_refused_on_the_way_frees_what_it_held(where: str) -> None:
    states = ScriptedStates()
    states.slow_sinks = True
    async with serving_states(states) as rig:
        client = await rig.client()
        for error, code in (
            (BadStateFileError("why"), ErrorCode.BAD_STATE_FILE),
            (StoreFullError(1, 0), ErrorCode.STORE_FULL),
            (RuntimeError("why"), ErrorCode.INTERNAL),
        ):
            states.raises[where] = error
            lane = client.wire.new_request_id()
            client.send(StateImport(lane, "a", FILE_BYTES))
            while not client.wire.room(lane):
                await client.next()
            if where == "write":
                client.send(StateChunk(lane, DATA[:10]))
                failed = await answer_of(client, lane)
            else:
                sending = asyncio.create_task(upload(client, lane, DATA))
                await sending
                failed = await answer_of(client, lane)
            assert failed.code == code
            assert states.n_sinks == 0
        await rig.assert_idle()


async def test_cancel_ends_an_upload() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateImport(7, "a", FILE_BYTES))
        await reply(client, 7)
        client.send(StateChunk(7, b"x"), Cancel(7), StateChunk(7, b"y"))
        assert (await answer_of(client, 7)).code == ErrorCode.CANCELLED
        assert rig.states.n_sinks == 0
        await rig.assert_idle()


# --- to a client --------------------------------------------------------------------------


async def test_an_export_is_all_bytes_and_their_digest() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        got = await turn(client, StateExport(0, "a"))
        assert got.begun is not None
        assert got.begun.n_bytes == len(rig.states.exported)
        assert got.begun.state is not None
        assert got.begun.state.name == "a"
        assert got.data == rig.states.exported
        assert got.bytes_end is not None
        assert got.bytes_end.digest == blake3(got.data).hexdigest()
        await rig.assert_idle()


async def test_an_export_waits_for_credit_and_takes_no_more_of_it() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateExport(7, "a", credit=1000))
        assert isinstance(await reply(client, 7), StateExportBegin)
        got = b""
        while len(got) < 1000:
            got += (await reply(client, 7)).data
        assert len(got) == 1000
        await ask(client, wire.Stats(0))
        assert client._received == []
        client.send(StateCredit(7, 2**31 - 1))
        rest = await rest_of(client, 7)
        assert got + rest.data == rig.states.exported


async def test_an_export_without_credit_for_too_long_has_stalled() -> None:
    async with serving_states() as rig:
        hurry(rig)
        client = await rig.client()
        got = await turn(client, StateExport(0, "a", credit=1000))
        assert got.end.code == ErrorCode.STALLED
        assert len(got.data) == 1000
        await rig.assert_idle()


async def test_what_waits_for_a_reader_is_bounded_and_lets_others_be() -> None:
    states = ScriptedStates()
    states.exported = bytes(20_000_000)
    async with serving_states(states) as rig:
        client, other = await rig.client(), await rig.client()
        stop_reading(client)
        client.send(StateExport(7, "a"))
        await until(lambda: rig.server.n_operations == 1)
        for _ in range(20):
            await ask(other, wire.Stats(0))
        waiting = [
            one._transport.get_write_buffer_size()
            for one in rig.server._shared.connections
            if isinstance(one, Connection) and one._transport is not None
        ]
        assert max(waiting) <= rig.server._config.max_output_bytes // 8 + 64
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        got = await rest_of(client, 7)
        assert len(got.data) == len(states.exported)


async def test_a_reader_that_stalls_in_an_export_is_cut_off() -> None:
    states = ScriptedStates()
    states.exported = bytes(20_000_000)
    async with serving_states(states, write_timeout_s=0.1) as rig:
        client = await rig.client()
        stop_reading(client)
        client.send(StateExport(7, "a"))
        await until(lambda: rig.server.n_connections == 0)
        await rig.assert_idle()


async def test_ids_go_ahead_of_the_bytes_of_an_export() -> None:
    """A request that comes in the middle of an export has its ids before the export has ended."""
    states = ScriptedStates()
    states.exported = bytes(50_000_000)
    async with serving_states(states) as rig:
        client = await rig.client()
        export = client.wire.new_request_id()
        client.send(StateExport(export, "a"))
        while not isinstance(await client.next(), StateChunk):
            pass
        lane = client.start((1, 2, 3), max_tokens=8)
        answer = await client.answer(lane)
        assert len(answer.ids[0]) == 8
        assert export in client.wire.lanes


async def test_a_client_that_vanishes_in_an_export_leaves_nothing() -> None:
    states = ScriptedStates()
    states.exported = bytes(20_000_000)
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(StateExport(7, "a", credit=1000))
        assert isinstance(await reply(client, 7), StateExportBegin)
        client.abort()
        await rig.assert_idle()


async def test_cancel_ends_an_export_in_the_middle() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(StateExport(7, "a", credit=1000))
        assert isinstance(await reply(client, 7), StateExportBegin)
        client.send(Cancel(7))
        assert (await answer_of(client, 7)).code == ErrorCode.CANCELLED
        await rig.assert_idle()


# --- within a request ---------------------------------------------------------------------


async def test_a_state_goes_along_with_a_request() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        lane = client.wire.new_request_id()
        client.send(numbered(generate_on(inline_bytes=5000), lane))
        await upload(client, lane, DATA[:5000])
        got = await rest_of(client, lane)
        assert isinstance(got.end, wire.EndOn)
        assert len(got.ids) == 4
        (asked,) = rig.states.asked
        assert asked[2].inline == DATA[:5000]
        await rig.assert_idle()


async def test_the_state_at_the_end_of_a_request_comes_before_its_end() -> None:
    states = ScriptedStates()
    states.end = StateEnd(inline=DATA[:700_000], n_computed=7)
    async with serving_states(states) as rig:
        client = await rig.client()
        got = await turn(client, generate_on(want_inline=True))
        assert got.begun == StateExportBegin(got.end.request_id, 700_000, None)
        assert got.data == DATA[:700_000]
        assert got.bytes_end is not None
        assert got.bytes_end.digest == blake3(got.data).hexdigest()
        assert isinstance(got.end, wire.EndOn)
        assert len(got.ids) == 4
        await rig.assert_idle()


async def test_a_state_that_is_not_read_keeps_its_place_among_the_transfers() -> None:
    states = ScriptedStates()
    states.end = StateEnd(inline=bytes(20_000_000))
    async with serving_states(states) as rig:
        client = await rig.client()
        stop_reading(client)
        client.send(numbered(generate_on(want_inline=True), 7))
        await until(lambda: rig.server.n_requests == 0 and rig.server.n_operations == 1)
        operations = rig.server._dispatcher._operations
        assert operations is not None
        assert operations.n_transfers == 1
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert isinstance((await rest_of(client, 7)).end, wire.EndOn)
        await rig.assert_idle()


async def test_an_inline_state_longer_than_any_is_refused_before_a_byte_is_granted() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        failed = await refusal(client, generate_on(inline_bytes=FILE_BYTES + 1))
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert rig.states.asked == []


@pytest.mark.parametrize("how", ["cancel", "interrupt", "silence", "short", "vanish"])
async def test_a_request_whose_state_does_not_come_is_never_begun(how: str) -> None:
    async with serving_states() as rig:
        hurry(rig, 0.05 if how == "silence" else 10.0)
        client = await rig.client()
        client.send(numbered(generate_on(inline_bytes=5000), 7))
        await reply(client, 7)
        client.send(StateChunk(7, b"x"))
        if how == "vanish":
            client.abort()
            await rig.assert_idle()
            assert rig.states.asked == []
            return
        if how == "cancel":
            client.send(Cancel(7))
        if how == "interrupt":
            client.send(wire.Interrupt(7))
        if how == "short":
            client.send(StateBytesEnd(7))
        failed = await answer_of(client, 7)
        assert isinstance(failed, Failed)
        is_bad = how in ("silence", "short")
        assert failed.code == (ErrorCode.BAD_STATE_FILE if is_bad else ErrorCode.CANCELLED)
        assert rig.states.asked == []
        await rig.assert_idle()


async def test_a_client_that_vanishes_before_the_inline_end_leaves_nothing() -> None:
    states = ScriptedStates()
    states.end = StateEnd(inline=bytes(20_000_000))
    async with serving_states(states) as rig:
        client = await rig.client()
        stop_reading(client)
        client.send(numbered(generate_on(want_inline=True), 7))
        await until(lambda: rig.server.n_operations == 1)
        client.abort()
        await rig.assert_idle()


async def test_as_many_transfers_as_may_be_of_a_tenant() -> None:
    states = ScriptedStates()
    states.waits.add("export")
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(numbered(generate_on(want_inline=True, max_tokens=10**6), 1000))
        await until(lambda: rig.server.n_requests == 1)
        client.send(numbered(generate_on(inline_bytes=5000), 1001))
        await reply(client, 1001)
        for lane in range(1, TRANSFERS_PER_TENANT - 1):
            client.send(StateExport(lane, "a"))
        await until(lambda: states.n_waiting == TRANSFERS_PER_TENANT - 2)
        for message in (
            StateExport(0, "a"),
            StateImport(0, "a", FILE_BYTES),
            generate_on(inline_bytes=5000),
            generate_on(want_inline=True),
        ):
            assert (await refusal(client, message)).code == ErrorCode.QUEUE_FULL
        client.send(Cancel(1000))
        while not isinstance(await client.next(), wire.EndOn):
            pass
        client.send(numbered(StateImport(0, "a", FILE_BYTES), 2000))
        assert isinstance(await reply(client, 2000), StateCredit)


async def test_large_states_have_fewer_places_and_give_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "LARGE_BYTES", FILE_BYTES - 1)
    async with serving_states() as rig:
        client = await rig.client()
        for lane in range(1, LARGE_TRANSFERS_PER_TENANT + 1):
            client.send(StateImport(lane, "a", FILE_BYTES))
            assert isinstance(await reply(client, lane), StateCredit)
        large = StateImport(0, "a", FILE_BYTES)
        assert (await refusal(client, large)).code == ErrorCode.QUEUE_FULL
        client.send(Cancel(1))
        assert isinstance(await reply(client, 1), Failed)
        client.send(numbered(large, 101))
        assert isinstance(await reply(client, 101), StateCredit)
