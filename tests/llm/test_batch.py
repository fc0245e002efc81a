"""Many jobs through one connection, on a model without weights whose ids are bytes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from wkvm_client import aio
from wkvm_client.errors import QueueFullError, StepFailedError

from tests.fakes import FakeModel, fake_continuation
from tests.gateway.harness import byte_texts
from wkvm.assembly.backend import Backend, Local
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.llm import batch as batch_module
from wkvm.llm.batch import Batch, Job
from wkvm.llm.params import SamplingParams
from wkvm.models.base import Batch as Rows

VOCAB = 256


@contextmanager
def backend_of(model: FakeModel, config: EngineConfig) -> Iterator[Backend]:
    with Backend.open(Local(Engine(model, config))) as backend:
        yield backend


def job(prompt: list[int], **params: object) -> Job:
    one = SamplingParams(**{"temperature": 0.0, "max_tokens": 8} | params)  # type: ignore[arg-type]
    return Job(None, prompt, one, one.stops)


def test_more_jobs_than_slots_and_queue_together_come_back_in_their_order() -> None:
    jobs = [job([i]) for i in range(50)]
    batch = Batch(jobs, byte_texts())
    with backend_of(FakeModel(VOCAB), EngineConfig(n_slots=2, max_queue=1)) as backend:
        outputs = backend.run(batch.run).result()
    assert [output.prompt_ids for output in outputs] == [[i] for i in range(50)]
    for i, output in enumerate(outputs):
        assert output.outputs[0].ids == fake_continuation([i], 8, VOCAB)
    assert (batch.n_done, batch.n_ids) == (50, 400)


def test_no_more_choices_are_open_than_two_for_each_slot() -> None:
    open_choices = list[int]()

    def look(rows: Rows) -> None:
        stats = engine.stats()
        open_choices.append(stats["n_queued"] + stats["n_running"])

    engine = Engine(FakeModel(VOCAB, before_forward=look), EngineConfig(n_slots=2))
    with Backend.open(Local(engine)) as backend:
        backend.run(Batch([job([i], n=2) for i in range(20)], byte_texts()).run).result()
    assert 2 <= max(open_choices) <= 4


async def _hold(client: aio.Client) -> aio.Stream:
    """Take the only slot, and hold it."""
    stream = await client.generate([1], max_tokens=1_000_000, credit=1)
    await stream.read()
    return stream


def test_a_queue_that_others_have_filled_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()

    async def pause(seconds: float) -> None:
        assert seconds > 0
        refused.set()
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr("wkvm.llm.batch.asyncio.sleep", pause)
    config = EngineConfig(n_slots=1, max_queue=0)
    with backend_of(FakeModel(VOCAB), config) as backend:
        held = backend.run(_hold).result()
        waiting = backend.run(Batch([job([2])], byte_texts()).run)
        assert refused.wait(timeout=60)
        assert not waiting.done()

        async def let_go(client: aio.Client) -> None:
            held.cancel()

        backend.run(let_go).result()
        (output,) = waiting.result(timeout=60)
    assert output.outputs[0].ids == fake_continuation([2], 8, VOCAB)


def test_a_queue_that_stays_full_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "PATIENCE_S", 0.0)
    with backend_of(FakeModel(VOCAB), EngineConfig(n_slots=1, max_queue=0)) as backend:
        backend.run(_hold).result()
        with pytest.raises(QueueFullError):
            backend.run(Batch([job([2])], byte_texts()).run).result(timeout=60)


def test_the_first_failure_is_raised_and_ends_the_others() -> None:
    def fail_on_7(rows: Rows) -> None:
        if 7 in rows.token_ids.tolist():
            raise RuntimeError("seven")

    jobs = [job([7]), job([8], max_tokens=1_000_000)]
    with backend_of(FakeModel(VOCAB, before_forward=fail_on_7), EngineConfig(n_slots=1)) as backend:
        with pytest.raises(StepFailedError):
            backend.run(Batch(jobs, byte_texts()).run).result(timeout=60)
        assert wait_until_idle(backend)


def test_cancelling_the_future_frees_all_slots() -> None:
    began = threading.Event()

    def look(rows: Rows) -> None:
        began.set()

    model = FakeModel(VOCAB, before_forward=look)
    with backend_of(model, EngineConfig(n_slots=2)) as backend:
        jobs = [job([i], max_tokens=1_000_000) for i in range(9)]
        running = backend.run(Batch(jobs, byte_texts()).run)
        assert began.wait(timeout=60)
        running.cancel()
        assert wait_until_idle(backend)


def test_what_the_server_ends_for_its_time_keeps_what_came_until_then() -> None:
    config = EngineConfig(n_slots=1, request_timeout_s=0.05)
    with backend_of(FakeModel(VOCAB), config) as backend:
        jobs = [job([1], max_tokens=1_000_000)]
        (output,) = backend.run(Batch(jobs, byte_texts()).run).result(timeout=60)
    (completion,) = output.outputs
    assert completion.finish_reason == "timed_out"
    assert completion.stop_reason is None
    n = len(completion.ids)
    assert completion.ids == fake_continuation([1], n, VOCAB)


def test_each_choice_ends_at_its_own_stop_string_and_its_ids_with_it() -> None:
    texts = byte_texts()
    with backend_of(FakeModel(VOCAB), EngineConfig(n_slots=2, seed=1)) as backend:

        def run(**params: object) -> list[tuple[str, list[int], str | int | None]]:
            base = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 60, "ignore_eos": True}
            letters = {"allowed_ids": list(b"abcde")}
            jobs = [job([1], **base | letters | params)]
            (output,) = backend.run(Batch(jobs, texts).run).result(timeout=60)
            return [(one.text, one.ids, one.stop_reason) for one in output.outputs]

        whole = run()
        stopped = run(stop=["ab", "ce"])
    assert whole[0] != whole[1]
    for (text, _, _), (short, ids, stop) in zip(whole, stopped, strict=True):
        found = min(text.find(s) for s in ("ab", "ce") if s in text)
        assert stop == text[found : found + 2]
        assert short == text[:found]
        assert bytes(ids).decode() == text[: found + 2]


def test_before_min_tokens_no_stop_string_counts() -> None:
    jobs = [job([1], stop="a", min_tokens=5, max_tokens=9, allowed_ids=list(b"a"))]
    with backend_of(FakeModel(VOCAB), EngineConfig(n_slots=1)) as backend:
        (output,) = backend.run(Batch(jobs, byte_texts()).run).result(timeout=60)
    assert output.outputs[0].text == "aaaaa"


def test_no_jobs_are_no_results() -> None:
    with backend_of(FakeModel(VOCAB), EngineConfig(n_slots=1)) as backend:
        assert backend.run(Batch([], byte_texts()).run).result(timeout=60) == []


def wait_until_idle(backend: Backend) -> bool:
    """Whether every slot becomes free; each question takes a turn of the server's loop."""

    async def ask(client: aio.Client) -> bool:
        for _ in range(10_000):
            stats = await client.stats()
            if stats["n_free_slots"] == stats["n_slots"]:
                return True
        return False

    return backend.run(ask).result(timeout=60)
