"""Embed through a server, up to what a client is told."""

import struct

import pytest
from wkvm_protocol.messages import Cancel, Embed, Embedding, EndReason, pack_ids, unpack_floats

from tests.fakes import absorb, hidden_of
from tests.server.harness import RawClient, Rig, serving
from wkvm.core.plan import POOLED_UNIT
from wkvm.core.sampling import Pooling
from wkvm.server.embeddings import EmbeddingSum

TEXT = [1, 2, 3, 0, 9, 9, 4]


async def dial(rig: Rig) -> RawClient:
    client = await rig.connect()
    hello = await client.hello(features=["embed"])
    assert hello.features == ("embed",)
    return client


def hidden_states(ids: list[int]) -> list[float]:
    state, told = 0, list[float]()
    for token_id in ids:
        state = absorb(state, token_id)
        told.append(hidden_of(state))
    return told


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("n_ids", [1, 7, 64, 65, 1000])
async def test_the_vector_is_of_the_hidden_states_however_long_the_text_is(
    pooling: str, n_ids: int
) -> None:
    ids = [7 * at % 61 for at in range(n_ids)]
    hidden = hidden_states(ids)
    expected = hidden[-1] if pooling == "last" else sum(hidden) / n_ids
    async with serving() as rig:
        client = await dial(rig)
        lane = client.wire.new_request_id()
        client.send(Embed(lane, pack_ids(ids), pooling))
        answer = await client.answer(lane)
        (vector,) = answer.embeddings
        assert list(unpack_floats(vector.vector)) == pytest.approx([expected], abs=1e-6)
        (end,) = answer.ends.values()
        assert (end.reason, end.stop_id) == (EndReason.LENGTH, None)
        assert (end.n_prompt, end.n_output, end.first_token_us) == (n_ids, 0, 0)
        await rig.assert_idle()


async def test_a_text_without_ids_and_a_pooling_that_is_none_are_refused() -> None:
    async with serving() as rig:
        client = await dial(rig)
        for message, field in (
            (Embed(1, b""), "prompt"),
            (Embed(2, pack_ids([1]), "middle"), "pooling"),
            (Embed(3, pack_ids([2**31])), "prompt"),
        ):
            client.send(message)
            failed = (await client.answer(message.request_id)).failed
            assert failed is not None
            assert (failed.retryable, failed.field) == (False, field)
        await rig.assert_idle()


async def test_what_needs_a_recurrence_is_refused_by_a_model_without_one() -> None:
    async with serving() as rig:
        client = await dial(rig)
        client.send(Embed(1, pack_ids(TEXT), "state"))
        failed = (await client.answer(1)).failed
        assert failed is not None
        assert failed.field == "pooling"
        client.send(Embed(2, pack_ids(TEXT)))
        assert len((await client.answer(2)).embeddings) == 1
        await rig.assert_idle()


async def test_one_that_is_cancelled_has_no_vector() -> None:
    async with serving() as rig:
        client = await dial(rig)
        client.send(Embed(1, pack_ids([1] * 200_000), "mean"), Cancel(1))
        answer = await client.answer(1)
        (end,) = answer.ends.values()
        assert (end.reason, answer.embeddings) == (EndReason.CANCELLED, [])
        await rig.assert_idle()


def test_a_mean_does_not_depend_on_where_it_was_cut() -> None:
    counts = [2**40 + 1, -3, 2**60, 7]

    def mean(*cuts: int) -> Embedding | None:
        total = EmbeddingSum(Pooling.MEAN, len(counts))
        for start, end in zip((0, *cuts), (*cuts, len(counts)), strict=True):
            total.add(struct.pack("=q", sum(counts[start:end])))
        return total.message(1)

    assert mean() == mean(1) == mean(1, 2, 3)
    whole = mean()
    assert whole is not None
    exact = sum(counts) * POOLED_UNIT / len(counts)
    assert list(unpack_floats(whole.vector)) == pytest.approx([exact])
    assert EmbeddingSum(Pooling.MEAN, 1).message(1) is None
