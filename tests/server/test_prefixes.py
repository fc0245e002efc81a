"""Hints of prompts, and what of these was not computed, through a server."""

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    End,
    Generate,
    PromptHint,
    Reused,
    Sampling,
    Tokens,
    pack_ids,
)

from tests.server.harness import RawClient, Rig, serving

PROMPT = [at % 50 + 2 for at in range(300)]
OTHER = [*PROMPT[:150], *reversed(PROMPT)]


async def dial(rig: Rig) -> RawClient:
    client = await rig.connect()
    assert (await client.hello(features=["prefix"])).features == ("prefix",)
    return client


async def n_reused(client: RawClient, prompt: list[int]) -> int:
    """Of a request that is asked now; 0 if nothing was told of it."""
    lane, n = client.start(prompt, max_tokens=2), 0
    while not isinstance(message := await client.next(), End):
        if isinstance(message, Reused):
            assert (message.request_id, message.choice) == (lane, 0)
            n = message.n_tokens
    return n


async def test_what_was_not_computed_is_told_before_the_first_id() -> None:
    async with serving() as rig:
        client = await dial(rig)
        assert await n_reused(client, PROMPT) == 0
        lane = client.start(PROMPT, max_tokens=2)
        told = await client.next()
        assert told == Reused(lane, 0, 256)
        assert isinstance(await client.next(), Tokens)
        await client.answer(lane)
        await rig.assert_idle()


async def test_who_did_not_agree_is_told_nothing() -> None:
    async with serving() as rig:
        client = await rig.connect()
        await client.hello()
        for _ in range(2):
            client.start(PROMPT, max_tokens=2)
            while not isinstance(message := await client.next(), End):
                assert not isinstance(message, Reused)


async def test_a_hint_says_where_messages_end() -> None:
    async with serving() as rig:
        client = await dial(rig)
        lane = client.wire.new_request_id()
        client.send(
            PromptHint(lane, pack_ids([150, 0, 7000])),
            Generate(lane, pack_ids(PROMPT), Sampling(max_tokens=1)),
        )
        await client.answer(lane)
        assert await n_reused(client, OTHER) == 128


async def test_a_hint_is_of_the_next_request_alone_and_of_its_number() -> None:
    async with serving() as rig:
        client = await dial(rig)
        client.send(PromptHint(99, b"", "salt"))
        assert await n_reused(client, PROMPT) == 0
        lane = client.wire.new_request_id()
        client.send(PromptHint(lane, b"", "salt"))
        assert await n_reused(client, PROMPT) == 256, "it has another number, so no salt"


@pytest.mark.parametrize("is_agreed", [False, True])
async def test_a_hint_is_a_violation_without_agreement_and_for_an_open_lane(
    is_agreed: bool,
) -> None:
    async with serving() as rig:
        client = await rig.connect()
        await client.hello(features=["prefix"] if is_agreed else [])
        lane = client.start(max_tokens=10**6, ignore_eos=True, credit=1)
        wire = client.wire._features
        client.wire._features = frozenset({"prefix"})
        client.send(PromptHint(lane))
        client.wire._features = wire
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        await rig.assert_idle()
