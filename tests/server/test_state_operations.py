"""Operations on states over a connection: what is asked, what is answered, and how they end."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Cancel, Failed, StateText, StateVersions, pack_ids

from tests.server.harness import until
from tests.server.scripted_states import FILE_BYTES, ScriptedStates, info_of
from tests.server.state_rig import ask, numbered, refusal, reply, serving_states
from tests.server.test_errors import EXAMPLES
from wkvm.core import errors as core
from wkvm.core.api_keys import ApiKey
from wkvm.core.registry import Durability, Ref
from wkvm.core.states import Moved, Tier
from wkvm.server.errors import CODES
from wkvm.server.operations import OPERATIONS_PER_CONNECTION, OPERATIONS_PER_TENANT

DISK = Durability.DISK

CALLS: list[tuple[Any, str, tuple[Any, ...]]] = [
    (
        wire.StateCreate(
            0,
            "a",
            pack_ids([5, 6]),
            state="b@2",
            tags={"k": "v"},
            expected_version=3,
            durability="disk",
            checkpoint_every=64,
            timeout_ms=1500,
            priority=-1,
            idempotency_key="key",
        ),
        "create",
        (
            "a",
            (5, 6),
            {
                "state": Ref("b", 2),
                "tags": {"k": "v"},
                "expires_at": None,
                "expected_version": 3,
                "durability": DISK,
                "checkpoint_every": 64,
                "timeout_s": 1.5,
                "priority": -1,
                "idempotency_key": "key",
            },
        ),
    ),
    (wire.StateGet(0, "a@3"), "get", (Ref("a", 3),)),
    (
        wire.StateList(0, "pre", {"k": "v"}, cursor="c", limit=7),
        "handles",
        ("pre", {"k": "v"}, "c", 7),
    ),
    (wire.StateList(0, versions_of="a", cursor="5", limit=2), "versions", ("a", 5, 2)),
    (
        wire.StateFork(0, "a@1", ("x", "y"), keep_randomness=True, idempotency_key="key"),
        "fork",
        (
            Ref("a", 1),
            ("x", "y"),
            {
                "tags": None,
                "expires_at": None,
                "keeps_key": True,
                "durability": None,
                "idempotency_key": "key",
            },
        ),
    ),
    (
        wire.StateSnapshot(0, "a", None, "b", 4, "memory", "key"),
        "snapshot",
        (
            Ref("a"),
            {
                "save_as": "b",
                "expected_version": 4,
                "durability": Durability.MEMORY,
                "idempotency_key": "key",
            },
        ),
    ),
    (wire.StateHibernate(0, "a", "cold"), "hibernate", (Ref("a"), Tier.COLD)),
    (wire.StateResume(0, "a@2"), "resume", (Ref("a", 2),)),
    (
        wire.StateRollback(0, "a", 2, None, 5, "key"),
        "rollback",
        (
            "a",
            {"version": 2, "position": None, "expected_version": 5, "idempotency_key": "key"},
        ),
    ),
    (wire.StateEdit(0, "a", rename="b", expected_version=2), "rename", ("a", "b", 2)),
    (wire.StateEdit(0, "a", tags={}), "set_tags", ("a", {}, None)),
    (wire.StateEdit(0, "a", expires_in_ms=0), "set_expiry", ("a", None, None)),
    (wire.StateDelete(0, "a@2", 3), "delete", (Ref("a", 2), 3)),
    (
        wire.StateMutate(0, "blend", ("a", "b@1"), "c", '{"weights":[0.5,0.5]}'),
        "mutate",
        (
            "blend",
            {"weights": [0.5, 0.5]},
            (Ref("a"), Ref("b", 1)),
            {
                "save_as": "c",
                "tags": None,
                "expires_at": None,
                "expected_version": None,
                "durability": None,
                "idempotency_key": None,
            },
        ),
    ),
    (wire.StateDiff(0, "a", "b@2"), "difference", (Ref("a"), Ref("b", 2))),
    (wire.StateLog(0, "a", before=9, limit=3), "log", ("a", 9, 3)),
    (wire.StateReplay(0, "a@2", 2000), "replay", (Ref("a", 2), 2.0)),
    (
        wire.StateLineage(0, "pre", "", 8, "a@4", 7),
        "lineage",
        ("pre", None, 8, Ref("a", 4), 7),
    ),
    (wire.StateLineage(0, state="a"), "lineage", ("", "a", None, None, 1024)),
    (wire.MigrateBegin(0, "a", 5000), "migrate_begin", ("a", 5.0)),
    (
        wire.MigrateEnd(0, "a", True, "tcp://h:1", "b", 2),
        "migrate_end",
        ("a", Moved(target="tcp://h:1", ref=Ref("b", 2))),
    ),
    (wire.MigrateEnd(0, "a", False), "migrate_end", ("a", None)),
    (wire.StateExport(0, "a@2", "fla"), "export", (Ref("a", 2), "fla")),
    (
        wire.StateImport(0, "a", FILE_BYTES, "blinkdl", durability="disk"),
        "importing",
        ("a", FILE_BYTES, "blinkdl", DISK),
    ),
]
"""A message, the call that it makes, and its arguments but for the tenant."""

BY_NAME = [pytest.param(*case, id=f"{type(case[0]).__name__}-{case[1]}") for case in CALLS]
ONE_EACH = list({type(message): (message, call) for message, call, _ in CALLS}.values())
EACH = [pytest.param(*case, id=type(case[0]).__name__) for case in ONE_EACH]


def test_there_is_a_case_for_every_operation() -> None:
    assert {type(message) for message, _, _ in CALLS} == set(wire.REPLIES)


@pytest.mark.parametrize(("message", "call", "arguments"), BY_NAME)
async def test_an_operation_is_one_call_with_what_the_message_says(
    message: Any, call: str, arguments: tuple[Any, ...]
) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        answer = await ask(client, message)
        assert not isinstance(answer, Failed), answer
        assert rig.states.asked == [(call, "local", *arguments)]


@pytest.mark.parametrize(("message", "call"), EACH)
async def test_the_tenant_is_that_of_the_connection(message: Any, call: str) -> None:
    keys = (ApiKey.of("blue-key", "blue"), ApiKey.of("red-key", "red"))
    async with serving_states(api_keys=keys) as rig:
        for key, tenant in (("red-key", "red"), ("blue-key", "blue")):
            client = await rig.client(key)
            await ask(client, message)
            assert rig.states.asked.pop()[:2] == (call, tenant)


async def test_what_is_told_of_a_version() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        answer = await ask(client, wire.StateGet(0, "a@3"))
        (told,) = answer.states
        info = info_of("a", 3)
        assert told == wire.StateInfo(
            name="a",
            version=3,
            head=3,
            n_versions=3,
            ack="durable",
            tier="disk",
            content_id=info.version.content_id,
            n_bytes=FILE_BYTES,
            n_computed=7,
            n_pending=1,
            operation="create",
            parents=(),
            tags={},
            created_ms=1500,
            updated_ms=2000,
            expires_ms=None,
            model_digest="ab" * 32,
            layout_fingerprint="cd" * 32,
            tokenizer_digest="",
            tail=pack_ids([1, 2, 3]),
        )


async def test_a_time_to_expire_counts_from_now() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        before = time.time()
        await ask(client, wire.StateEdit(0, "a", expires_in_ms=60_000))
        expires_at = rig.states.asked[-1][3]
        assert before + 60 <= expires_at <= time.time() + 60


async def test_replies_as_text_are_json() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        difference = await ask(client, wire.StateDiff(0, "a", "b"))
        assert (difference.text, difference.next) == ('{"equal":true}', 0)
        replayed = await ask(client, wire.StateReplay(0, "a@2"))
        told = msgspec.json.decode(replayed.text)
        assert told["equal"] is True
        assert told["state"] == "a@2"
        log = await ask(client, wire.StateLog(0, "a"))
        assert [one["version"] for one in msgspec.json.decode(log.text)] == [2, 1]
        assert log.next == 0


# --- values -------------------------------------------------------------------------------

BAD_VALUES: list[tuple[Any, str]] = [
    (wire.StateGet(0, ""), "state"),
    (wire.StateGet(0, "../a"), "state"),
    (wire.StateGet(0, "a@0"), "state"),
    (wire.StateGet(0, "a@x"), "state"),
    (wire.StateDiff(0, "a", "b b"), "other"),
    (wire.StateList(0, limit=0), "limit"),
    (wire.StateList(0, limit=257), "limit"),
    (wire.StateList(0, versions_of="a@1"), "versions_of"),
    (wire.StateList(0, versions_of="a", cursor="x"), "cursor"),
    (wire.StateList(0, versions_of="a", cursor="²"), "cursor"),
    (wire.StateLog(0, "a", limit=0), "limit"),
    (wire.StateLog(0, "a", limit=257), "limit"),
    (wire.StateLineage(0, limit=0), "limit"),
    (wire.StateLineage(0, limit=1025), "limit"),
    (wire.StateLineage(0, "pre", "a"), "state"),
    (wire.StateLineage(0, state="a@1"), "state"),
    (wire.StateLineage(0, cursor="a b"), "cursor"),
    (wire.Watch(0, interval_ms=19), "interval_ms"),
    (wire.Watch(0, interval_ms=60_001), "interval_ms"),
    (wire.Watch(0, stats_ms=99), "stats_ms"),
    (wire.Watch(0, stats_ms=60_001), "stats_ms"),
    (wire.Watch(0, wants_states=False), "wants_states"),
    (wire.StateFork(0, "a", ()), "names"),
    (wire.StateFork(0, "a", ("x", "x")), "names"),
    (wire.StateFork(0, "a", ("x",), durability="tape"), "durability"),
    (wire.StateHibernate(0, "a", "device"), "tier"),
    (wire.StateHibernate(0, "a", ""), "tier"),
    (wire.StateRollback(0, "a"), "version"),
    (wire.StateRollback(0, "a", 1, 1), "version"),
    (wire.StateRollback(0, "a@1", 1), "state"),
    (wire.StateEdit(0, "a"), "rename"),
    (wire.StateEdit(0, "a", "b", {}), "rename"),
    (wire.StateEdit(0, "a", "b", expires_in_ms=0), "rename"),
    (wire.StateEdit(0, "a@1", "b"), "state"),
    (wire.StateEdit(0, "a", expires_in_ms=2**63 - 1), "expires_in_ms"),
    (wire.StateMutate(0, "decay", (), "a"), "states"),
    (wire.StateMutate(0, "decay", ("a b",), "a"), "states"),
    (wire.StateMutate(0, "decay", ("a",), "a", "[]"), "parameters"),
    (wire.StateMutate(0, "decay", ("a",), "a", "{"), "parameters"),
    (wire.StateMutate(0, "decay", ("a",), "a", '{"x":NaN}'), "parameters"),
    (wire.StateMutate(0, "decay", ("a",), "a", '{"x":' + "[" * 30_000), "parameters"),
    (wire.StateSnapshot(0), "state"),
    (wire.StateSnapshot(0, "a", 1), "state"),
    (wire.StateSnapshot(0, lane=77), "lane"),
    (wire.StateExport(0, "a", "pickle"), "format"),
    (wire.StateImport(0, "a", FILE_BYTES, "pickle"), "format"),
    (wire.MigrateBegin(0, "a@1"), "state"),
    (wire.MigrateEnd(0, "a", True), "target"),
    (wire.MigrateEnd(0, "a", True, "tcp://h:1", "b"), "target_version"),
    (wire.MigrateEnd(0, "a", True, "tcp://h:1", "", 1), "target_name"),
]


@pytest.mark.parametrize(("message", "field"), BAD_VALUES)
async def test_a_value_out_of_range_is_refused_and_nothing_is_asked(
    message: Any, field: str
) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        failed = await refusal(client, message)
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, field)
        assert rig.states.asked == []
        assert isinstance(await ask(client, wire.StateGet(0, "a")), StateVersions)


@pytest.mark.parametrize(("message", "call"), EACH)
async def test_an_error_is_one_answer_with_its_code(message: Any, call: str) -> None:
    states = ScriptedStates()
    async with serving_states(states) as rig:
        client = await rig.client()
        for error in EXAMPLES:
            if not isinstance(error, (core.RequestError, core.CapacityError, core.ExecutionError)):
                continue
            states.raises[call] = error
            answer = await ask(client, message)
            if isinstance(error, core.StateMovedError):
                assert isinstance(answer, wire.StateMoved)
                assert (answer.target, answer.state) == (error.target, error.moved_to)
            else:
                assert isinstance(answer, Failed)
                assert answer.code == CODES[type(error)]
        states.raises[call] = RuntimeError("/secret/path")
        answer = await ask(client, message)
        assert answer.code == ErrorCode.INTERNAL
        assert "secret" not in answer.message
        await rig.assert_idle()


# --- frames -------------------------------------------------------------------------------


async def test_a_page_that_would_not_fit_a_frame_is_shorter() -> None:
    states = ScriptedStates()
    tags = {f"key{n}": "ä" * 256 for n in range(32)}
    states.page = [info_of(f"n{n:03}", tags=tags) for n in range(200)]
    async with serving_states(states, max_frame_bytes=64 * 1024) as rig:
        client = await rig.client()
        page = await ask(client, wire.StateList(0, limit=200))
        assert 1 < len(page.states) < 200
        assert page.next == page.states[-1].name
        assert len(msgspec.msgpack.encode(page)) <= 64 * 1024


async def test_forks_of_which_a_frame_could_not_tell_are_refused_before_they_are_made() -> None:
    tags = {f"key{n}": "ä" * 256 for n in range(32)}
    async with serving_states(max_frame_bytes=64 * 1024) as rig:
        client = await rig.client()
        few, many = (tuple(f"f{n}" for n in range(n)) for n in (3, 4))
        failed = await refusal(client, wire.StateFork(0, "a", many, tags=tags))
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, "names")
        assert rig.states.asked == []
        await ask(client, wire.StateFork(0, "a", few, tags=tags))
        await ask(client, wire.StateFork(0, "a", tuple(f"f{n:0128}" for n in range(64))))


async def test_a_page_of_a_lineage_that_would_not_fit_a_frame_is_shorter() -> None:
    states = ScriptedStates()
    states.page = [info_of(f"{'n' * 120}{n:04}") for n in range(1100)]
    async with serving_states(states, max_frame_bytes=64 * 1024) as rig:
        client, seen, cursor = await rig.client(), list[str](), ""
        while True:
            page = await ask(client, wire.StateLineage(0, cursor=cursor))
            assert len(msgspec.msgpack.encode(page)) <= 64 * 1024
            seen += [one.name for one in page.entries]
            cursor = page.next
            if not cursor:
                break
            assert cursor == f"{page.entries[-1].name}@{page.entries[-1].version}"
        assert seen == [one.handle.name for one in states.page]


async def test_versions_are_paged_to_the_first() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        seen, cursor = [], ""
        while True:
            page = await ask(client, wire.StateList(0, versions_of="a", cursor=cursor, limit=2))
            seen += [one.version for one in page.states]
            cursor = page.next
            if not cursor:
                break
        assert seen == [5, 4, 3, 2, 1]


async def test_a_log_that_would_not_fit_a_frame_comes_in_parts() -> None:
    states = ScriptedStates()
    records = [info_of("a", n).version for n in range(40, 0, -1)]
    parameters = {"text": "x" * 5000}
    states.log_records = [
        replace(one, provenance=replace(one.provenance, parameters=parameters)) for one in records
    ]
    async with serving_states(states, max_frame_bytes=64 * 1024) as rig:
        client = await rig.client()
        seen, before = [], 0
        while True:
            log = await ask(client, wire.StateLog(0, "a", before=before))
            assert isinstance(log, StateText)
            seen += [one["version"] for one in msgspec.json.decode(log.text)]
            before = log.next
            if not before:
                break
        assert seen == list(range(40, 0, -1))


async def test_what_fits_no_frame_is_refused_and_the_connection_goes_on() -> None:
    states = ScriptedStates()
    (record,) = [info_of("a", 1).version]
    parameters = {"text": "x" * 70_000}
    states.log_records = [
        replace(record, provenance=replace(record.provenance, parameters=parameters))
    ]
    async with serving_states(states, max_frame_bytes=64 * 1024) as rig:
        client = await rig.client()
        failed = await refusal(client, wire.StateLog(0, "a"))
        assert failed.code == ErrorCode.INVALID_PARAMETER
        assert isinstance(await ask(client, wire.StateGet(0, "a")), StateVersions)


# --- tasks --------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "call"), EACH)
async def test_cancel_ends_an_operation_with_one_answer(message: Any, call: str) -> None:
    states = ScriptedStates()
    states.waits.add(call)
    async with serving_states(states) as rig:
        client = await rig.client()
        lane = client.wire.new_request_id()
        client.send(numbered(message, lane))
        await until(lambda: states.n_waiting == 1)
        client.send(Cancel(lane), Cancel(lane))
        answer = await reply(client, lane)
        assert (answer.code, answer.retryable) == (ErrorCode.CANCELLED, False)
        assert states.cancelled == [call]
        await rig.assert_idle()
        states.waits.clear()
        client.send(numbered(message, lane))
        assert (await reply(client, lane)) is not None


@pytest.mark.parametrize(("message", "call"), EACH)
async def test_cancel_in_the_same_read_is_answered_too(message: Any, call: str) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(numbered(message, 7), Cancel(7))
        assert (await reply(client, 7)).code == ErrorCode.CANCELLED
        assert call not in [one[0] for one in rig.states.asked]
        await rig.assert_idle()


@pytest.mark.parametrize(("message", "call"), EACH)
async def test_a_connection_that_goes_takes_its_operations_along(message: Any, call: str) -> None:
    states = ScriptedStates()
    states.waits.add(call)
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(numbered(message, 1))
        await until(lambda: states.n_waiting == 1)
        client.abort()
        await until(lambda: states.n_waiting == 0)
        assert states.cancelled == [call]
        await rig.assert_idle()


async def test_what_a_connection_was_moving_stays_when_it_goes() -> None:
    async with serving_states() as rig:
        client, other = await rig.client(), await rig.client()
        for name in ("a", "b", "c"):
            await ask(client, wire.MigrateBegin(0, name))
        await ask(client, wire.MigrateEnd(0, "b", False))
        await ask(other, wire.MigrateEnd(0, "c", True, "tcp://h:1", "c", 1))
        client.abort()
        await until(lambda: rig.states.asked[-1] == ("migrate_end", "local", "a", None))
        assert len(rig.states.asked) == 6
        await rig.assert_idle()


async def test_operations_run_side_by_side() -> None:
    states = ScriptedStates()
    states.waits.add("replay")
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(wire.StateReplay(900, "a"))
        assert isinstance(await ask(client, wire.StateGet(0, "a")), StateVersions)
        assert states.n_waiting == 1


async def test_as_many_operations_as_may_be_of_a_connection() -> None:
    states = ScriptedStates()
    states.waits.add("get")
    async with serving_states(states) as rig:
        client = await rig.client()
        for lane in range(1, OPERATIONS_PER_CONNECTION + 1):
            client.send(wire.StateGet(lane, "a"))
        await until(lambda: states.n_waiting == OPERATIONS_PER_CONNECTION)
        client.send(wire.StateGet(1000, "a"))
        failed = await reply(client, 1000)
        assert (failed.code, failed.retryable) == (ErrorCode.QUEUE_FULL, True)
        client.send(Cancel(1))
        await reply(client, 1)
        client.send(wire.StateGet(1000, "a"))
        await until(lambda: states.n_waiting == OPERATIONS_PER_CONNECTION)


async def test_as_many_operations_as_may_be_of_a_tenant() -> None:
    states = ScriptedStates()
    states.waits.add("get")
    keys = (ApiKey.of("blue-key", "blue"), ApiKey.of("red-key", "red"))
    async with serving_states(states, api_keys=keys) as rig:
        for _ in range(OPERATIONS_PER_TENANT // OPERATIONS_PER_CONNECTION):
            client = await rig.client("red-key")
            for lane in range(1, OPERATIONS_PER_CONNECTION + 1):
                client.send(wire.StateGet(lane, "a"))
        await until(lambda: states.n_waiting == OPERATIONS_PER_TENANT)
        another = await rig.client("red-key")
        assert (await refusal(another, wire.StateGet(0, "a"))).code == ErrorCode.QUEUE_FULL
        blue = await rig.client("blue-key")
        blue.send(wire.StateGet(1, "a"))
        await until(lambda: states.n_waiting == OPERATIONS_PER_TENANT + 1)


async def test_a_drain_waits_for_operations_and_then_ends_them() -> None:
    states = ScriptedStates()
    states.waits.add("replay")
    async with serving_states(states, drain_timeout_s=0.05) as rig:
        client = await rig.client()
        client.send(wire.StateReplay(7, "a"))
        await until(lambda: states.n_waiting == 1)
        draining = asyncio.create_task(rig.server.drain())
        answer = await reply(client, 7)
        assert answer.code == ErrorCode.CANCELLED
        await draining
        assert rig.server.n_operations == 0


async def test_the_end_of_a_server_waits_for_what_it_has_cancelled() -> None:
    states = ScriptedStates()
    states.waits.add("replay")
    states.end_s = 0.1
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(wire.StateReplay(7, "a"))
        await until(lambda: states.n_waiting == 1)
        await rig.server.close()
        assert states.cancelled == ["replay"]
        assert states.n_waiting == 0
