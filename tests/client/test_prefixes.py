"""Hints of prompts on both clients: what is sent, to whom, and what comes back."""

import pytest
from wkvm_client.errors import InvalidParameterError
from wkvm_protocol.messages import Generate, PromptHint, Reused, pack_ids

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer
from tests.client.scripts import connected

FEATURES = ("prefix",)


async def test_what_is_known_of_a_prompt_goes_before_it(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=FEATURES)
    await driver.generate([1, 2, 3], borders=[2], cache_salt="é")
    hint = await peer.next(PromptHint)
    request = await peer.next(Generate)
    assert hint == PromptHint(request.request_id, pack_ids([2]), "é")


async def test_where_nothing_is_known_nothing_is_said(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=FEATURES)
    await driver.generate([1, 2, 3])
    await peer.next(Generate)


async def test_a_server_that_has_no_use_for_it_is_told_nothing(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server, features=())
    await driver.generate([1, 2, 3], borders=[2], cache_salt="s")
    await peer.next(Generate)


async def test_a_completion_says_what_was_not_computed(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=FEATURES)
    stream = await driver.generate([1, 2, 3], n=2)
    request = await peer.next(Generate)
    peer.send(Reused(request.request_id, 1, 2))
    peer.end(request.request_id, choice=0)
    peer.end(request.request_id, choice=1)
    first, second = await driver.completions(stream)
    assert (first.n_reused, first.cached_tokens) == (0, 0)
    assert (second.n_reused, second.cached_tokens) == (2, 2)


@pytest.mark.parametrize("salt", ["s" * 257, "\ud800"])
async def test_a_salt_that_cannot_be_sent_is_refused_here(
    driver: Driver, server: FakeServer, salt: str
) -> None:
    await connected(driver, server, features=FEATURES)
    with pytest.raises(InvalidParameterError) as caught:
        await driver.generate([1], cache_salt=salt)
    assert caught.value.field == "cache_salt"
