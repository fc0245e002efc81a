"""Both clients against the server itself, over sockets."""

import asyncio
import math
import tempfile
import threading
from typing import Any

import pytest
from wkvm_client import EndReason
from wkvm_client.errors import (
    ClientError,
    DrainingError,
    EmptyPromptError,
    GoingAwayError,
    InvalidParameterError,
    LinkError,
    TokenOutOfRangeError,
    UnauthenticatedError,
)

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.fakes import FakeModel, fake_continuation
from tests.server.harness import Rig, local_config, serving, tcp_config
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig
from wkvm.models.base import Batch

# the loop that the server runs on; the other scripts run the clients on both
pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

PROMPT = [1, 2, 3]
both = pytest.mark.parametrize("make", [AioDriver, BlockingDriver], ids=["aio", "blocking"])
Make = type[AioDriver] | type[BlockingDriver]


async def dial(make: Make, rig: Rig, **options: Any) -> Driver:
    driver = make()
    await driver.connect(rig.server.addresses[0], **options)
    return driver


@both
@pytest.mark.parametrize("transport", ["unix", "tcp", "pair"])
async def test_a_request_gives_what_the_model_gives(make: Make, transport: str) -> None:
    async with serving(tcp_config() if transport == "tcp" else None) as rig:
        driver: Driver = make()
        if transport == "pair":
            await driver.from_socket(await rig.server.connect_local())
        else:
            await driver.connect(rig.server.addresses[0])
        stream = await driver.generate(PROMPT, temperature=0, max_tokens=20)
        assert await driver.take(stream) == fake_continuation(PROMPT, 20)
        completion = await driver.completion(stream)
        assert completion.reason is EndReason.LENGTH
        assert (completion.n_prompt, completion.n_output) == (3, 20)
        assert 0 < completion.timings.first_token_s <= completion.timings.total_s
        assert await driver.ping() > 0
        stats = await driver.stats()
        assert stats["output_tokens_total"] == 20
        await driver.close()


@both
@pytest.mark.parametrize("credit", [1, 3, None])
async def test_a_window_changes_no_id(make: Make, credit: int | None) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        stream = await driver.generate(PROMPT, temperature=0, max_tokens=40, credit=credit)
        assert await driver.take(stream) == fake_continuation(PROMPT, 40)
        await driver.close()


@both
async def test_a_consumer_that_does_not_read_stops_the_lane_at_its_window(make: Make) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        stream = await driver.generate(PROMPT, temperature=0, max_tokens=100, credit=5)
        async with asyncio.timeout(60):
            while (await driver.stats())["n_paused"] == 0:
                pass
        assert stream.ids == fake_continuation(PROMPT, 5)
        assert (await driver.completion(stream)).ids == fake_continuation(PROMPT, 100)
        await driver.close()


@both
async def test_choices_and_their_log_probabilities(make: Make) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        stream = await driver.generate(
            PROMPT, temperature=0, max_tokens=6, n=3, logprobs=2, prompt_logprobs=1, credit=4
        )
        completions = await driver.completions(stream)
        assert [c.choice for c in completions] == [0, 1, 2]
        for completion in completions:
            assert completion.ids == fake_continuation(PROMPT, 6)
            assert completion.logprobs is not None
            assert [entry.token_id for entry in completion.logprobs] == completion.ids
            for entry in completion.logprobs:
                assert entry.rank == 1
                assert entry.top[0].token_id == entry.token_id
                assert len(entry.top) == 2
                assert entry.logprob < 0
            assert completion.prompt_logprobs is not None
            assert [entry.token_id for entry in completion.prompt_logprobs] == PROMPT[1:]
        await driver.close()


@both
async def test_breaking_out_frees_the_slot(make: Make) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        stream = await driver.generate(PROMPT, max_tokens=1_000_000, ignore_eos=True)
        assert len(await driver.take(stream, 3)) == 3
        await rig.assert_idle()
        assert (await driver.completion(stream)).reason is EndReason.CANCELLED
        await driver.close()


@both
async def test_closing_the_client_frees_the_slots(make: Make) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        for _ in range(3):
            await driver.generate(PROMPT, max_tokens=1_000_000, ignore_eos=True)
        await driver.close_client()
        await rig.assert_idle(n_connections=1)
        await driver.close()


@both
@pytest.mark.timed(1.0)
async def test_a_deadline_is_the_servers_to_keep(make: Make) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        stream = await driver.generate(
            PROMPT, max_tokens=1_000_000, ignore_eos=True, credit=2, timeout_s=0.05
        )
        completion = await driver.completion(stream)
        assert completion.reason is EndReason.TIMED_OUT
        await driver.close()


@both
@pytest.mark.parametrize(
    ("options", "leaf", "field"),
    [
        ({"prompt": []}, EmptyPromptError, ""),
        ({"prompt": [64]}, TokenOutOfRangeError, "prompt"),
        ({"stop_ids": [64]}, TokenOutOfRangeError, "stop_ids"),
        ({"logit_bias": {1: 1000.0}}, InvalidParameterError, "logit_bias"),
        ({"top_p": math.nan}, InvalidParameterError, "top_p"),
        ({"n": 65}, InvalidParameterError, "n"),
        ({"n": 0}, InvalidParameterError, "n"),
        ({"n": -(2**40)}, InvalidParameterError, "n"),
        ({"max_tokens": -1}, InvalidParameterError, "max_tokens"),
    ],
)
async def test_a_wrong_request_is_typed_and_the_next_is_unaffected(
    make: Make, options: dict[str, Any], leaf: type[ClientError], field: str
) -> None:
    async with serving() as rig:
        driver = await dial(make, rig)
        stream = await driver.generate(**{"prompt": PROMPT, **options})
        with pytest.raises(leaf) as raised:
            await driver.completions(stream)
        if field:
            assert raised.value.field == field
        assert not raised.value.retryable
        good = await driver.generate(PROMPT, temperature=0, max_tokens=3)
        assert (await driver.completion(good)).ids == fake_continuation(PROMPT, 3)
        await driver.close()


@both
async def test_keys(make: Make) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = local_config(folder, api_keys=(ApiKey.of("secret", "alice"),))
        async with serving(config, control_key="secret") as rig:
            for wrong in (None, "guess"):
                refused: Driver = make()
                with pytest.raises(UnauthenticatedError):
                    await refused.connect(rig.server.addresses[0], api_key=wrong)
                await refused.close()
            driver = await dial(make, rig, api_key="secret")
            assert await driver.ping() > 0
            await driver.close()


@both
async def test_a_drain_lets_lanes_end_and_refuses_new_ones(make: Make) -> None:
    gate = threading.Event()

    def wait(batch: Batch) -> None:
        gate.wait(60)

    model = FakeModel(before_forward=wait)
    async with serving(model=model) as rig:
        driver = await dial(make, rig, reconnect_timeout_s=0.1)
        stream = await driver.generate(PROMPT, temperature=0, max_tokens=5)
        await driver.ping()
        draining = asyncio.create_task(rig.server.drain())
        await asyncio.sleep(0.02)
        with pytest.raises((DrainingError, GoingAwayError)) as raised:
            await driver.generate(PROMPT)
        assert raised.value.retryable
        gate.set()
        assert (await driver.completion(stream)).ids == fake_continuation(PROMPT, 5)
        await draining
        await driver.close()


@both
async def test_a_server_that_ends_is_a_typed_error(make: Make) -> None:
    async with serving() as rig:
        driver = await dial(make, rig, reconnect_timeout_s=0.05)
        stream = await driver.generate(PROMPT, max_tokens=1_000_000, ignore_eos=True, credit=2)
        await rig.server.close()
        with pytest.raises(LinkError) as raised:
            await driver.completion(stream)
        assert raised.value.retryable
        with pytest.raises(LinkError):
            await driver.generate(PROMPT)
        await driver.close()


@both
async def test_more_requests_than_slots_all_end_as_alone(make: Make) -> None:
    async with serving(engine_config=EngineConfig(n_slots=4)) as rig:
        driver = await dial(make, rig)
        prompts = [[i % 64, (i * 7) % 64, 1] for i in range(40)]
        streams = [
            await driver.generate(prompt, temperature=0, max_tokens=1 + i % 9)
            for i, prompt in enumerate(prompts)
        ]
        for i in range(39, -1, -1):
            completion = await driver.completion(streams[i])
            assert completion.ids == fake_continuation(prompts[i], 1 + i % 9)
        await rig.assert_idle()
        await driver.close()
