"""What goes through the blocks of a mover of pages, the device's part of it played by the host."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from wkvm.core.layout import GuestSpec
from wkvm.engine import page_mover
from wkvm.engine.page_mover import Job
from wkvm.state.guest import GuestPool

BLOCK = 1000
"""Bytes of a block, which no page is a multiple of."""


class FakeEvent:
    """What was recorded has happened."""

    def __init__(self, **_: Any) -> None:
        self.n_records = 0

    def record(self, *_: Any) -> None:
        """See ``torch.cuda.Event``."""

    def synchronize(self) -> None:
        """See ``torch.cuda.Event``."""


class FakeStream:
    """Everything is done at once."""

    def wait_event(self, event: FakeEvent) -> None:
        """See ``torch.cuda.Stream``."""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> GuestPool:
    """Forty pages of random bytes, and fakes of what of a device the mover calls."""
    monkeypatch.setattr(page_mover, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(page_mover, "stream_beside_graphs", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    pool = GuestPool(GuestSpec(1, 1, 1, head_dim=6, dtype="bfloat16"), 40, 1, "cpu")
    pool.page_bytes.copy_(torch.randint(0, 256, pool.page_bytes.shape, dtype=torch.uint8))
    return pool


PAGES = (3, 4, 5, 6, 39, 0, 20, 21, 10, *range(22, 38))


def test_pages_go_down_in_the_order_asked_for(pool: GuestPool) -> None:
    host = torch.zeros(len(PAGES) * pool.spec.page_bytes, dtype=torch.uint8)
    page_mover._PinnedDown(pool).move(Job(PAGES, host, None, None))
    assert torch.equal(host.view(len(PAGES), -1), pool.page_bytes[list(PAGES)])


def test_pages_come_up_in_that_order_and_no_other_is_touched(pool: GuestPool) -> None:
    before = pool.page_bytes.clone()
    host = torch.randint(0, 256, (len(PAGES) * pool.spec.page_bytes,), dtype=torch.uint8)
    page_mover._PinnedUp(pool).move(Job(PAGES, host, None, None))
    assert torch.equal(pool.page_bytes[list(PAGES)], host.view(len(PAGES), -1))
    others = [page for page in range(40) if page not in PAGES]
    assert torch.equal(pool.page_bytes[others], before[others])


def test_a_job_that_fails_spoils_no_later_one(pool: GuestPool) -> None:
    down = page_mover._PinnedDown(pool)
    short = torch.zeros(3 * pool.spec.page_bytes, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="size"):
        down.move(Job(PAGES, short, None, None))
    host = torch.zeros(len(PAGES) * pool.spec.page_bytes, dtype=torch.uint8)
    down.move(Job(PAGES, host, None, None))
    assert torch.equal(host.view(len(PAGES), -1), pool.page_bytes[list(PAGES)])
