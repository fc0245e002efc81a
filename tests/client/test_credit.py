"""A consumer that is slow, or gone, bounds what may be on its way to it."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_client.drafts import Draft, draft
from wkvm_client.errors import ClientError
from wkvm_client.lanes import Lane
from wkvm_protocol.messages import Cancel, Credit, Embed, Score

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer
from tests.client.scripts import connected, opened


def make_draft(*, n: int = 1, max_tokens: int, credit: int | None) -> Draft:
    return draft(
        [1],
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        penalty_decay=1.0,
        logit_bias=None,
        allowed_ids=None,
        stop_ids=(),
        ignore_eos=False,
        min_tokens=0,
        max_tokens=max_tokens,
        logprobs=None,
        prompt_logprobs=None,
        seed=None,
        n=n,
        credit=credit,
        timeout_s=None,
        priority=0,
    )


class Granted:
    """What a server may still send on a lane, from the messages alone."""

    def __init__(self, request: Draft) -> None:
        assert not isinstance(request.message, Score | Embed)
        self.credit = request.message.credit
        self.n_grants = 0
        self.lane = Lane(1, request, self)

    def grant(self, lane: Lane, n_ids: int) -> None:
        assert n_ids >= 1
        self.credit += n_ids
        self.n_grants += 1

    def cancel(self, lane: Lane) -> None:
        raise AssertionError("nobody cancels it")

    def interrupt(self, lane: Lane, keep: int | None) -> None:
        raise AssertionError("nobody interrupts it")

    def give_up(self, lane: Lane, error: ClientError) -> None:
        raise AssertionError("nobody gives it up")

    def when_received(self, callback: Callable[[], None]) -> None:
        callback()

    def hook(self, callback: Callable[[], None]) -> Callable[[], None]:
        return callback

    def send(self, choice: int, n_ids: int) -> None:
        assert n_ids <= self.credit
        self.credit -= n_ids
        track = self.lane.tracks[choice]
        for token_id in range(n_ids):
            track.ids.append(token_id)
            if track.hook is not None:
                track.hook()


@given(
    window=st.integers(1, 40),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60),
)
def test_one_choice_never_has_more_than_its_window_outstanding(
    window: int, moves: list[tuple[bool, int]]
) -> None:
    granted = Granted(make_draft(max_tokens=10_000, credit=window))
    track = granted.lane.tracks[0]
    for is_send, n_ids in moves:
        if is_send:
            granted.send(0, min(n_ids, granted.credit))
        else:
            for _ in range(min(n_ids, len(track.ids) - track.n_read)):
                track.n_read += 1
                granted.lane.consumed(1)
        n_unread = len(track.ids) - track.n_read
        assert granted.credit + n_unread <= window
        if n_unread == 0:
            assert granted.credit > 0, "an empty lane that may not be filled"


@given(window=st.integers(1, 40), max_tokens=st.integers(1, 100))
def test_no_more_is_granted_than_can_come(window: int, max_tokens: int) -> None:
    granted = Granted(make_draft(max_tokens=max_tokens, credit=window))
    for _ in range(max_tokens):
        granted.send(0, 1)
        granted.lane.tracks[0].take()
    assert granted.credit <= max(0, window - max_tokens)


@given(
    window=st.integers(1, 20),
    n=st.integers(2, 5),
    favourite=st.integers(0, 4),
    wanted=st.integers(0, 4),
)
def test_a_reader_of_one_choice_is_not_starved_by_the_others(
    window: int, n: int, favourite: int, wanted: int
) -> None:
    granted = Granted(make_draft(n=n, max_tokens=200, credit=window))
    track = granted.lane.tracks[wanted % n]
    woken: list[bool] = []
    track.wait(lambda: woken.append(True))
    # the server prefers another choice for as long as it may
    other = favourite % n if favourite % n != wanted % n else (favourite + 1) % n
    for _ in range(200):
        granted.send(other, 1)
        assert granted.credit > 0 or len(granted.lane.tracks[other].ids) == 200
    granted.send(wanted % n, 1)
    assert woken == [True]


def test_an_unlimited_lane_grants_nothing() -> None:
    granted = Granted(make_draft(max_tokens=1000, credit=None))
    assert granted.credit == 0
    granted.lane.grant_all()
    granted.lane.consumed(500)
    assert granted.credit == 0


def test_grants_beyond_one_message_are_several() -> None:
    granted = Granted(make_draft(n=3, max_tokens=2**31 - 1, credit=5))
    granted.lane.grant_all()
    assert granted.credit == 3 * (2**31 - 1)


@pytest.mark.parametrize("n", [1, 4])
def test_a_limit_that_no_server_takes_costs_few_grants(n: int) -> None:
    granted = Granted(make_draft(n=n, max_tokens=2**64 - 1, credit=1024))
    granted.lane.grant_all()
    assert granted.n_grants <= n + 1


async def test_credit_goes_out_as_ids_are_taken(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, credit=4, max_tokens=100)
    lane = request.request_id
    assert request.credit == 4
    peer.tokens([lane] * 4, [1, 2, 3, 4])
    steps = await driver.iterate(stream)
    assert await steps.next() == 1
    await peer.nothing()
    assert await steps.next() == 2
    assert await peer.next(Credit) == Credit(lane, 2)
    assert await driver.read(stream) == [3, 4]
    assert await peer.next(Credit) == Credit(lane, 2)
    await peer.nothing()


async def test_who_waits_for_the_end_takes_everything(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, credit=4, max_tokens=100, n=2)

    waiting = asyncio.create_task(driver.completions(stream))
    assert await peer.next(Credit) == Credit(request.request_id, 196)
    peer.end(request.request_id, choice=0)
    peer.end(request.request_id, choice=1)
    await waiting


async def test_a_cancelled_lane_grants_nothing(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, credit=2)
    peer.tokens([request.request_id] * 2, [1, 2])
    await driver.cancel(stream)

    await peer.next(Cancel)
    assert await driver.read(stream) == [1, 2]
    await peer.nothing()


@pytest.mark.parametrize("credit", [None, 1024])
async def test_small_requests_need_no_grants(
    driver: Driver, server: FakeServer, credit: int | None
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, credit=credit, max_tokens=64)
    assert request.credit == (credit or 0)
    for token_id in range(64):
        peer.tokens([request.request_id], [token_id])
    peer.end(request.request_id)
    assert await driver.take(stream) == list(range(64))
    await peer.nothing()
