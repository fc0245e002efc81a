"""One script of requests. What it gives does not depend on the client or on the door.

The results are also compared with what the fake model's definition says, so that all
cannot be wrong together.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from wkvm_client import EndReason
from wkvm_client.errors import ClientError

from tests.client.drivers import Driver
from tests.conformance.conftest import VOCAB_SIZE
from tests.engine.driver import Driver as EngineDriver
from tests.fakes import FakeModel, fake_continuation, fake_logits
from wkvm.core.sampling import SamplingParams

LONG = tuple(i % 60 + 1 for i in range(700))


@dataclass(frozen=True)
class Row:
    """A request and what has to come of it.

    ``ids`` of None stands for what the engine alone gives; ``error`` is the name of the
    exception in which it ends.
    """

    name: str
    prompt: tuple[int, ...] = (1, 2, 3)
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    ids: list[int] | None = None
    reason: EndReason = EndReason.LENGTH
    stop_id: int | None = None
    error: str | None = None


def greedy(prompt: tuple[int, ...], n: int) -> list[int]:
    """The continuation up to the model's end id, which is not part of it."""
    ids = fake_continuation(prompt, n, VOCAB_SIZE)
    return ids[: ids.index(0)] if 0 in ids else ids


STOPPED = greedy((1, 2, 3), 8)

SCRIPT = (
    Row("short", (1, 2, 3), {"max_tokens": 8}, greedy((1, 2, 3), 8)),
    Row("one id", (5,), {"max_tokens": 1}, greedy((5,), 1)),
    Row("long prompt", LONG, {"max_tokens": 5}, greedy(LONG, 5)),
    Row("no output", (1, 2), {"max_tokens": 0}, []),
    Row("long output", (9,), {"max_tokens": 900, "ignore_eos": True}, fake_continuation((9,), 900)),
    Row("little credit", (9,), {"max_tokens": 90, "credit": 1, "ignore_eos": True},
        fake_continuation((9,), 90)),
    Row("stop", (1, 2, 3), {"max_tokens": 8, "stop_ids": [STOPPED[3]]}, STOPPED[:3],
        EndReason.STOP, STOPPED[3]),
    Row("only one allowed", (4,), {"max_tokens": 3, "allowed_ids": [6]}, [6, 6, 6]),
    Row("biased", (4,), {"max_tokens": 3, "logit_bias": {7: 100.0}}, [7, 7, 7]),
    Row("seeded", (4, 5), {"max_tokens": 20, "temperature": 2.0, "seed": 11, "ignore_eos": True}),
    Row("all parameters", (4, 5), {
        "max_tokens": 20, "temperature": 1.5, "top_k": 30, "top_p": 0.95, "min_p": 0.01,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
        "penalty_decay": 0.99, "min_tokens": 20, "seed": 3, "priority": -1, "timeout_s": 60.0,
    }),
    Row("empty prompt", (), error="EmptyPromptError"),
    Row("id beyond the vocabulary", (1, VOCAB_SIZE), error="TokenOutOfRangeError"),
    Row("stop id beyond the vocabulary", options={"stop_ids": [2**32 - 1]},
        error="TokenOutOfRangeError"),
    Row("too long", (1,) * 2999, {"max_tokens": 2}, error="PromptTooLongError"),
    Row("temperature", options={"temperature": math.nan}, error="InvalidParameterError"),
    Row("top_p", options={"top_p": 1.5}, error="InvalidParameterError"),
    Row("huge n", options={"n": 10**9}, error="InvalidParameterError"),
    Row("one choice too many", options={"n": 65}, error="InvalidParameterError"),
    Row("more choices than room", options={"n": 64, "max_tokens": 500}, error="QueueFullError"),
    Row("timeout", options={"max_tokens": 2900, "timeout_s": 0.001, "ignore_eos": True},
        reason=EndReason.TIMED_OUT),
)  # fmt: skip


async def ask(driver: Driver, row: Row) -> Any:
    """Send a request: a stream, or the name of the exception."""
    try:
        return await driver.generate(row.prompt, **{"temperature": 0.0, **row.options})
    except ClientError as error:
        return type(error).__name__


async def outcome(driver: Driver, stream: Any) -> Any:
    """What a request gives: a completion, or the name of the exception."""
    if isinstance(stream, str):
        return stream
    try:
        (completion,) = await driver.completions(stream)
    except ClientError as error:
        return type(error).__name__
    return completion


def alone(prompt: tuple[int, ...], options: dict[str, Any], choice: int = 0) -> list[int]:
    """The ids of a choice from an engine that has nothing else to do, without a server."""
    of_sampling = {k: v for k, v in options.items() if k not in ("priority", "timeout_s")}
    engine = EngineDriver(FakeModel(vocab_size=VOCAB_SIZE, eos_ids=(0,)))
    return engine.run(prompt, SamplingParams(**of_sampling), choice).ids


def expected_ids(row: Row) -> list[int]:
    return alone(row.prompt, row.options) if row.ids is None else row.ids


@pytest.mark.timed(1.0)
@pytest.mark.parametrize("row", SCRIPT, ids=lambda row: row.name)
async def test_a_request_has_one_answer_whoever_asks(driver: Driver, row: Row) -> None:
    got = await outcome(driver, await ask(driver, row))
    if row.error is not None:
        assert got == row.error
    else:
        assert (got.reason, got.stop_id) == (row.reason, row.stop_id)
        assert got.n_prompt == len(row.prompt)
        assert got.n_output == len(got.ids)
        if row.reason != EndReason.TIMED_OUT:
            assert got.ids == expected_ids(row)
            assert row.ids is not None or len(got.ids) == row.options["max_tokens"]
    # the connection is as good as before
    after = await outcome(driver, await ask(driver, SCRIPT[0]))
    assert after.ids == SCRIPT[0].ids


async def test_the_whole_script_at_once_has_the_same_answers(driver: Driver) -> None:
    rows = [row for row in SCRIPT if row.reason != EndReason.TIMED_OUT and "n" not in row.options]
    streams = [(row, await ask(driver, row)) for row in rows]
    for row, stream in streams:
        got = await outcome(driver, stream)
        if row.error is None:
            assert got.ids == expected_ids(row)
        else:
            assert got == row.error


async def test_choices_come_with_their_own_ids(driver: Driver) -> None:
    options = {"n": 6, "max_tokens": 30, "temperature": 3.0, "seed": 5, "ignore_eos": True}
    stream = await driver.generate((1, 2, 3), **options)
    completions = await driver.completions(stream)
    ids = [completion.ids for completion in completions]
    assert [completion.choice for completion in completions] == list(range(6))
    assert {len(one) for one in ids} == {30}
    assert len({tuple(one) for one in ids}) == 6
    assert ids == [alone((1, 2, 3), options, branch) for branch in range(6)]


async def test_log_probabilities_are_those_of_the_model(driver: Driver) -> None:
    stream = await driver.generate(
        (1, 2, 3), max_tokens=4, temperature=0.0, logprobs=3, prompt_logprobs=2, ignore_eos=True
    )
    got = await driver.completion(stream)
    assert got.logprobs is not None
    assert got.prompt_logprobs is not None
    sequence = [1, 2, 3, *got.ids]
    positions = [*got.prompt_logprobs, *got.logprobs]
    assert [one.token_id for one in positions] == sequence[1:]
    for place, one in enumerate(positions, start=1):
        logits = fake_logits(sequence[:place], VOCAB_SIZE)
        norm = math.log(sum(math.exp(logit) for logit in logits))
        assert one.logprob == pytest.approx(logits[one.token_id] - norm, abs=1e-5)
        assert one.rank == 1 + sum(logit > logits[one.token_id] for logit in logits)
        best = sorted(range(VOCAB_SIZE), key=lambda i: (-logits[i], i))
        n_top = 2 if place < 3 else 3
        assert [top.token_id for top in one.top] == best[:n_top]


@pytest.mark.parametrize("path", ["chunked", "decode"])
async def test_a_text_is_scored_by_the_model_whatever_the_path(driver: Driver, path: str) -> None:
    text = [1, 2, 3, 0, 9, 9]
    before = await driver.stats()
    got = await driver.score(text, path=path, n_top=1)
    assert [one.token_id for one in got] == text[1:]
    for place, one in enumerate(got, start=1):
        logits = fake_logits(text[:place], VOCAB_SIZE)
        norm = math.log(sum(math.exp(logit) for logit in logits))
        assert one.logprob == pytest.approx(logits[one.token_id] - norm, abs=1e-5)
        assert one.rank == 1 + sum(logit > logits[one.token_id] for logit in logits)
        assert [top.token_id for top in one.top] == [logits.index(max(logits))]
    after = await driver.stats()
    assert after["n_free_slots"] == after["n_slots"]
    n_prompt, n_output = (6, 0) if path == "chunked" else (1, 5)
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == n_prompt
    assert after["output_tokens_total"] - before["output_tokens_total"] == n_output


@pytest.mark.parametrize("path", ["chunked", "decode"])
async def test_what_is_wrong_with_a_text_is_named(driver: Driver, path: str) -> None:
    for ids, error, field_name in (
        ([], "EmptyPromptError", "prompt"),
        ([1, VOCAB_SIZE], "TokenOutOfRangeError", "prompt"),
        ([1] * 3001, "PromptTooLongError", "prompt"),
    ):
        with pytest.raises(ClientError) as raised:
            await driver.score(ids, path=path)
        assert (type(raised.value).__name__, raised.value.field) == (error, field_name)
    for options, name in (({"path": "fast"}, "path"), ({"path": path, "n_top": 21}, "n_top")):
        with pytest.raises(ClientError) as raised:
            await driver.score([1, 2], **options)
        assert (type(raised.value).__name__, raised.value.field) == ("InvalidParameterError", name)
    with pytest.raises(ClientError) as raised:
        await driver.score([1] * 2900, path="decode", timeout_s=0.001)
    assert type(raised.value).__name__ == "RequestTimeoutError"
    assert len(await driver.score([1, 2], path=path)) == 1


async def test_a_stream_left_early_is_cancelled_on_the_server(driver: Driver, door: str) -> None:
    stream = await driver.generate((1, 2), max_tokens=2900, temperature=0.0, ignore_eos=True)
    assert await driver.take(stream, 3) == fake_continuation((1, 2), 3)
    await driver.cancel(stream)
    completion = await driver.completion(stream)
    assert completion.reason == EndReason.CANCELLED
    stats = await driver.stats()
    assert (stats["n_running"], stats["n_queued"]) == (0, 0)
    assert stats["n_free_slots"] == stats["n_slots"] == 4
    n_of_gateway = 2 if door == "websocket" else 0
    assert stats["n_connections"] == 1 + n_of_gateway
    assert stats["cancelled_total"] == 1


async def test_a_ping_comes_back(driver: Driver) -> None:
    assert await driver.ping() > 0
