"""Facts about the guest pool: no page is touched but those that are named; an image is a state."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.guests import arena_of
from wkvm.core.layout import PAGE_TOKENS, GuestSpec, StateLayout, TensorSpec, guest_tokens
from wkvm.state.arena import Arena
from wkvm.state.guest import NO_PAGE, GuestPool, finished, n_tokens_of, pages_in, runs

GUEST = GuestSpec(n_layers=2, n_parts=2, n_heads=1, head_dim=4, dtype="bfloat16")
LAYOUT = StateLayout((TensorSpec("toy.matrix", (3, 5), "float32"), guest_tokens()), GUEST)


def filled_arena(n_slots: int = 2, n_pages: int = 8) -> Arena:
    arena = Arena(LAYOUT, n_slots, "cpu", n_pages=n_pages)
    assert arena.pool is not None
    for bytes_of in (arena.records, arena.pool.page_bytes):
        bytes_of.copy_(torch.randint(0, 100, bytes_of.shape, dtype=torch.uint8))
    return arena


def pool_of(arena: Arena) -> GuestPool:
    assert arena.pool is not None
    return arena.pool


def test_a_model_sees_pages_and_table_beside_the_tensors_of_the_records() -> None:
    arena = Arena(LAYOUT, 2, "cpu", n_pages=5)
    assert arena.views["guest.pages"].shape == (5, 2, 2, PAGE_TOKENS, 1, 4)
    assert arena.views["guest.pages"].is_contiguous()
    assert arena.views["guest.table"].tolist() == [[NO_PAGE] * 5] * 2
    assert arena.views["guest.n_tokens"].tolist() == [[0], [0]]


@pytest.mark.parametrize(("layout", "n_pages"), [(LAYOUT, 0), (StateLayout(LAYOUT.tensors[:1]), 3)])
def test_there_are_pages_iff_there_is_a_guest(layout: StateLayout, n_pages: int) -> None:
    with pytest.raises(ValueError, match="pages for a layout"):
        Arena(layout, 2, "cpu", n_pages=n_pages)


def test_a_grant_is_the_whole_row_of_its_slot_and_leaves_what_pages_hold() -> None:
    arena = filled_arena()
    pool, before = pool_of(arena), pool_of(arena).page_bytes.clone()
    pool.grant(1, (6, 2, 3))
    pool.grant(1, (4, 7))
    assert arena.views["guest.table"].tolist() == [[-1] * 8, [4, 7, -1, -1, -1, -1, -1, -1]]
    assert pool.pages_of(1) == (4, 7)
    assert torch.equal(pool.page_bytes, before)


def test_filled_pages_are_read_again_and_no_other_is_touched() -> None:
    pool = pool_of(filled_arena())
    before = pool.page_bytes.clone()
    source = torch.randint(0, 255, (3 * GUEST.page_bytes,), dtype=torch.uint8)
    pool.fill((5, 6, 1), source)
    target = torch.zeros_like(source)
    pool.read((5, 6, 1), target)
    assert torch.equal(target, source)
    others = [0, 2, 3, 4, 7]
    assert torch.equal(pool.page_bytes[others], before[others])


def test_poisoned_pages_hold_nan_and_no_other_is_touched() -> None:
    pool = pool_of(filled_arena())
    before = pool.page_bytes.clone()
    pool.poison((0, 3))
    assert pool.pages[[0, 3]].isnan().all()
    others = [1, 2, 4, 5, 6, 7]
    assert torch.equal(pool.page_bytes[others], before[others])


def test_poison_and_zero_of_a_slot_leave_every_page_alone_and_count_no_token() -> None:
    arena = filled_arena()
    before = pool_of(arena).page_bytes.clone()
    pool_of(arena).grant(0, (1, 2))
    arena.poison([0])
    assert arena.views["toy.matrix"][0].isnan().all()
    assert arena.views["guest.n_tokens"][0] == 0
    arena.zero([0])
    assert not arena.records[0].any()
    assert torch.equal(pool_of(arena).page_bytes, before)


@pytest.mark.parametrize("page", [-1, 8])
def test_a_page_outside_the_pool_is_refused_before_anything_changes(page: int) -> None:
    arena = filled_arena()
    pool, before = pool_of(arena), pool_of(arena).page_bytes.clone()
    two = torch.zeros(2 * GUEST.page_bytes, dtype=torch.uint8)
    calls: list[Callable[[], None]] = [
        lambda: pool.grant(0, (0, page)),
        lambda: pool.fill((0, page), two),
        lambda: pool.read((0, page), two),
        lambda: pool.poison((0, page)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="page"):
            call()
    assert torch.equal(pool.page_bytes, before)
    assert (pool.table == NO_PAGE).all()


@pytest.mark.parametrize("n_tokens", [0, 1, 64, 65, 100, 128])
def test_an_image_is_the_record_the_pages_in_order_and_zeros_behind_the_last_token(
    n_tokens: int,
) -> None:
    arena = filled_arena()
    arena.views["guest.n_tokens"][1] = n_tokens
    image = arena.image(1, (6, 0, 3))
    n_pages = LAYOUT.n_pages(n_tokens)
    assert image.shape == (LAYOUT.image_bytes(n_tokens),)
    assert n_tokens_of(LAYOUT, image) == n_tokens
    assert torch.equal(image[: LAYOUT.record_bytes], arena.records[1])
    for at, page in enumerate((6, 0, 3)[:n_pages]):
        n_in_page = min(n_tokens - at * PAGE_TOKENS, PAGE_TOKENS)
        whole, there = pool_of(arena).pages[page], pages_in(LAYOUT, image)[at]
        assert torch.equal(there[:, :, :n_in_page], whole[:, :, :n_in_page])
        assert not there[:, :, n_in_page:].any()


@pytest.mark.parametrize("n_tokens", [-1, 129])
def test_an_image_with_too_few_pages_for_its_tokens_is_refused(n_tokens: int) -> None:
    arena = filled_arena()
    arena.views["guest.n_tokens"][1] = n_tokens
    with pytest.raises(ValueError, match="holds no"):
        arena.image(1, (6, 0))


def test_without_a_guest_the_image_is_the_record() -> None:
    layout = StateLayout(LAYOUT.tensors[:1])
    arena = Arena(layout, 2, "cpu")
    arena.records.fill_(7)
    image = arena.image(1)
    assert torch.equal(image, arena.records[1])
    assert image.data_ptr() != arena.records[1].data_ptr()
    assert finished(layout, image) is image


def test_a_copy_of_a_slot_is_its_record_and_leaves_pages_to_the_pool() -> None:
    arena = filled_arena()
    pages, table = pool_of(arena).pages.clone(), pool_of(arena).table.clone()
    arena.copy(0, [1])
    assert torch.equal(arena.records[1], arena.records[0])
    assert torch.equal(pool_of(arena).pages, pages)
    assert torch.equal(pool_of(arena).table, table)


@given(pages=st.lists(st.integers(0, 9)))
def test_stretches_are_all_pages_in_their_order_and_as_long_as_they_can_be(
    pages: list[int],
) -> None:
    stretches = list(runs(pages))
    assert [first + k for _, first, n in stretches for k in range(n)] == pages
    assert [at + k for at, _, n in stretches for k in range(n)] == list(range(len(pages)))
    for (_, first, n), (_, following, _) in pairwise(stretches):
        assert following != first + n


def test_slots_of_the_test_arena_have_pages_of_their_own() -> None:
    arena = arena_of(LAYOUT, 3, n_tokens=100)
    held = [page for slot in range(3) for page in pool_of(arena).pages_of(slot)]
    assert sorted(held) == list(range(6))
