"""The numbers that a client can ask for."""

import asyncio
import threading

from tests.fakes import FakeModel
from tests.server.harness import VOCAB_SIZE, serving, until
from wkvm.core.config import EngineConfig
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.loop import NEVER_TURNS_US, EngineLoop
from wkvm.models.base import Batch


async def test_as_many_are_measured_as_were_asked_for() -> None:
    async with serving() as rig:
        client = await rig.client()
        for n in (1, 2, 3):
            await client.generate((5,) * n, max_tokens=n)
        stats = await client.stats()
        assert stats["requests_total"] == stats["length_total"] == 3
        assert stats["queue_us_count"] == stats["first_token_us_count"] == 3
        assert stats["request_us_count"] == stats["request_us_le_1000000000"] == 3
        assert (stats["prompt_length_sum"], stats["prompt_length_le_2"]) == (6, 2)
        assert (stats["output_length_sum"], stats["output_length_le_2"]) == (6, 2)
        assert stats["inter_token_us_count"] == 3
        assert stats["step_us_count"] == stats["steps_total"]
        assert stats["step_us_sum"] > 0


async def test_an_idle_engine_has_no_step_that_ages() -> None:
    async with serving() as rig:
        client = await rig.client()
        await client.generate((5,), max_tokens=1)
        await until(lambda: rig.loop.tick_age_s == 0)
        assert (await client.stats())["step_age_us"] == 0


async def test_a_step_ages_until_it_returns() -> None:
    entered, may_return = threading.Event(), threading.Event()

    def block(batch: Batch) -> None:
        entered.set()
        may_return.wait(60)

    async with serving(model=FakeModel(VOCAB_SIZE, before_forward=block)) as rig:
        client = await rig.client()
        asking = asyncio.create_task(client.generate((5,), max_tokens=1))
        await until(entered.is_set)
        other = await rig.client()
        first = (await other.stats())["step_age_us"]
        second = (await other.stats())["step_age_us"]
        assert 0 < first < second
        may_return.set()
        await asking


async def test_a_loop_that_does_not_run_is_told_from_one_that_idles() -> None:
    loop = EngineLoop(Engine(FakeModel(VOCAB_SIZE), EngineConfig(n_slots=2)))
    assert loop.stats()["step_age_us"] == NEVER_TURNS_US


async def test_what_changed_since_the_last_answer_is_in_the_next() -> None:
    async with serving(engine_config=EngineConfig(n_slots=1)) as rig:
        client = await rig.client()
        assert (await client.stats())["requests_total"] == 0
        await client.generate((5,), max_tokens=1)
        assert (await client.stats())["requests_total"] == 1
        draining = asyncio.create_task(rig.server.drain())
        await until(lambda: rig.loop.stats()["draining"] == 1)
        await draining


async def test_what_a_step_produced_is_counted_when_it_is_delivered() -> None:
    loop: EngineLoop

    def ask(batch: Batch) -> None:
        loop.stats()

    class Instant(Engine):
        blocks = False

    delivered = list[int]()
    model = FakeModel(VOCAB_SIZE, before_forward=ask)
    loop = EngineLoop(Instant(model, EngineConfig(n_slots=2)))
    loop.deliver = lambda events: delivered.append(loop.stats()["output_tokens_total"])
    stepping = asyncio.create_task(loop.run())
    loop.submit(RequestSpec(prompt=(5,), params=SamplingParams(max_tokens=3, ignore_eos=True)))
    await until(lambda: loop.n_live == 0)
    loop.close()
    await stepping
    assert delivered == [1, 2, 3]
