"""One script of requests, on both clients."""

import asyncio
import math
import socket
from typing import Any

import pytest
from wkvm_client import EndReason, TokenLogprobs, TopLogprob
from wkvm_client.errors import (
    EmptyPromptError,
    InvalidParameterError,
    RequestTooLargeError,
    TokenOutOfRangeError,
    TooManyLanesError,
)
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    Cancel,
    Generate,
    GoAway,
    Logprobs,
    Ping,
    Pong,
    Sampling,
    Stats,
    StatsReply,
    pack_floats,
    pack_ids,
    unpack_ids,
)

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer, Peer, answer
from tests.client.scripts import connected, opened


async def test_ids_come_in_order_and_then_the_completion(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    for token_id in (7, 8, 9):
        peer.tokens([request.request_id], [token_id])
    peer.end(request.request_id, reason=EndReason.STOP, stop_id=1, n_output=3)
    assert await driver.take(stream) == [7, 8, 9]
    completion = await driver.completion(stream)
    assert completion.ids == [7, 8, 9]
    assert completion.reason is EndReason.STOP
    assert completion.stop_id == 1
    assert (completion.n_prompt, completion.n_output) == (3, 3)
    timings = completion.timings
    # As close as a float can be, so that it is printed as it was measured.
    assert (timings.queue_s, timings.first_token_s, timings.total_s) == (0.001, 0.002, 0.015329)
    assert completion.logprobs is None
    assert completion.prompt_logprobs is None


async def test_each_id_is_there_when_its_frame_is(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    steps = await driver.iterate(stream)
    for token_id in (7, 8):
        waiting = asyncio.create_task(steps.next())
        peer.tokens([request.request_id], [token_id])
        assert await waiting == token_id
    peer.end(request.request_id)
    assert await steps.next() is None


async def test_the_server_introduces_itself(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server)
    assert driver.client.server.model == "fake-model"
    assert driver.client.server.vocab_size == 65536
    assert driver.client.eos_ids == (0, 1)


async def test_a_key_goes_into_hello(driver: Driver, server: FakeServer) -> None:
    connecting = asyncio.create_task(driver.connect(server.address, api_key="secret"))
    peer = await server.peer()
    hello = await peer.hello()
    await connecting
    assert hello.api_key == "secret"


FIELDS: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "penalty_decay": 0.996,
    "ignore_eos": True,
    "min_tokens": 2,
    "max_tokens": 9,
    "logprobs": 3,
    "prompt_logprobs": 0,
    "seed": 2**64 - 1,
    "n": 2,
}
PACKED: dict[str, Any] = {
    "logit_bias": {5: 1.5, 6: -2.0},
    "allowed_ids": [5, 6, 7],
    "stop_ids": (1, 2),
}


async def test_every_field_of_sampling_has_a_keyword(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    await driver.generate(range(3, 6), **FIELDS, **PACKED, credit=64, timeout_s=1.5, priority=-1)
    request = await peer.next(Generate)
    expected = Sampling(
        **FIELDS,
        bias_ids=pack_ids([5, 6]),
        bias_values=pack_floats([1.5, -2.0]),
        allowed_ids=pack_ids([5, 6, 7]),
        stop_ids=pack_ids([1, 2]),
    )
    assert request.sampling == expected
    assert list(unpack_ids(request.prompt)) == [3, 4, 5]
    assert (request.credit, request.timeout_ms, request.priority) == (64, 1500, -1)
    told = {"bias_ids", "bias_values", "allowed_ids", "stop_ids", *FIELDS}
    assert told == set(Sampling.__struct_fields__), "a field without a keyword"


async def test_defaults_are_those_of_the_protocol(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    _, request = await opened(driver, peer)
    assert request.sampling == Sampling()
    assert (request.timeout_ms, request.priority) == (0, 0)


async def test_lanes_end_in_any_order(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    opened_lanes = [await opened(driver, peer) for _ in range(3)]
    lanes = [request.request_id for _, request in opened_lanes]
    assert len(set(lanes)) == 3
    peer.tokens(lanes, [10, 20, 30])
    peer.tokens([lanes[2], lanes[0]], [31, 11])
    for i in (2, 0, 1):
        peer.end(lanes[i])
    completions = [await driver.completion(stream) for stream, _ in opened_lanes]
    assert [completion.ids for completion in completions] == [[10, 11], [20], [30, 31]]


async def test_several_ids_of_a_lane_in_one_frame(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    (first, one), (second, two) = [await opened(driver, peer) for _ in range(2)]
    peer.tokens([one.request_id, two.request_id], [1, 2, 3, 4], counts=[3, 1])
    assert await driver.read(first) == [1, 2, 3]
    assert await driver.read(second) == [4]


async def test_choices_are_kept_apart(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, n=2)
    lane = request.request_id
    peer.tokens([lane, lane], [10, 20], choices=[0, 1])
    peer.tokens([lane], [21], choices=[1])
    peer.end(lane, choice=1, n_output=2)
    peer.end(lane, choice=0, n_output=1)
    assert await driver.take(stream.choices[1]) == [20, 21]
    completions = await driver.completions(stream)
    assert [(c.choice, c.ids) for c in completions] == [(0, [10]), (1, [20, 21])]


async def test_a_stream_of_several_choices_is_not_read_as_one(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, _ = await opened(driver, peer, n=2)
    with pytest.raises(ValueError, match="2 choices"):
        await driver.read(stream)


async def test_logprobs_stand_beside_their_ids(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, logprobs=2, prompt_logprobs=0)
    lane = request.request_id
    peer.send(
        Logprobs(
            lane, 0, True, 1, 0, pack_ids([2, 3]), pack_floats([-1, -2]), pack_ids([1, 4]), b"", b""
        )
    )
    for index, token_id in enumerate((7, 8)):
        peer.send(
            Logprobs(
                request_id=lane,
                choice=0,
                of_prompt=False,
                first=index,
                n_top=2,
                ids=pack_ids([token_id]),
                logprobs=pack_floats([-0.5]),
                ranks=pack_ids([1]),
                top_ids=pack_ids([token_id, 9]),
                top_logprobs=pack_floats([-0.5, -1.5]),
            )
        )
        peer.tokens([lane], [token_id])
    assert (await driver.read(stream))[0] == 7
    assert stream.logprobs[0].token_id == 7
    peer.end(lane)
    completion = await driver.completion(stream)
    assert completion.logprobs == [
        TokenLogprobs(t, -0.5, 1, (TopLogprob(t, -0.5), TopLogprob(9, -1.5))) for t in (7, 8)
    ]
    assert completion.prompt_logprobs == [
        TokenLogprobs(2, -1.0, 1, ()),
        TokenLogprobs(3, -2.0, 4, ()),
    ]


async def test_prompt_logprobs_of_every_choice_count_once(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, n=2, prompt_logprobs=0)
    lane = request.request_id
    for choice in (0, 1):
        peer.send(
            Logprobs(
                lane, choice, True, 1, 0, pack_ids([2]), pack_floats([-1]), pack_ids([1]), b"", b""
            )
        )
        peer.end(lane, choice=choice)
    await driver.completions(stream)
    assert [entry.token_id for entry in stream.prompt_logprobs] == [2]


async def test_no_tokens_at_all_is_a_completion(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, max_tokens=0)
    peer.end(request.request_id)
    assert (await driver.completion(stream)).ids == []
    assert await driver.read(stream) == []


async def test_a_failed_lane_raises_after_its_ids_and_leaves_the_others(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    bad, bad_request = await opened(driver, peer)
    good, good_request = await opened(driver, peer)
    peer.tokens([bad_request.request_id], [5])
    peer.fail(bad_request.request_id, ErrorCode.EMPTY_PROMPT, field="prompt", retry_ms=7)
    assert await driver.read(bad) == [5]
    for _ in range(2):
        with pytest.raises(EmptyPromptError) as raised:
            await driver.read(bad)
    with pytest.raises(EmptyPromptError):
        await driver.completion(bad)
    error = raised.value
    assert (error.code, error.field) == (ErrorCode.EMPTY_PROMPT, "prompt")
    assert (error.retryable, error.retry_after_ms) == (False, 7)
    peer.end(good_request.request_id)
    assert (await driver.completion(good)).reason is EndReason.LENGTH


async def test_a_cancelled_stream_ends_as_the_server_says(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    await driver.cancel(stream)
    await driver.cancel(stream)
    assert (await peer.next(Cancel)).request_id == request.request_id
    peer.tokens([request.request_id], [4])
    peer.end(request.request_id, reason=EndReason.CANCELLED)
    completion = await driver.completion(stream)
    assert completion.reason is EndReason.CANCELLED
    assert completion.ids == [4]
    await driver.cancel(stream)
    await peer.nothing()


async def test_breaking_out_of_the_loop_cancels(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    peer.tokens([request.request_id], [4])
    assert await driver.take(stream, 1) == [4]
    assert (await peer.next(Cancel)).request_id == request.request_id


async def test_a_loop_that_ran_to_the_end_cancels_nothing(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    peer.end(request.request_id)
    await driver.take(stream)
    await peer.nothing()


async def test_leaving_the_block_cancels(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    await driver.leave(stream)
    assert (await peer.next(Cancel)).request_id == request.request_id


async def test_reading_in_pieces_cancels_nothing(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    peer.tokens([request.request_id], [4])
    assert await driver.read(stream) == [4]
    await peer.nothing()


async def test_leaving_one_choice_leaves_the_other(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, n=2)
    lane = request.request_id
    peer.tokens([lane, lane], [1, 2], choices=[0, 1])
    await driver.take(stream.choices[0], 1)
    await peer.nothing()
    await driver.take(stream.choices[1], 1)
    assert (await peer.next(Cancel)).request_id == lane


async def test_ping_measures_seconds(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    pinging = asyncio.create_task(driver.ping())
    peer.send(Pong((await peer.next(Ping)).nonce))
    assert 0 < await pinging < 5


async def test_a_ping_is_answered_with_its_nonce(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    reading = asyncio.create_task(driver.completion(stream))
    peer.send(Ping(77))
    assert (await peer.next(Pong)).nonce == 77
    peer.end(request.request_id)
    await reading


async def test_stats_come_by_name(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    asking = asyncio.create_task(driver.stats())
    query = await peer.next(Stats)
    peer.send(StatsReply(query.request_id, {"steps": 12}))
    assert await asking == {"steps": 12}


async def test_stats_can_be_refused(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    asking = asyncio.create_task(driver.stats())
    peer.fail((await peer.next(Stats)).request_id, ErrorCode.INVALID_PARAMETER)
    with pytest.raises(InvalidParameterError):
        await asking


@pytest.mark.parametrize(
    ("options", "field", "kind"),
    [
        ({"temperature": "hot"}, "temperature", InvalidParameterError),
        ({"temperature": 2**70}, "temperature", InvalidParameterError),
        ({"seed": 2**64}, "seed", InvalidParameterError),
        ({"max_tokens": 1.5}, "max_tokens", InvalidParameterError),
        ({"n": 10**9}, "n", InvalidParameterError),
        ({"stop_ids": [-1]}, "stop_ids", TokenOutOfRangeError),
        ({"stop_ids": [1.5]}, "stop_ids", InvalidParameterError),
        ({"allowed_ids": [2**32]}, "allowed_ids", TokenOutOfRangeError),
        ({"logit_bias": {1: "much"}}, "logit_bias", InvalidParameterError),
        ({"credit": 0}, "credit", InvalidParameterError),
        ({"timeout_s": 0}, "timeout_s", InvalidParameterError),
        ({"timeout_s": math.nan}, "timeout_s", InvalidParameterError),
        ({"priority": "high"}, "priority", InvalidParameterError),
        ({"priority": 2**64}, "priority", InvalidParameterError),
    ],
)
async def test_what_cannot_be_sent_is_refused_and_the_next_request_is_unaffected(
    driver: Driver,
    server: FakeServer,
    options: dict[str, Any],
    field: str,
    kind: type[Exception],
) -> None:
    peer = await connected(driver, server)
    with pytest.raises(kind) as raised:
        await driver.generate([1], **options)
    assert getattr(raised.value, "field") == field  # noqa: B009 it is typed as Exception
    answering = asyncio.create_task(answer(peer, [5]))
    assert (await driver.completion(await driver.generate([1]))).ids == [5]
    await answering


async def test_a_prompt_that_fits_no_frame_is_refused(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    with pytest.raises(RequestTooLargeError) as raised:
        await driver.generate([1] * (1 << 18))
    assert raised.value.n_bytes > raised.value.limit == 1 << 20
    await peer.nothing()


async def test_values_are_the_servers_to_judge(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    _, request = await opened(driver, peer, top_p=math.nan, n=-3)
    assert math.isnan(request.sampling.top_p)
    assert request.sampling.n == -3


async def test_no_more_lanes_than_the_server_said(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, max_lanes=2)
    first, request = await opened(driver, peer)
    await opened(driver, peer)
    with pytest.raises(TooManyLanesError) as raised:
        await driver.generate([1])
    assert raised.value.retryable
    peer.end(request.request_id)
    await driver.completion(first)
    await opened(driver, peer)


async def test_a_request_id_is_not_used_again_before_its_end(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    _, first = await opened(driver, peer)
    # as after 2^32 requests
    core_of(driver)._wire._last_request_id = 2**32 - 1
    stream, second = await opened(driver, peer)
    assert second.request_id == first.request_id + 1
    peer.end(second.request_id)
    await driver.completion(stream)
    core_of(driver)._wire._last_request_id = 2**32 - 1
    _, third = await opened(driver, peer)
    assert third.request_id == second.request_id


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_thousands_of_requests_leave_nothing_behind(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)

    async def serve() -> None:
        for _ in range(2000):
            await answer(peer, [5])

    serving = asyncio.create_task(serve())
    for _ in range(2000):
        stream = await driver.generate([1], timeout_s=60)
        assert (await driver.completion(stream)).ids == [5]
    await serving
    core = core_of(driver)
    assert not core._lanes
    assert not core._lanes._first_tracks
    assert len(core._wire.lanes) == 0


async def test_from_socket_speaks_over_one_end_of_a_pair(
    driver: Driver, server: FakeServer
) -> None:
    ours, theirs = socket.socketpair()
    connecting = asyncio.create_task(driver.from_socket(ours))
    peer = Peer(*await asyncio.open_unix_connection(sock=theirs))
    server.peers.append(peer)
    await peer.hello()
    await connecting
    answering = asyncio.create_task(answer(peer, [5]))
    assert (await driver.completion(await driver.generate([1]))).ids == [5]
    await answering
    peer.send(GoAway())


def core_of(driver: Driver) -> Any:
    return driver.client.connections.link.core
