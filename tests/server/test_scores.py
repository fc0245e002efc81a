"""Score through a server, up to what a client is told."""

import pytest
from wkvm_protocol.messages import (
    Cancel,
    EndReason,
    Generate,
    Sampling,
    Score,
    pack_ids,
    unpack_ids,
)

from tests.server.harness import Answer, RawClient, Rig, serving

TEXT = [1, 2, 3, 0, 9, 9, 4]


async def dial(rig: Rig) -> RawClient:
    client = await rig.connect()
    hello = await client.hello(features=["score"])
    assert hello.features == ("score",)
    return client


async def score(client: RawClient, path: str, ids: list[int] = TEXT, n_top: int = 1) -> Answer:
    lane = client.wire.new_request_id()
    client.send(Score(lane, pack_ids(ids), path, n_top))
    return await client.answer(lane)


@pytest.mark.parametrize("path", ["chunked", "decode"])
async def test_log_probabilities_come_in_order_and_no_ids(path: str) -> None:
    async with serving() as rig:
        client = await dial(rig)
        answer = await score(client, path)
        assert answer.failed is None
        assert answer.ids == {}
        position, told = 1, list[int]()
        for message in answer.logprobs:
            assert (message.of_prompt, message.choice, message.n_top) == (True, 0, 1)
            assert message.first == position
            ids = list(unpack_ids(message.ids))
            position += len(ids)
            told += ids
        assert told == TEXT[1:]
        (end,) = answer.ends.values()
        assert (end.reason, end.stop_id) == (EndReason.LENGTH, None)
        assert (end.n_prompt, end.n_output, end.first_token_us) == (7, 0, 0)
        await rig.assert_idle()


async def test_a_text_that_is_decoded_shares_steps_with_other_lanes_and_can_be_cancelled() -> None:
    async with serving() as rig:
        client = await dial(rig)
        scored, other = client.wire.new_request_id(), 77
        client.send(
            Score(scored, pack_ids([1] * 5000), "decode"),
            Generate(
                other, pack_ids([5]), Sampling(temperature=0.0, max_tokens=20, ignore_eos=True)
            ),
        )
        answer = await client.answer(other)
        assert len(answer.ids[0]) == 20
        assert (await client.stats())["output_tokens_total"] >= 2 * 20 - 1
        client.send(Cancel(scored))
        answer = await client.answer(scored)
        (end,) = answer.ends.values()
        assert (end.reason, end.n_prompt, end.n_output) == (EndReason.CANCELLED, 5000, 0)
        await rig.assert_idle()
