"""Requests that are right and requests that are wrong: rows 17 and 18 of the threat table.

After each refusal the same connection and another one go on as before.
"""

from typing import Any

import msgspec
import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    End,
    EndReason,
    Generate,
    Logprobs,
    Sampling,
    Tokens,
    pack_floats,
    pack_ids,
    unpack_ids,
)

from tests.fakes import fake_continuation
from tests.server.harness import VOCAB_SIZE, serving, tcp_config
from wkvm.core.config import EngineConfig
from wkvm.core.sampling import MAX_BIASED_IDS, MAX_LOGPROBS, MAX_N, MAX_STOP_IDS, MAX_TOKENS


async def test_a_request_gets_its_ids_and_one_end() -> None:
    async with serving() as rig:
        client = await rig.client()
        answer = await client.generate((1, 2, 3), max_tokens=6)
        assert answer.ids == {0: fake_continuation((1, 2, 3), 6, VOCAB_SIZE)}
        end = answer.ends[0]
        assert (end.reason, end.n_prompt, end.n_output) == (EndReason.LENGTH, 3, 6)
        assert 0 < end.first_token_us <= end.total_us
        await rig.assert_idle()


async def test_a_stop_id_ends_and_is_reported_apart() -> None:
    expected = fake_continuation((1, 2, 3), 6, VOCAB_SIZE)
    async with serving() as rig:
        client = await rig.client()
        stop = expected[4]
        answer = await client.generate((1, 2, 3), max_tokens=6, stop_ids=pack_ids([stop]))
        assert answer.ids[0] == expected[: expected.index(stop)]
        assert (answer.ends[0].reason, answer.ends[0].stop_id) == (EndReason.STOP, stop)


async def test_lanes_of_one_connection_share_one_message_a_step() -> None:
    async with serving() as rig:
        client = await rig.client()
        lanes = [client.start((lane, 1), max_tokens=8) for lane in range(1, 7)]
        answers = await client.answers(*lanes)
        for lane in lanes:
            assert answers[lane].ids == {0: fake_continuation((lane, 1), 8, VOCAB_SIZE)}


async def test_choices_are_branches_of_one_prompt() -> None:
    async with serving() as rig:
        client = await rig.client()
        answer = await client.generate(n=4, max_tokens=12, temperature=5.0, seed=7)
        assert sorted(answer.ends) == [0, 1, 2, 3]
        assert all(len(ids) == 12 for ids in answer.ids.values())
        assert len({tuple(ids) for ids in answer.ids.values()}) == 4
        again = await client.generate(n=4, max_tokens=12, temperature=5.0, seed=7)
        assert again.ids == answer.ids


async def test_log_probabilities_come_before_their_ids_and_match_them() -> None:
    async with serving() as rig:
        client = await rig.client()
        lane = client.start((1, 2, 3), max_tokens=3, logprobs=2, prompt_logprobs=1)
        announced, of_prompt, received = list[int](), list[int](), list[int]()
        while True:
            message = await client.next()
            if isinstance(message, Logprobs):
                (of_prompt if message.of_prompt else announced).extend(unpack_ids(message.ids))
            elif isinstance(message, Tokens):
                received += unpack_ids(message.ids)
                assert announced == received
            else:
                assert isinstance(message, End)
                assert message.request_id == lane
                break
        assert of_prompt == [2, 3]
        assert received == announced == fake_continuation((1, 2, 3), 3, VOCAB_SIZE)


async def test_max_tokens_0_absorbs_the_prompt_and_ends() -> None:
    async with serving() as rig:
        client = await rig.client()
        answer = await client.generate(max_tokens=0)
        assert answer.ids == {}
        assert (answer.ends[0].reason, answer.ends[0].n_output) == (EndReason.LENGTH, 0)


async def test_an_empty_prompt_is_refused() -> None:
    async with serving() as rig:
        client = await rig.client()
        failed = await client.failure(())
        assert (failed.code, failed.field) == (ErrorCode.EMPTY_PROMPT, "prompt")
        assert not failed.retryable
        await rig.assert_alive()


async def test_a_prompt_beyond_the_model_length_is_refused() -> None:
    async with serving(engine_config=EngineConfig(n_slots=2, max_model_len=10)) as rig:
        client = await rig.client()
        assert (await client.generate((1,) * 6, max_tokens=4)).ends
        failed = await client.failure((1,) * 7, max_tokens=4)
        assert failed.code == ErrorCode.PROMPT_TOO_LONG
        await rig.assert_alive()


def id_fields(token_id: int) -> dict[str, dict[str, Any]]:
    packed = pack_ids([1, token_id])
    return {
        "prompt": {"prompt": (1, token_id, 2)},
        "stop_ids": {"stop_ids": packed},
        "allowed_ids": {"allowed_ids": packed},
        "logit_bias": {"bias_ids": packed, "bias_values": pack_floats([0.5, 0.5])},
    }


@pytest.mark.parametrize("field", id_fields(0))
async def test_an_id_beyond_the_vocabulary_is_refused_in_every_field(field: str) -> None:
    async with serving() as rig:
        client = await rig.client()
        for token_id in (VOCAB_SIZE, 2**31, 2**32 - 1):
            failed = await client.failure(**id_fields(token_id)[field])
            assert (failed.code, failed.field) == (ErrorCode.TOKEN_OUT_OF_RANGE, field)
            assert failed.message == f"{field}: an id is not in [0, {VOCAB_SIZE})"
            await rig.assert_alive()
        assert (await client.generate(**id_fields(VOCAB_SIZE - 1)[field])).ends
        await rig.assert_idle()


PROMPT = (1, 2, 3)

FLOATS = {
    "temperature": (0.0, 100.0),
    "top_p": (None, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (None, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "penalty_decay": (None, 1.0),
}
"""The bounds of each; None where 0 is excluded."""


@pytest.mark.parametrize("field", FLOATS)
async def test_a_number_that_is_not_finite_or_out_of_range_is_refused(field: str) -> None:
    low, high = FLOATS[field]
    below = 0.0 if low is None else low - 1e-6
    async with serving() as rig:
        client = await rig.client()
        for value in (float("nan"), float("inf"), float("-inf"), 1e308, below, high + 1e-3):
            failed = await client.failure(PROMPT, **{field: value})
            assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, field)
            await rig.assert_alive()
        for value in (1e-3 if low is None else low, high):
            assert (await client.generate(PROMPT, **{field: value})).ends
        await rig.assert_idle()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 100.1, -100.1])
async def test_a_bias_that_is_not_finite_or_out_of_range_is_refused(value: float) -> None:
    async with serving() as rig:
        client = await rig.client()
        failed = await client.failure(bias_ids=pack_ids([3]), bias_values=pack_floats([value]))
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, "logit_bias")
        await rig.assert_alive()


INTEGERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "top_k": (0, 2**31 - 1, {}),
    "min_tokens": (0, 8, {"max_tokens": 8}),
    "max_tokens": (0, MAX_TOKENS, {}),
    "logprobs": (0, MAX_LOGPROBS, {}),
    "prompt_logprobs": (0, MAX_LOGPROBS, {}),
    "seed": (0, 2**64 - 1, {}),
    "n": (1, MAX_N, {"max_tokens": 1}),
}


@pytest.mark.parametrize("field", INTEGERS)
async def test_integers_are_taken_up_to_their_limits_and_no_further(field: str) -> None:
    low, high, others = INTEGERS[field]
    async with serving(engine_config=EngineConfig(n_slots=64)) as rig:
        client = await rig.client()
        stop = {"stop_ids": pack_ids(range(VOCAB_SIZE))} if field == "max_tokens" else {}
        for value in (low, high - 1, high):
            answer = await client.generate(**{**others, **stop, field: value})
            assert answer.failed is None
            assert len(answer.ends) == (value if field == "n" else 1)
        # a larger seed does not fit the format
        for value in [low - 1] if field == "seed" else [low - 1, high + 1, 2**63 - 1]:
            failed = await client.failure(**{**others, field: value})
            assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, field)
            await rig.assert_alive()
        await rig.assert_idle()


@pytest.mark.parametrize(
    ("field", "limit", "make"),
    [
        ("stop_ids", MAX_STOP_IDS, lambda n: {"stop_ids": pack_ids([1] * n)}),
        (
            "logit_bias",
            MAX_BIASED_IDS,
            lambda n: {"bias_ids": pack_ids([1] * n), "bias_values": pack_floats([0.0] * n)},
        ),
    ],
)
async def test_lists_are_taken_up_to_their_limits_and_no_further(
    field: str, limit: int, make: Any
) -> None:
    async with serving() as rig:
        client = await rig.client()
        for n in (limit - 1, limit):
            assert (await client.generate(**make(n))).ends
        failed = await client.failure(**make(limit + 1))
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, field)
        await rig.assert_alive()


async def test_allowed_ids_that_come_twice_are_kept_once() -> None:
    config = EngineConfig(n_slots=1, max_queued_tokens=4)
    async with serving(engine_config=config) as rig:
        client = await rig.client()
        client.start(max_tokens=10**9, ignore_eos=True)
        await client.next_of(Tokens)
        client.start((1,), allowed_ids=pack_ids([5, 6, 5, 6, 5]))
        assert (await client.stats())["n_queued"] == 1


async def test_empty_allowed_ids_are_refused() -> None:
    async with serving() as rig:
        client = await rig.client()
        failed = await client.failure(allowed_ids=b"")
        assert (failed.code, failed.field) == (ErrorCode.INVALID_PARAMETER, "allowed_ids")


async def test_bad_requests_among_good_ones_change_nothing_for_the_good() -> None:
    bad: list[dict[str, Any]] = [
        {"temperature": float("nan")},
        {"n": 10**9},
        {"prompt": (VOCAB_SIZE,)},
        {"prompt": ()},
    ]
    async with serving() as rig:
        client = await rig.client()
        good = list[tuple[int, tuple[int, int]]]()
        lanes = list[int]()
        for number, one in enumerate(bad):
            prompt = (number + 1, 9)
            good.append((client.start(prompt, max_tokens=9), prompt))
            lanes.append(client.start(**one))
        answers = await client.answers(*lanes, *(lane for lane, _ in good))
        assert all(answers[lane].failed is not None for lane in lanes)
        for lane, prompt in good:
            assert answers[lane].ids == {0: fake_continuation(prompt, 9, VOCAB_SIZE)}


async def test_choices_the_queue_has_no_room_for_refuse_the_lane_and_count_nowhere() -> None:
    async with serving(engine_config=EngineConfig(n_slots=2, max_queue=1)) as rig:
        client = await rig.client()
        failed = await client.failure(n=4, max_tokens=10**6)
        assert failed.code == ErrorCode.QUEUE_FULL
        assert failed.retryable
        assert failed.retry_after_ms > 0
        # nothing else came for that lane, and nothing of it was taken
        stats = await client.stats()
        assert (stats["requests_total"], stats["cancelled_total"]) == (0, 0)
        await rig.assert_idle()
        assert (await client.generate(n=3)).ends.keys() == {0, 1, 2}
        await rig.assert_alive()


async def test_a_lane_too_many_is_refused_and_the_others_go_on() -> None:
    async with serving(tcp_config(max_lanes=3)) as rig:
        client = await rig.client()
        lanes = [client.start((i + 1,), max_tokens=50) for i in range(4)]
        answers = await client.answers(*lanes)
        failed = answers[lanes[3]].failed
        assert failed is not None
        assert failed.code == ErrorCode.TOO_MANY_LANES
        for i, lane in enumerate(lanes[:3]):
            assert answers[lane].ids == {0: fake_continuation((i + 1,), 50, VOCAB_SIZE)}


async def test_a_timeout_ends_a_request() -> None:
    async with serving(engine_config=EngineConfig(n_slots=1)) as rig:
        client = await rig.client()
        lane = client.start(max_tokens=10**6, timeout_ms=30)
        assert (await client.answer(lane)).ends[0].reason == EndReason.TIMED_OUT
        await rig.assert_idle()


async def test_an_open_lane_used_again_ends_the_connection() -> None:
    async with serving() as rig:
        client = await rig.client()
        client.start(lane=5, max_tokens=10**6)
        payload = Generate(5, pack_ids([1]), Sampling())
        client.write(encode_frame(msgspec.msgpack.encode(payload), 2**16))
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        await rig.assert_idle()
        await rig.assert_alive()
