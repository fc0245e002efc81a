"""Grammars on both clients: what is sent, what is refused, and what comes back."""

import json
from typing import Any

import pytest
from wkvm_client import EndReason, Grammar
from wkvm_client.errors import InvalidParameterError, UnsupportedOperationError
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Generate, GenerateConstrained, Sampling, pack_ids

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.client.fake_server import FakeServer
from tests.client.scripts import connected, opened
from tests.server.harness import serving
from tests.server.test_grammars import engine

FEATURES = ("grammar",)
DIGITS = Grammar("regex", "[0-9]+")


async def test_the_message_has_the_grammar_and_all_else(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=FEATURES)
    assert driver.client.server.features == FEATURES
    await driver.generate(
        [1, 2],
        grammar=Grammar("json_schema", '{"const": "ä"}'),
        top_k=5,
        n=2,
        credit=7,
        timeout_s=1.5,
        priority=-1,
    )
    request = await peer.next(GenerateConstrained)
    assert request == GenerateConstrained(
        request_id=request.request_id,
        prompt=pack_ids([1, 2]),
        grammar_kind="json_schema",
        grammar='{"const": "ä"}',
        sampling=Sampling(top_k=5, n=2),
        credit=7,
        timeout_ms=1500,
        priority=-1,
    )


async def test_without_a_grammar_the_message_is_the_old_one(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server, features=FEATURES)
    await opened(driver, peer)
    await driver.generate([1], grammar=None)
    await peer.next(Generate)


async def test_a_complete_output_has_no_stop_id(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=FEATURES)
    stream = await driver.generate([1], grammar=DIGITS)
    request = await peer.next(GenerateConstrained)
    peer.tokens([request.request_id], [51])
    peer.end(request.request_id, reason=EndReason.STOP, n_output=1)
    completion = await driver.completion(stream)
    assert (completion.ids, completion.reason) == ([51], EndReason.STOP)
    assert completion.stop_id is None


async def test_a_server_without_the_feature_is_not_asked(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    with pytest.raises(UnsupportedOperationError) as raised:
        await driver.generate([1], grammar=DIGITS)
    assert raised.value.field == "grammar"
    assert raised.value.code == ErrorCode.UNSUPPORTED_OPERATION
    assert not raised.value.retryable
    await peer.nothing()
    await opened(driver, peer)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", b"a"),  # type: ignore[arg-type]
        Grammar("regex", {"type": "object"}),  # type: ignore[arg-type]
        Grammar(7, "a"),  # type: ignore[arg-type]
        Grammar("k" * 257, "a"),  # type: ignore[arg-type]
        Grammar("regex", "\ud800"),
    ],
)
async def test_a_grammar_that_cannot_be_sent_is_refused(
    driver: Driver, server: FakeServer, grammar: Any
) -> None:
    peer = await connected(driver, server, features=FEATURES)
    with pytest.raises(InvalidParameterError) as raised:
        await driver.generate([1], grammar=grammar)
    assert raised.value.field == "grammar"
    await peer.nothing()


async def test_the_servers_refusal_is_raised_by_the_stream(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server, features=FEATURES)
    stream = await driver.generate([1], grammar=DIGITS)
    request = await peer.next(GenerateConstrained)
    peer.fail(request.request_id, ErrorCode.INVALID_PARAMETER, "grammar")
    with pytest.raises(InvalidParameterError, match="as scripted") as raised:
        await driver.completion(stream)
    assert raised.value.field == "grammar"


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("make", [AioDriver, BlockingDriver], ids=["aio", "blocking"])
async def test_what_streams_from_the_server_follows_the_grammar(
    make: type[AioDriver] | type[BlockingDriver],
) -> None:
    async with serving(engine=engine(), control_key=None) as rig:
        driver: Driver = make()
        await driver.connect(rig.server.addresses[0])
        schema = {"type": "array", "items": {"enum": ["ja", "nein"]}, "minItems": 2, "maxItems": 4}
        grammar = Grammar("json_schema", json.dumps(schema))
        stream = await driver.generate([3, 4], grammar=grammar, seed=2, max_tokens=2000)
        ids = await driver.take(stream)
        value = json.loads(bytes(ids))
        assert 2 <= len(value) <= 4
        assert set(value) <= {"ja", "nein"}
        completion = await driver.completion(stream)
        assert (completion.ids, completion.reason) == (ids, EndReason.STOP)
        stream = await driver.generate([3, 4], grammar=Grammar("regex", "("))
        with pytest.raises(InvalidParameterError, match="unclosed group"):
            await driver.completion(stream)
        await driver.close()
