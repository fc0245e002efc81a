"""How many slots a GPU has room for, beside all that a step may take."""

from dataclasses import replace

import pytest
import torch

from tests.engine.fake_gpu import SteppingModel
from wkvm.assembly.memory import SAMPLER_SLOT_BYTES, reserve_bytes, room_beside
from wkvm.core.config import MAX_SLOTS, EngineConfig
from wkvm.engine.graphs import BUCKETS

CONFIG = EngineConfig(n_slots=MAX_SLOTS)


class Sized(SteppingModel):
    """The fake model with workspaces, and a note of the decode steps that were made."""

    def __init__(self, vocab_size: int = 65_536) -> None:
        super().__init__(vocab_size)
        self.n_rows = list[int]()

    def decode_step(  # type: ignore[override]
        self, n_rows: int, *, apart: bool = False
    ) -> None:
        self.n_rows.append(n_rows)

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        return n_tokens * 400_000 + n_logit_rows * 400_000


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a device says is free; the tests fill it in."""
    free = [0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 10**12))
    return free


def test_states_take_all_that_is_left_and_no_byte_of_the_reserve(free_bytes: list[int]) -> None:
    model = Sized()
    slot_bytes = model.layout.record_bytes + SAMPLER_SLOT_BYTES
    reserve = reserve_bytes(model, CONFIG)
    free_bytes[0] = reserve + 7 * slot_bytes
    assert room_beside(model, CONFIG).n_slots == 7
    free_bytes[0] -= 1
    assert room_beside(model, CONFIG).n_slots == 6
    free_bytes[0] = reserve - 1
    assert room_beside(model, CONFIG).n_slots == 0


def test_no_more_slots_than_are_asked_for(free_bytes: list[int]) -> None:
    free_bytes[0] = 10**11
    assert room_beside(Sized(), replace(CONFIG, n_slots=64)).n_slots == 64


def test_decode_steps_have_their_memory_before_the_rest_is_counted(
    free_bytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Sized()

    def count() -> tuple[int, int]:
        assert model.n_rows == [BUCKETS[-1]]
        return 0, 0

    monkeypatch.setattr(torch.cuda, "mem_get_info", count)
    room_beside(model, CONFIG)


def test_a_large_gpu_keeps_less_than_a_twentieth_back() -> None:
    # 136 GiB are free beside weights of 1.5 billion parameters.
    assert reserve_bytes(Sized(), CONFIG) < 136 * 2**30 / 20


def test_a_larger_budget_of_a_step_keeps_more_back() -> None:
    small, large = (replace(CONFIG, max_num_batched_tokens=n) for n in (64, 4096))
    assert reserve_bytes(Sized(), small) < reserve_bytes(Sized(), large)
    assert reserve_bytes(Sized(), replace(small, max_num_batched_tokens=1)) == reserve_bytes(
        Sized(), small
    )
