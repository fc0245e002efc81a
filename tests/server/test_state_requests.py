"""Requests that go on from states: what is asked of the engine, and what their ends tell."""

from typing import Any

import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    Cancel,
    Credit,
    EndOn,
    EndReason,
    Failed,
    GenerateOn,
    Interrupt,
    Sampling,
    StateMoved,
    StateSnapshot,
    StateVersions,
    pack_ids,
)

from tests.server.harness import serving, until
from tests.server.scripted_states import ScriptedStates
from tests.server.state_rig import (
    ask,
    generate_on,
    numbered,
    refusal,
    rest_of,
    serving_states,
    turn,
)
from wkvm.core import errors as core
from wkvm.core.api_keys import ApiKey
from wkvm.core.grammar import Grammar
from wkvm.core.registry import AckClass, Durability, Ref
from wkvm.core.states import Moved, OnDisconnect, StateEnd

FOR_EVER = 10**6


async def test_a_request_asks_for_what_its_message_says() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        message = GenerateOn(
            0,
            pack_ids([5, 6]),
            Sampling(temperature=0.0, max_tokens=3, seed=9),
            credit=100,
            timeout_ms=5000,
            priority=-2,
            state="a@3",
            save_as="b",
            expected_version=0,
            on_disconnect="hibernate",
            durability="memory",
            want_inline=False,
            checkpoint_every=128,
            replay=True,
            idempotency_key="key",
            received=2,
            grammar_kind="regex",
            grammar="a*",
            tags={"k": "v"},
            expires_in_ms=1000,
        )
        got = await turn(client, message)
        assert isinstance(got.end, EndOn)
        ((_, spec, use),) = rig.states.asked
        assert list(spec.prompt) == [5, 6]
        assert (spec.params.max_tokens, spec.params.seed) == (3, 9)
        assert (spec.tenant, spec.priority, spec.timeout_s) == ("local", -2, 5.0)
        assert spec.credit == 100
        assert spec.grammar == Grammar("regex", "a*")
        assert (use.state, use.inline, use.save_as) == (Ref("a", 3), None, "b")
        assert use.expected_version == 0
        assert use.on_disconnect is OnDisconnect.HIBERNATE
        assert use.durability is Durability.MEMORY
        assert not use.returns_state
        assert use.checkpoint_every == 128
        assert use.keeps_key
        assert (use.idempotency_key, use.received) == ("key", 2)
        assert use.tags == {"k": "v"}
        assert use.expires_at is not None


async def test_what_is_left_out_is_nothing() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        await turn(client, generate_on())
        ((_, spec, use),) = rig.states.asked
        assert spec.grammar is None
        assert spec.credit is None
        assert (use.state, use.inline, use.save_as, use.expected_version) == (None,) * 4
        assert use.on_disconnect is OnDisconnect.CANCEL
        assert (use.durability, use.checkpoint_every, use.idempotency_key) == (None,) * 3
        assert (use.returns_state, use.keeps_key, use.received) == (False, False, 0)
        assert (dict(use.tags), use.expires_at) == ({}, None)


@pytest.mark.parametrize("key", ["blue", "red"])
async def test_the_tenant_of_a_request_is_that_of_the_connection(key: str) -> None:
    keys = (ApiKey.of("blue-key", "blue"), ApiKey.of("red-key", "red"))
    async with serving_states(api_keys=keys) as rig:
        client = await rig.client(f"{key}-key")
        await turn(client, generate_on(state="a"))
        assert rig.states.asked[0][1].tenant == key


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"state": "../a"}, "state"),
        ({"state": "a@0"}, "state"),
        ({"save_as": "a@1"}, "save_as"),
        ({"on_disconnect": "stay"}, "on_disconnect"),
        ({"on_disconnect": "finish"}, "on_disconnect"),
        ({"durability": "tape"}, "durability"),
        ({"expected_version": 1}, "expected_version"),
        ({"checkpoint_every": 64}, "checkpoint_every"),
        ({"checkpoint_every": 63, "save_as": "a"}, "checkpoint_every"),
        ({"grammar_kind": "haiku"}, "grammar"),
        ({"grammar": "a*"}, "grammar"),
        ({"expires_in_ms": 2**63 - 1, "save_as": "a"}, "expires_in_ms"),
    ],
)
async def test_a_value_out_of_range_is_refused(changes: dict[str, Any], field: str) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        failed = await refusal(client, generate_on(**changes))
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, field)
        assert rig.states.asked == []
        assert len((await turn(client, generate_on())).ids) == 4


async def test_a_state_comes_by_name_or_along_and_not_by_both() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        failed = await refusal(client, generate_on(state="a", inline_bytes=10))
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, "inline_bytes")
        await rig.assert_idle()


@pytest.mark.parametrize(
    "error",
    [
        core.StateNotFoundError("a"),
        core.QueueFullError(1, "requests"),
        core.StateMovedError("a", "tcp://h:1", "b@2"),
        RuntimeError("/secret"),
    ],
)
@pytest.mark.parametrize("want_inline", [False, True])
async def test_what_is_refused_at_once_fails_the_lane(error: Exception, want_inline: bool) -> None:
    states = ScriptedStates()
    states.raises["submit"] = error
    async with serving_states(states) as rig:
        client = await rig.client()
        answer = await ask(client, generate_on(want_inline=want_inline))
        if isinstance(error, core.StateMovedError):
            assert isinstance(answer, StateMoved)
            assert (answer.target, answer.state) == ("tcp://h:1", "b@2")
        else:
            assert isinstance(answer, Failed)
            assert "secret" not in answer.message
        await rig.assert_idle()


# --- ends ---------------------------------------------------------------------------------


async def test_an_end_tells_what_came_of_the_state() -> None:
    states = ScriptedStates()
    states.end = StateEnd(
        start=Ref("a", 1),
        ref=Ref("b", 2),
        ack=AckClass.DURABLE,
        cached_tokens=100,
        n_computed=106,
        pending=(33,),
        prompt_left=1,
    )
    async with serving_states(states) as rig:
        client = await rig.client()
        end = (await turn(client, generate_on())).end
        assert (end.reason, end.n_prompt, end.n_output) == (EndReason.LENGTH, 3, 4)
        assert (end.name, end.version, end.ack) == ("b", 2, "durable")
        assert (end.cached_tokens, end.n_computed) == (100, 106)
        assert (end.pending, end.prompt_left, end.target) == (pack_ids([33]), 1, "")


async def test_an_end_of_which_nothing_was_kept_names_nothing() -> None:
    states = ScriptedStates()
    states.end = None
    async with serving_states(states) as rig:
        client = await rig.client()
        end = (await turn(client, generate_on())).end
        assert (end.name, end.version, end.ack, end.target) == ("", 0, "", "")


async def test_a_stream_that_moved_says_where_it_goes_on() -> None:
    states = ScriptedStates()
    states.end = StateEnd(
        ref=Ref("a", 4), moved=Moved(target="tcp://h:1", ref=Ref("b", 2), n_left=7)
    )
    async with serving_states(states) as rig:
        client = await rig.client()
        client.send(numbered(generate_on(max_tokens=FOR_EVER), 7))
        await until(lambda: rig.server.n_requests == 1)
        client.send(Cancel(7))
        end = (await rest_of(client, 7)).end
        assert end.reason is EndReason.MOVED
        assert (end.target, end.name, end.version) == ("tcp://h:1", "b", 2)


@pytest.mark.parametrize("error", [core.StoreFullError(1, 0), core.StaleVersionError("a", 1, 2)])
async def test_a_commit_that_fails_fails_the_lane(error: core.WkvmError) -> None:
    states = ScriptedStates()
    states.error = error
    async with serving_states(states) as rig:
        client = await rig.client()
        got = await turn(client, generate_on(save_as="a"))
        assert isinstance(got.end, Failed)
        assert got.end.code in (ErrorCode.STORE_FULL, ErrorCode.STALE_VERSION)
        await rig.assert_idle()


async def test_choices_of_one_request_end_one_by_one() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        message = GenerateOn(0, pack_ids([5]), Sampling(n=3, max_tokens=2), credit=6, state="a")
        lane = client.wire.new_request_id()
        client.send(numbered(message, lane))
        ends = list[EndOn]()
        while lane in client.wire.lanes or client._received:
            answer = await client.next()
            if isinstance(answer, EndOn):
                ends.append(answer)
        assert sorted(end.choice for end in ends) == [0, 1, 2]
        await rig.assert_idle()


# --- during -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [None, 0, 5])
async def test_interrupt_ends_a_request_and_says_what_stays(keep: int | None) -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(numbered(generate_on(max_tokens=FOR_EVER, save_as="a"), 7))
        await until(lambda: rig.server.n_requests == 1)
        client.send(Interrupt(7, keep), Interrupt(7, keep))
        assert (await rest_of(client, 7)).end.reason is EndReason.CANCELLED
        assert rig.states.asked[1][0] == "interrupt"
        assert rig.states.asked[1][2] == keep
        await rig.assert_idle()


async def test_cancel_is_not_an_interrupt() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(numbered(generate_on(max_tokens=FOR_EVER, save_as="a"), 7))
        await until(lambda: rig.server.n_requests == 1)
        client.send(Cancel(7))
        assert (await rest_of(client, 7)).end.reason is EndReason.CANCELLED
        assert [one[0] for one in rig.states.asked] == ["submit"]


async def test_credit_lets_more_ids_come() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(numbered(generate_on(max_tokens=6, credit=2), 7))
        await until(lambda: rig.server.n_requests == 1)
        client.send(Credit(7, 4))
        got = await rest_of(client, 7)
        assert len(got.ids) == 6


async def test_a_lost_connection_leaves_its_requests_to_their_policy() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        client.send(numbered(generate_on(max_tokens=FOR_EVER, save_as="a"), 7))
        lane = client.start(max_tokens=FOR_EVER)
        await until(lambda: rig.server.n_requests == 2)
        assert lane != 7
        client.abort()
        await rig.assert_idle()
        gone = [one for one in rig.states.asked if one[0] == "disconnected"]
        assert len(gone) == 1  # a Generate is cancelled, and has no policy


async def test_another_lane_takes_a_request_over() -> None:
    states = ScriptedStates()
    async with serving_states(states) as rig:
        first, second = await rig.client(), await rig.client()
        first.send(numbered(generate_on(max_tokens=FOR_EVER, idempotency_key="k"), 7))
        await until(lambda: rig.server.n_requests == 1)
        states.same_id = next(iter(rig.server._dispatcher._choices))
        second.send(numbered(generate_on(max_tokens=FOR_EVER, idempotency_key="k"), 9))
        failed = (await rest_of(first, 7)).end
        assert failed.code == ErrorCode.CANCELLED
        assert rig.server.n_requests == 1
        first.abort()
        second.send(Cancel(9))
        assert (await rest_of(second, 9)).end.reason is EndReason.CANCELLED
        assert [one[0] for one in states.asked if one[0] == "disconnected"] == []
        await rig.assert_idle()


async def test_a_snapshot_names_an_open_lane_of_this_connection() -> None:
    async with serving_states() as rig:
        client, other = await rig.client(), await rig.client()
        client.send(numbered(generate_on(max_tokens=FOR_EVER, save_as="a"), 7))
        await until(lambda: rig.server.n_requests == 1)
        answer = await ask(client, StateSnapshot(0, lane=7, save_as="b"))
        assert isinstance(answer, StateVersions)
        name, tenant, engine_id, keywords = rig.states.asked[-1]
        assert (name, tenant, keywords["save_as"]) == ("snapshot_running", "local", "b")
        assert engine_id in rig.server._dispatcher._choices
        assert (await refusal(other, StateSnapshot(0, lane=7))).field == "lane"
        lane = client.start(max_tokens=FOR_EVER)
        assert (await refusal(client, StateSnapshot(0, lane=lane))).field == "lane"


async def test_requests_with_and_without_states_share_a_connection() -> None:
    async with serving_states() as rig:
        client = await rig.client()
        plain = client.start((1, 2, 3), max_tokens=4)
        lane = client.wire.new_request_id()
        client.send(numbered(generate_on((1, 2, 3)), lane))
        ids = dict[int, list[int]]()
        while client.wire.lanes or client._received:
            message = await client.next()
            if isinstance(message, wire.Tokens):
                pairs = zip(
                    wire.unpack_ids(message.lanes), wire.unpack_ids(message.ids), strict=True
                )
                for one, token_id in pairs:
                    ids.setdefault(one, []).append(token_id)
        assert ids[plain] == ids[lane]
        assert len(ids[lane]) == 4


async def test_a_server_without_states_does_not_offer_them() -> None:
    async with serving() as rig:
        client = await rig.connect()
        hello = await client.hello(features=["states", "score"])
        assert hello.features == ("score",)
