"""How memory is divided between states and the pages of their guests."""

from dataclasses import replace

import pytest
import torch

from tests.engine.fake_gpu import SteppingGuestModel
from tests.fakes import FakeModel, GuestModel
from wkvm.assembly import engine as assembly
from wkvm.assembly.memory import (
    AUTO_SLOT_TOKENS,
    SAMPLER_SLOT_BYTES,
    TABLE_BYTES,
    Fitting,
    divide,
    reserve_bytes,
    room_beside,
    tokens_that_fit,
)
from wkvm.cli.inspect_model import guest_report
from wkvm.core.config import MAX_SLOTS, EngineConfig
from wkvm.core.errors import ConfigError
from wkvm.core.layout import PAGE_TOKENS, StateLayout
from wkvm.engine.gpu import lend_pages, take_pages
from wkvm.state.arena import Arena

LAYOUT = GuestModel().layout
RECORD, PAGE = LAYOUT.record_bytes, LAYOUT.image_bytes(1) - LAYOUT.record_bytes


def divided(
    n_bytes: int, n_slots: int, *, fits_slots: bool = False, n_pages: int | None = None
) -> tuple[int, int]:
    division = divide(
        LAYOUT,
        n_bytes,
        n_slots=n_slots,
        fits_slots=fits_slots,
        n_pages=n_pages,
        max_slot_tokens=10_000,
    )
    return division.n_slots, division.n_pages


def test_pages_take_what_the_slots_leave() -> None:
    assert divided(4 * RECORD + 10 * (PAGE + 4 * TABLE_BYTES), 4) == (4, 10)
    assert divided(4 * RECORD + 10 * (PAGE + 4 * TABLE_BYTES) - 1, 4) == (4, 9)


def test_pages_that_are_asked_for_come_before_slots() -> None:
    n_bytes = 10 * PAGE + 3 * (RECORD + 10 * TABLE_BYTES)
    assert divided(n_bytes, 100, fits_slots=True, n_pages=10) == (3, 10)
    assert divided(n_bytes - 1, 100, n_pages=10) == (2, 10)
    assert divided(PAGE, 100, n_pages=10) == (0, 10)


def test_where_both_are_chosen_there_is_room_for_so_many_tokens_a_slot() -> None:
    n_slots, n_pages = divided(10**7, MAX_SLOTS, fits_slots=True)
    assert n_slots > 1
    assert n_pages * PAGE_TOKENS >= 0.9 * n_slots * AUTO_SLOT_TOKENS


def test_little_memory_is_one_slot_and_what_is_left() -> None:
    assert divided(RECORD + 2 * PAGE, MAX_SLOTS, fits_slots=True) == (1, 1)
    assert divided(RECORD - 1, MAX_SLOTS, fits_slots=True) == (0, 0)


def test_pages_that_nobody_asked_for_are_bounded_by_the_slots() -> None:
    assert divided(10**9, 2) == (2, 2 * -(-10_000 // PAGE_TOKENS))


def test_without_a_guest_slots_take_all() -> None:
    layout = StateLayout(FakeModel().layout.tensors)
    division = divide(
        layout,
        7 * layout.record_bytes,
        n_slots=100,
        fits_slots=True,
        n_pages=5,
        max_slot_tokens=1,
    )
    assert (division.n_slots, division.n_pages, division.guest_tokens) == (7, 0, None)


def test_a_gpu_has_pages_in_what_slots_and_the_reserve_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, config = SteppingGuestModel(), EngineConfig(n_slots=4)
    each = RECORD + SAMPLER_SLOT_BYTES
    free = reserve_bytes(model, config) + 4 * each + 6 * (PAGE + 4 * TABLE_BYTES)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 10**12))
    room = room_beside(model, config)
    assert (room.n_slots, room.n_pages) == (4, 6)
    more = replace(config, guest_tokens=7 * PAGE_TOKENS)
    assert room_beside(model, more).n_slots < 4


def test_a_cpu_has_pages_in_half_of_what_slots_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(n_slots=2)
    each = PAGE + 2 * TABLE_BYTES
    monkeypatch.setattr(assembly, "free_host_bytes", lambda: 2 * RECORD + 12 * each)
    assert assembly._on_cpu(GuestModel(), config).guest_tokens == 6 * PAGE_TOKENS
    given = replace(config, guest_tokens=12 * PAGE_TOKENS)
    assert assembly._on_cpu(GuestModel(), given) == given
    with pytest.raises(ConfigError, match=r"guest-tokens: 832 tokens .* 768 do"):
        assembly._on_cpu(GuestModel(), replace(config, guest_tokens=13 * PAGE_TOKENS))
    assert assembly._on_cpu(FakeModel(), config) == config
    monkeypatch.setattr(assembly, "free_host_bytes", lambda: 2 * RECORD + PAGE)
    with pytest.raises(ConfigError, match=r"guest-tokens: beside 2 states .* fewer --slots"):
        assembly._on_cpu(GuestModel(), config)


def test_tokens_that_fit_are_counted_beside_the_slots_that_there_are_by_default() -> None:
    fitting = Fitting("cpu", 100 + 64 * RECORD + 5 * PAGE, 100, 0)
    assert tokens_that_fit(LAYOUT, fitting) == 5 * PAGE_TOKENS
    assert tokens_that_fit(StateLayout(LAYOUT.tensors[:1]), fitting) is None
    assert tokens_that_fit(LAYOUT, Fitting("cpu", 100, 100, 0)) == 0


def test_a_report_says_what_a_token_takes() -> None:
    report = guest_report(LAYOUT)
    assert report is not None
    assert report["token_bytes"] * PAGE_TOKENS == report["page_bytes"] == PAGE
    assert guest_report(StateLayout(LAYOUT.tensors[:1])) is None


def test_a_warm_up_has_pages_for_its_prompts_and_leaves_none() -> None:
    arena = Arena(LAYOUT, 6, "cpu", n_pages=3)
    assert lend_pages(arena, 2048) == 3 * PAGE_TOKENS - 1
    assert arena.pool is not None
    assert arena.pool.pages_of(3) == (0, 1, 2)
    assert lend_pages(arena, 100) == 100
    assert arena.pool.pages_of(0) == (0, 1)
    take_pages(arena)
    assert (arena.pool.table == -1).all()
    plain = Arena(StateLayout(LAYOUT.tensors[:1]), 2, "cpu")
    assert lend_pages(plain, 2048) == 2048
