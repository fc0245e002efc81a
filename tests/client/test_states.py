"""Operations on states, on both clients."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from wkvm_client.errors import (
    BadPeerError,
    BadStateFileError,
    InvalidParameterError,
    ReplyTimeoutError,
    StaleVersionError,
    StateMovedError,
    StateNotFoundError,
    TokenOutOfRangeError,
    UnsupportedOperationError,
)
from wkvm_client.replies import WINDOW_BYTES
from wkvm_client.states import Difference, Replay, StateInfo
from wkvm_protocol import messages
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    MAX_CHUNK_BYTES,
    Cancel,
    MigrateBegin,
    MigrateEnd,
    Ping,
    Pong,
    StateBytesEnd,
    StateChunk,
    StateCreate,
    StateCredit,
    StateDelete,
    StateDiff,
    StateEdit,
    StateExport,
    StateExportBegin,
    StateFork,
    StateGet,
    StateHibernate,
    StateImport,
    StateList,
    StateLog,
    StateMoved,
    StateMutate,
    StateReplay,
    StateResume,
    StateRollback,
    StateSnapshot,
    StateText,
    StateVersions,
    pack_ids,
)

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer, Peer, told
from tests.client.scripts import connected

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    (
        "create",
        ("s", [1, 2]),
        {
            "state": "p@2",
            "tags": {"a": "b"},
            "expires_in_s": 2.5,
            "expected_version": 0,
            "durability": "memory",
            "checkpoint_every": 64,
            "priority": -1,
            "idempotency_key": "k",
        },
        StateCreate(
            1, "s", pack_ids([1, 2]), "p@2", {"a": "b"}, 2500, 0, "memory", 64, 60_000, -1, "k"
        ),
    ),
    ("create", ("s", [7]), {}, StateCreate(1, "s", pack_ids([7]), timeout_ms=60_000)),
    ("get", ("s@3",), {}, StateGet(1, "s@3")),
    ("snapshot", ("s",), {"save_as": "t"}, StateSnapshot(1, "s", save_as="t")),
    ("hibernate", ("s", "cold"), {}, StateHibernate(1, "s", "cold")),
    ("resume", ("s",), {}, StateResume(1, "s")),
    (
        "rollback",
        ("s",),
        {"version": 2, "expected_version": 5, "idempotency_key": "k"},
        StateRollback(1, "s", 2, None, 5, "k"),
    ),
    ("rollback", ("s",), {"position": 64}, StateRollback(1, "s", None, 64)),
    ("rename", ("s", "t"), {"expected_version": 5}, StateEdit(1, "s", "t", None, None, 5)),
    ("tag", ("s", {"a": "b"}), {}, StateEdit(1, "s", "", {"a": "b"})),
    ("expire", ("s", 1.5), {}, StateEdit(1, "s", "", None, 1500)),
    ("expire", ("s", None), {}, StateEdit(1, "s", "", None, 0)),
    (
        "mutate",
        ("decay", "s", "t", {"factor": 0.5}),
        {"tags": {"a": "b"}, "expected_version": 0, "durability": "disk", "idempotency_key": "k"},
        StateMutate(1, "decay", ("s",), "t", '{"factor": 0.5}', {"a": "b"}, 0, 0, "disk", "k"),
    ),
    ("mutate", ("blend", ["s", "u"], "t"), {}, StateMutate(1, "blend", ("s", "u"), "t")),
    ("migrate_begin", ("s",), {"timeout_s": 3.0}, MigrateBegin(1, "s", 3000)),
]


async def keeper(driver: Driver, server: FakeServer, **options: Any) -> Peer:
    return await connected(driver, server, features=["states"], **options)


async def alive(driver: Driver, peer: Peer) -> None:
    """Show that the connection is of use."""
    pinging = asyncio.create_task(driver.ping())
    peer.send(Pong((await peer.next(Ping)).nonce))
    await pinging


@pytest.mark.parametrize(("operation", "args", "options", "sent"), CALLS)
async def test_an_operation_is_sent_as_asked_for_and_its_state_returned(
    driver: Driver,
    server: FakeServer,
    operation: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    sent: Any,
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states(operation, *args, **options))
    assert await peer.next(type(sent)) == sent
    peer.send(StateVersions(1, (told("s", 4),)))
    assert await asking == StateInfo(
        name="s",
        version=4,
        head=4,
        n_versions=4,
        ack="durable",
        tier="host",
        content_id="ab" * 32,
        n_bytes=1234,
        n_computed=5,
        n_pending=1,
        operation="create",
        parents=("p@3",),
        tail=(1, 2, 3, 4, 5, 6),
        tags={"kind": "test"},
        created_at=1.5,
        updated_at=2.5,
        expires_at=None,
        model_digest="aa",
        layout_fingerprint="bb",
        tokenizer_digest="cc",
    )


async def test_a_fork_makes_several_and_their_order_is_kept(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("fork", "s", ["b", "a"], keep_randomness=True))
    assert await peer.next(StateFork) == StateFork(1, "s", ("b", "a"), keep_randomness=True)
    peer.send(StateVersions(1, (told("b"), told("a"))))
    assert [state.ref for state in await asking] == ["b@1", "a@1"]


async def test_a_list_comes_in_pages(driver: Driver, server: FakeServer) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("list", "s", tags={"a": "b"}, limit=2))
    assert await peer.next(StateList) == StateList(1, "s", {"a": "b"}, "", "", 2)
    peer.send(messages.StatePage(1, (told("s1"), told("s2")), "here"))
    page = await asking
    assert [state.name for state in page.states] == ["s1", "s2"]
    assert page.next == "here"
    asking = asyncio.create_task(driver.states("versions", "s", cursor="here"))
    assert await peer.next(StateList) == StateList(2, "", None, "s", "here", 100)
    peer.send(messages.StatePage(2, (), ""))
    assert (await asking).states == ()


async def test_a_state_is_deleted(driver: Driver, server: FakeServer) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("delete", "s", expected_version=3))
    assert await peer.next(StateDelete) == StateDelete(1, "s", 3)
    peer.send(StateVersions(1, ()))
    assert await asking is None


async def test_the_end_of_a_migration_names_what_there_is_now(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(
        driver.states(
            "migrate_end",
            "s",
            committed=True,
            target="tcp://there:1",
            target_name="t",
            target_version=7,
        )
    )
    assert await peer.next(MigrateEnd) == MigrateEnd(1, "s", True, "tcp://there:1", "t", 7)
    peer.send(StateVersions(1, ()))
    assert await asking is None


async def test_a_difference_is_numbers_by_tensor_layer_and_head(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("difference", "s", "t"))
    assert await peer.next(StateDiff) == StateDiff(1, "s", "t")
    whole = '{"max_abs":2.0,"relative":0.5}'
    layer = f'{{"heads":[{whole}],"layer":0,"whole":{whole}}}'
    tensor = f'{{"layers":[{layer}],"name":"rwkv7.wkv","whole":{whole}}}'
    peer.send(StateText(1, f'{{"equal":false,"n_common":3,"tensors":[{tensor}]}}', 0))
    difference = await asking
    assert isinstance(difference, Difference)
    assert (difference.equal, difference.n_common) == (False, 3)
    assert difference.tensors[0].layers[0].heads[0].relative == 0.5


async def test_a_log_tells_how_versions_came_to_be(driver: Driver, server: FakeServer) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("log", "s", before=9, limit=1))
    assert await peer.next(StateLog) == StateLog(1, "s", 9, 1)
    provenance = (
        '{"operation":"decay","parameters":{"factor":0.5},"parents":[["s@7","ab"]],"n_before":3,'
        '"n_after":3,"seed":null,"engine":"1","cuts":[],"later":"unknown"}'
    )
    entry = (
        '{"name":"s","version":8,"content_id":"cd","ack":"durable","created_ms":1500,'
        f'"n_computed":3,"n_pending":1,"provenance":{provenance}}}'
    )
    peer.send(StateText(1, f"[{entry}]", 8))
    log = await asking
    assert log.next == 8
    assert log.entries[0].provenance.parents == (("s@7", "ab"),)
    assert log.entries[0].provenance.parameters == {"factor": 0.5}


async def test_a_replay_says_whether_the_bytes_are_the_same(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("replay", "s"))
    assert await peer.next(StateReplay) == StateReplay(1, "s", 60_000)
    peer.send(
        StateText(
            1,
            '{"state":"s@1","n_operations":2,"equal":true,"content_id":"a",'
            '"replayed_content_id":"a","first_difference":null}',
            0,
        )
    )
    assert await asking == Replay(
        state="s@1",
        n_operations=2,
        equal=True,
        content_id="a",
        replayed_content_id="a",
        first_difference=None,
    )


async def test_an_answer_that_is_no_json_is_the_servers_fault(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("replay", "s"))
    await peer.next(StateReplay)
    peer.send(StateText(1, "[", 0))
    with pytest.raises(BadPeerError):
        await asking


@pytest.mark.parametrize(
    ("code", "leaf"),
    [
        (ErrorCode.STATE_NOT_FOUND, StateNotFoundError),
        (ErrorCode.STALE_VERSION, StaleVersionError),
    ],
)
async def test_a_refusal_is_typed(
    driver: Driver, server: FakeServer, code: ErrorCode, leaf: type[Exception]
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("get", "s"))
    await peer.next(StateGet)
    peer.fail(1, code)
    with pytest.raises(leaf):
        await asking


async def test_a_state_that_moved_says_where_it_is(driver: Driver, server: FakeServer) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("get", "s"))
    await peer.next(StateGet)
    peer.send(StateMoved(1, "it has moved", "tcp://there:1", "t@7"))
    with pytest.raises(StateMovedError) as caught:
        await asking
    assert (caught.value.target, caught.value.state) == ("tcp://there:1", "t@7")
    assert caught.value.code == ErrorCode.STATE_MOVED


async def test_a_server_without_states_is_not_asked(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    with pytest.raises(UnsupportedOperationError):
        await driver.states("get", "s")
    with pytest.raises(UnsupportedOperationError):
        await driver.generate([1], save_as="s")
    await peer.nothing()


@pytest.mark.parametrize(
    ("operation", "args", "options", "leaf"),
    [
        ("create", ("s", [2**32]), {}, TokenOutOfRangeError),
        ("create", ("s", [1]), {"expires_in_s": -1.0}, InvalidParameterError),
        ("rename", ("s", ""), {}, InvalidParameterError),
        ("rename", ("s", "t" * 257), {}, InvalidParameterError),
        ("mutate", ("decay", "s", "t", {"factor": float("nan")}), {}, InvalidParameterError),
        ("fork", ("s", [str(i) for i in range(65)]), {}, InvalidParameterError),
        ("get", ("\ud800",), {}, InvalidParameterError),
        ("rollback", ("s",), {"version": -1}, InvalidParameterError),
    ],
)
async def test_what_cannot_be_sent_is_refused_here(
    driver: Driver,
    server: FakeServer,
    operation: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    leaf: type[Exception],
) -> None:
    peer = await keeper(driver, server)
    with pytest.raises(leaf):
        await driver.states(operation, *args, **options)
    await peer.nothing()


async def test_an_operation_that_nobody_waits_for_is_cancelled(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    with pytest.raises(ReplyTimeoutError):
        await driver.states("get", "s", within=0.05)
    await peer.next(StateGet)
    assert await peer.next(Cancel) == Cancel(1)


def names_in(folder: Path) -> list[str]:
    """Of files, without the socket."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


# --- bytes --------------------------------------------------------------------------------


async def test_an_export_comes_whole_and_in_order(driver: Driver, server: FakeServer) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.exported("s"))
    assert await peer.next(StateExport) == StateExport(1, "s", "state", WINDOW_BYTES)
    peer.send(StateExportBegin(1, 5, told("s")))
    peer.send(StateChunk(1, b"abc"), StateChunk(1, b"de"), StateBytesEnd(1, "d1"))
    assert b"".join(await asking) == b"abcde"


async def test_no_more_of_an_export_comes_than_its_reader_takes(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    n_chunks = 3 * WINDOW_BYTES // MAX_CHUNK_BYTES
    asking = asyncio.create_task(driver.exported("s"))
    await peer.next(StateExport)
    peer.send(StateExportBegin(1, n_chunks * MAX_CHUNK_BYTES, told("s")))
    n_sent = 0
    while n_sent < n_chunks:
        while n_sent < n_chunks and peer.wire.room(1):
            peer.send(StateChunk(1, bytes([n_sent]) * MAX_CHUNK_BYTES))
            n_sent += 1
        if n_sent < n_chunks:
            assert peer.wire.room(1) <= WINDOW_BYTES
            await peer.next(StateCredit)
    peer.send(StateBytesEnd(1, ""))
    parts = await asking
    assert [part[0] for part in parts] == list(range(n_chunks))


async def test_an_export_that_is_left_early_is_cancelled(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.exported("s", 1))
    await peer.next(StateExport)
    peer.send(StateExportBegin(1, 10, told("s")), StateChunk(1, b"abc"))
    assert await asking == [b"abc"]
    assert await peer.next(Cancel) == Cancel(1)
    peer.send(StateChunk(1, b"de"))
    peer.fail(1, ErrorCode.CANCELLED)
    await alive(driver, peer)


async def test_a_file_is_there_whole(driver: Driver, server: FakeServer, tmp_path: Path) -> None:
    peer = await keeper(driver, server)
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"before")
    asking = asyncio.create_task(driver.states("export_to", "s", path))
    await peer.next(StateExport)
    peer.send(StateExportBegin(1, 5, told("s")), StateChunk(1, b"abcde"), StateBytesEnd(1, "d1"))
    exported = await asking
    assert path.read_bytes() == b"abcde"
    assert (exported.n_bytes, exported.digest, exported.state.name) == (5, "d1", "s")
    assert names_in(tmp_path) == ["state.safetensors"]


async def test_an_export_that_breaks_leaves_the_file_as_it_was(
    driver: Driver, server: FakeServer, tmp_path: Path
) -> None:
    peer = await keeper(driver, server)
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"before")
    asking = asyncio.create_task(driver.states("export_to", "s", path))
    await peer.next(StateExport)
    peer.send(StateExportBegin(1, 5, told("s")), StateChunk(1, b"abc"))
    peer.fail(1, ErrorCode.STATE_DAMAGED)
    with pytest.raises(Exception, match="as scripted"):
        await asking
    assert path.read_bytes() == b"before"
    assert names_in(tmp_path) == ["state.safetensors"]


async def import_bytes(peer: Peer, n_bytes: int, grant: int) -> bytes:
    """Play the server of an import that grants so much at a time."""
    message = await peer.next(StateImport)
    assert message.n_bytes == n_bytes
    data = b""
    while len(data) < n_bytes:
        more = min(grant, n_bytes - len(data))
        peer.send(StateCredit(message.request_id, more))
        while more:
            chunk = await peer.next(StateChunk)
            data += chunk.data
            more -= len(chunk.data)
        await peer.nothing() if len(data) < n_bytes else None
    return data


async def test_an_import_sends_what_is_granted_and_no_more(
    driver: Driver, server: FakeServer, tmp_path: Path
) -> None:
    peer = await keeper(driver, server)
    content = bytes(range(256)) * 5000
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    asking = asyncio.create_task(
        driver.states("import_from", "s", path, digest="d1", expected_version=0)
    )
    assert await import_bytes(peer, len(content), 500_000) == content
    assert await peer.next(StateBytesEnd) == StateBytesEnd(1, "d1")
    peer.send(StateVersions(1, (told("s"),)))
    assert (await asking).ref == "s@1"


async def test_bytes_are_imported_as_files_are(driver: Driver, server: FakeServer) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("import_from", "s", b"abc", format="fla"))
    assert await import_bytes(peer, 3, 3) == b"abc"
    await peer.next(StateBytesEnd)
    peer.send(StateVersions(1, (told("s"),)))
    await asking


async def test_an_import_that_is_refused_in_the_middle_ends(
    driver: Driver, server: FakeServer
) -> None:
    peer = await keeper(driver, server)
    asking = asyncio.create_task(driver.states("import_from", "s", b"abc"))
    await peer.next(StateImport)
    peer.send(StateCredit(1, 1))
    await peer.next(StateChunk)
    peer.fail(1, ErrorCode.BAD_STATE_FILE)
    with pytest.raises(BadStateFileError):
        await asking
    await alive(driver, peer)
