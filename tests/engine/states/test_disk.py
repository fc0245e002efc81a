"""Whether the store takes durable versions is known without waiting for its disk."""

import asyncio
import threading

import pytest

from tests.server.harness import until
from wkvm.engine.states import disk
from wkvm.engine.states.disk import SILENT_S, DiskWatch
from wkvm.state.condition import Refusal


class Disk:
    """Answers when it may, as it is told."""

    def __init__(self) -> None:
        self.answer: Refusal | None = Refusal.NONE
        self.now = 100.0
        self.n_asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def ask(self) -> Refusal:
        self.n_asked += 1
        assert self.may_answer.wait(60)
        if self.answer is None:
            raise OSError("no")
        return self.answer

    def clock(self) -> float:
        return self.now


async def test_what_was_found_last_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "INTERVAL_S", 0.0)
    one = Disk()
    watch = DiskWatch(one.ask, one.clock)
    try:
        for answer in (Refusal.FULL, Refusal.NONE, Refusal.FAILED, Refusal.NONE):
            one.answer = answer
            await until(lambda answer=answer: watch.refusal is answer)  # type: ignore[misc]
        one.answer = None
        await until(lambda: watch.refusal is Refusal.FAILED)
    finally:
        await watch.close()


async def test_a_disk_that_does_not_answer_counts_as_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Disk()
    one.may_answer.clear()
    watch = DiskWatch(one.ask, one.clock)
    try:
        await until(lambda: one.n_asked == 1)
        one.now += SILENT_S
        found = [watch.refusal]
        one.now += 0.1
        found.append(watch.refusal)
        assert found == [Refusal.NONE, Refusal.FAILED]
        monkeypatch.setattr(disk, "CLOSE_TIMEOUT_S", 0.01)
        async with asyncio.timeout(60):
            await watch.close()
    finally:
        one.may_answer.set()
