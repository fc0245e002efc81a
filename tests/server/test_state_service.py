"""The service of states behind a server: turns that go on, files that come back, and tenants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    Cancel,
    EndOn,
    EndReason,
    Failed,
    StateCreate,
    StateExport,
    StateGet,
    StateImport,
    StateList,
    StateVersions,
    pack_ids,
)

from tests.engine.states.fake_loop import FakeLoop
from tests.engine.states.rig import running
from tests.server.harness import TIMEOUT_S, RawClient, until
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
from tests.server.test_state_operations import CALLS
from wkvm.core.api_keys import ApiKey

KEYS = (ApiKey.of("blue-key", "blue"), ApiKey.of("red-key", "red"))
FOR_EVER = 10**6


@asynccontextmanager
async def service(folder: Path, **settings: Any) -> AsyncIterator[tuple[StateRig, FakeLoop]]:
    """A server with the service of states over a store in a folder, for two tenants."""
    async with (
        running(folder) as states,
        serving_states(states.service, api_keys=KEYS, **settings) as rig,
    ):
        yield rig, states.loop


async def world(client: RawClient) -> list[Any]:
    """All that a tenant has."""
    page = await ask(client, StateList(0))
    versions = [await ask(client, StateList(0, versions_of=one.name)) for one in page.states]
    return [page.states, *(one.states for one in versions)]


async def exported(client: RawClient, state: str) -> bytes:
    got = await turn(client, StateExport(0, state))
    assert got.bytes_end is not None, got.end
    return bytes(got.data)


# --- turns --------------------------------------------------------------------------------


async def test_turns_on_a_state_are_as_one(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        whole = await turn(client, generate_on(max_tokens=12))
        first = await turn(client, generate_on(max_tokens=5, save_as="chat"))
        assert (first.end.name, first.end.version, first.end.ack) == ("chat", 1, "durable")
        second = await turn(client, generate_on((), max_tokens=7, state="chat", save_as="chat"))
        assert second.end.cached_tokens == 3 + 5 - 1
        assert second.end.version == 2
        assert first.ids + second.ids == whole.ids
        info = await ask(client, StateGet(0, "chat"))
        assert info.states[0].parents == ("chat@1",)
        assert info.states[0].tail[-4:] == pack_ids(whole.ids[-1:])
        await rig.assert_idle()


async def test_a_state_is_created_of_exactly_its_ids(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        made = await ask(client, StateCreate(0, "start", pack_ids([1, 2, 3])))
        (info,) = made.states
        assert info.n_computed + info.n_pending == 3
        assert info.tail == pack_ids([1, 2, 3])
        plain = await turn(client, generate_on((1, 2, 3)))
        assert (await turn(client, generate_on((), state="start"))).ids == plain.ids


async def test_an_unknown_state_computes_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, loop):
        client = await rig.client("blue-key")
        failed = await refusal(client, generate_on(state="nowhere"))
        assert failed.code == ErrorCode.STATE_NOT_FOUND
        assert loop.n_fed == 0
        await rig.assert_idle()


async def test_a_state_goes_out_and_comes_back_to_the_byte(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        await turn(client, generate_on(max_tokens=5, save_as="a"))
        file = await exported(client, "a")
        lane = client.wire.new_request_id()
        client.send(StateImport(lane, "b", len(file)))
        await upload(client, lane, file)
        (info,) = (await rest_of(client, lane)).end.states
        assert info.operation == "import"
        going_on = generate_on((), max_tokens=6, state="a", replay=True)
        again = generate_on((), max_tokens=6, state="b", replay=True)
        assert (await turn(client, going_on)).ids == (await turn(client, again)).ids


async def test_an_inline_state_does_as_a_kept_one_and_is_not_kept(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        whole = await turn(client, generate_on(max_tokens=9))
        first = await turn(client, generate_on(max_tokens=4, want_inline=True))
        assert first.bytes_end is not None
        file = bytes(first.data)
        lane = client.wire.new_request_id()
        client.send(numbered(generate_on((), max_tokens=5, inline_bytes=len(file)), lane))
        await upload(client, lane, file)
        second = await rest_of(client, lane)
        assert isinstance(second.end, EndOn), second.end
        assert first.ids + second.ids == whole.ids
        assert (await world(client))[0] == ()


@pytest.mark.parametrize("place", [0, 8, 200, -1])
async def test_a_flipped_bit_is_refused_and_nothing_is_kept(tmp_path: Path, place: int) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        await turn(client, generate_on(max_tokens=5, save_as="a"))
        file = bytearray(await exported(client, "a"))
        before = await world(client)
        file[place] ^= 1
        lane = client.wire.new_request_id()
        client.send(StateImport(lane, "b", len(file)))
        await upload(client, lane, bytes(file))
        failed = (await rest_of(client, lane)).end
        assert isinstance(failed, Failed)
        assert failed.code in (ErrorCode.BAD_STATE_FILE, ErrorCode.STATE_MISMATCH)
        assert await world(client) == before
        await rig.assert_idle()


@pytest.mark.parametrize("n_bytes", [1, 8, 2**40])
async def test_a_length_that_no_state_has_is_refused(tmp_path: Path, n_bytes: int) -> None:
    async with service(tmp_path) as (rig, _):
        client = await rig.client("blue-key")
        failed = await refusal(client, StateImport(0, "b", n_bytes))
        assert failed.code == ErrorCode.BAD_STATE_FILE
        assert (await world(client))[0] == ()


# --- connections that go ------------------------------------------------------------------


async def until_idle(rig: StateRig, loop: FakeLoop) -> None:
    await rig.assert_idle()
    await until(lambda: loop.n_live == 0)


async def begun(rig: StateRig, loop: FakeLoop, policy: str) -> RawClient:
    """A client with a request that runs, and has had ids."""
    client = await rig.client("blue-key")
    message = generate_on(
        max_tokens=FOR_EVER if policy != "finish" else 50,
        save_as="a",
        on_disconnect=policy,
        idempotency_key="k",
        credit=FOR_EVER if policy != "finish" else 5,
    )
    client.send(numbered(message, 7))
    await client.next_of(wire.Tokens)
    return client


@pytest.mark.parametrize("policy", ["cancel", "finish", "hibernate"])
async def test_what_becomes_of_a_request_whose_client_is_gone(tmp_path: Path, policy: str) -> None:
    async with service(tmp_path) as (rig, loop):
        (await begun(rig, loop, policy)).abort()
        await until_idle(rig, loop)
        client = await rig.client("blue-key")
        if policy == "cancel":
            assert (await refusal(client, StateGet(0, "a"))).code == ErrorCode.STATE_NOT_FOUND
            return
        async with asyncio.timeout(TIMEOUT_S):
            while isinstance(info := await ask(client, StateGet(0, "a")), Failed):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        (state,) = info.states
        if policy == "finish":
            assert state.n_computed + state.n_pending == 3 + 50


async def test_whoever_comes_back_has_every_id_once(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, loop):
        control = await rig.client("blue-key")
        whole = await turn(control, generate_on(max_tokens=50))
        (await begun(rig, loop, "finish")).abort()
        again = await rig.client("blue-key")
        message = generate_on(
            max_tokens=50,
            save_as="a",
            on_disconnect="finish",
            idempotency_key="k",
            received=3,
        )
        got = await turn(again, message)
        assert isinstance(got.end, EndOn), got.end
        assert got.ids == whole.ids[3:]
        assert got.end.version == 1


async def test_a_key_that_nobody_knows_is_not_begun_again_for_who_has_had_ids(
    tmp_path: Path,
) -> None:
    async with service(tmp_path) as (rig, loop):
        client = await rig.client("blue-key")
        message = generate_on(save_as="a", idempotency_key="k", received=3)
        assert (await refusal(client, message)).code == ErrorCode.STATE_NOT_FOUND
        failed = await refusal(client, generate_on(save_as="a", received=3))
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, "received")
        assert loop.n_fed == 0
        await rig.assert_idle()


@pytest.mark.parametrize("by", ["name", "lane"])
@pytest.mark.parametrize("save_as", ["", "copy"])
async def test_a_snapshot_is_of_what_a_request_has_come_to(
    tmp_path: Path, by: str, save_as: str
) -> None:
    async with service(tmp_path) as (rig, loop):
        client = await rig.client("blue-key")
        await turn(client, generate_on(save_as="a"))
        going_on = generate_on((), max_tokens=FOR_EVER, state="a", save_as="a")
        client.send(numbered(going_on, 70))
        await client.next_of(wire.Tokens)
        asked = {"state": "a"} if by == "name" else {"lane": 70}
        made = await ask(client, wire.StateSnapshot(0, save_as=save_as, **asked))
        (info,) = made.states
        assert info.name == (save_as or "a")
        assert info.n_computed > 7
        assert loop.n_live == 1
        client.send(wire.Interrupt(70))
        end = (await rest_of(client, 70)).end
        assert end.version == (2 if save_as else 3)
        assert end.n_computed > info.n_computed


# --- tenants ------------------------------------------------------------------------------

MESSAGES = [
    *(one for one, _, _ in CALLS if not isinstance(one, (StateList, StateImport))),
    generate_on(state="a"),
    generate_on(state="a@1", save_as="z"),
]


def about(message: Any) -> Any:
    """The same message about ``a``, which is there, without what would be wrong before."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    for name, value in (
        ("state", "a"),
        ("other", "a"),
        ("prefix", ""),
        ("states", ("a",)),
        ("save_as", "z"),
        ("expected_version", None),
        ("operation", "decay"),
        ("parameters", '{"factor":0.5}'),
        ("tier", "host"),
        ("format", "state"),
    ):
        if name in fields:
            fields[name] = value
    return type(message)(**fields)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
async def test_to_another_tenant_a_state_is_as_if_it_never_was(
    tmp_path: Path, message: Any
) -> None:
    """Byte by byte the answer is that of a server which has no such state."""
    asked = numbered(about(message), 7)
    answers = list[bytes]()
    for is_there in (True, False):
        async with service(tmp_path / str(is_there)) as (rig, _):
            blue, red = await rig.client("blue-key"), await rig.client("red-key")
            if is_there:
                await turn(blue, generate_on(save_as="a"))
            before = await world(blue)
            red.send(asked)
            answer = (await rest_of(red, 7)).end
            assert isinstance(answer, Failed), answer
            assert answer.code == ErrorCode.STATE_NOT_FOUND
            answers.append(encode_frame(msgspec.msgpack.encode(answer), 2**20))
            assert await world(blue) == before
            assert (await world(red))[0] == ()
            await rig.assert_idle()
    assert answers[0] == answers[1]


async def test_a_name_of_another_tenant_is_free(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        blue, red = await rig.client("blue-key"), await rig.client("red-key")
        first = await turn(blue, generate_on(save_as="a"))
        before = await world(blue)
        assert isinstance(await ask(red, StateCreate(0, "a", pack_ids([9, 9]))), StateVersions)
        assert (await turn(red, generate_on((8,), save_as="b"))).end.name == "b"
        assert await world(blue) == before
        assert first.end.name == "a"


async def test_a_page_has_only_what_is_the_tenants(tmp_path: Path) -> None:
    async with service(tmp_path) as (rig, _):
        blue, red = await rig.client("blue-key"), await rig.client("red-key")
        await turn(blue, generate_on(save_as="a"))
        await turn(red, generate_on(save_as="b"))
        for client, name in ((blue, "a"), (red, "b")):
            page = await ask(client, StateList(0))
            assert [one.name for one in page.states] == [name]


@pytest.mark.parametrize("what", ["snapshot", "cancel", "interrupt"])
async def test_a_request_of_another_tenant_is_out_of_reach(tmp_path: Path, what: str) -> None:
    async with service(tmp_path) as (rig, loop):
        blue = await begun(rig, loop, "cancel")
        red = await rig.client("red-key")
        if what == "snapshot":
            failed = await refusal(red, wire.StateSnapshot(0, lane=7, save_as="mine"))
            assert failed.code == ErrorCode.INVALID_PARAMETER
        else:
            message = Cancel(7) if what == "cancel" else wire.Interrupt(7)
            red.write(encode_frame(msgspec.msgpack.encode(message), 2**20))
            await world(red)
        assert loop.n_live == 1
        blue.send(wire.Interrupt(7))
        assert (await rest_of(blue, 7)).end.reason is EndReason.CANCELLED


# --- migration ----------------------------------------------------------------------------


async def test_a_live_stream_moves_without_a_lost_or_repeated_id(tmp_path: Path) -> None:
    n = 400
    async with service(tmp_path / "a") as (source, _), service(tmp_path / "b") as (target, _):
        client, mover = await source.client("blue-key"), await source.client("blue-key")
        there = await target.client("blue-key")
        whole = await turn(client, generate_on(max_tokens=n))
        client.send(numbered(generate_on(max_tokens=n, save_as="chat"), 77))
        seen = list(wire.unpack_ids((await client.next_of(wire.Tokens)).ids))
        (frozen,) = (await ask(mover, wire.MigrateBegin(0, "chat"))).states
        file = await exported(mover, f"chat@{frozen.version}")
        there.send(StateImport(5, "chat", len(file)))
        await upload(there, 5, file)
        (arrived,) = (await rest_of(there, 5)).end.states
        address = "tcp://target:8001"
        done = wire.MigrateEnd(0, "chat", True, address, "chat", arrived.version)
        assert (await ask(mover, done)).states == ()
        first = await rest_of(client, 77)
        assert first.end.reason is EndReason.MOVED
        assert (first.end.target, first.end.name) == (address, "chat")
        seen += first.ids
        assert len(seen) == first.end.n_output < n
        moved = await ask(client, StateGet(0, "chat"))
        assert isinstance(moved, wire.StateMoved)
        assert (moved.target, moved.state) == (address, f"chat@{arrived.version}")
        going_on = generate_on(
            (),
            max_tokens=n - first.end.n_output,
            state=f"{first.end.name}@{first.end.version}",
            save_as="chat",
            replay=True,
        )
        second = await turn(there, going_on)
        assert seen + second.ids == whole.ids


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_a_migration_that_fails_lets_the_stream_go_on(tmp_path: Path, how: str) -> None:
    n = 400
    async with service(tmp_path) as (rig, _):
        client, mover = await rig.client("blue-key"), await rig.client("blue-key")
        whole = await turn(client, generate_on(max_tokens=n))
        client.send(numbered(generate_on(max_tokens=n, save_as="chat"), 77))
        seen = list(wire.unpack_ids((await client.next_of(wire.Tokens)).ids))
        await ask(mover, wire.MigrateBegin(0, "chat"))
        if how == "refused":
            answer = await ask(mover, wire.MigrateEnd(0, "chat", False))
            assert answer.states[0].name == "chat"
        else:
            mover.abort()
        got = await rest_of(client, 77)
        assert got.end.reason is EndReason.LENGTH
        assert seen + got.ids == whole.ids
        assert len(await reply_of_versions(client)) >= 1


async def reply_of_versions(client: RawClient) -> Any:
    client.send(StateList(4000, versions_of="chat"))
    return (await reply(client, 4000)).states
