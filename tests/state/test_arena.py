"""Facts about the arena: one record per slot, and no operation reaches beyond its slots."""

import math

import pytest
import torch

from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.state.arena import Arena

LAYOUT = StateLayout(
    (
        TensorSpec("toy.matrix", (2, 3, 5), "float32"),
        TensorSpec("toy.shift", (7,), "bfloat16"),
        TensorSpec("toy.count", (1,), "int64"),
    )
)


def filled_arena(n_slots: int = 5) -> Arena:
    arena = Arena(LAYOUT, n_slots, "cpu")
    arena.records.copy_(torch.randint(0, 100, arena.records.shape, dtype=torch.uint8))
    return arena


def test_a_new_arena_holds_empty_sequences() -> None:
    assert not Arena(LAYOUT, 3, "cpu").records.any()


def test_a_slot_is_one_contiguous_record_and_views_share_its_memory() -> None:
    arena = Arena(LAYOUT, 4, "cpu")
    assert arena.records.shape == (4, LAYOUT.record_bytes)
    assert arena.records.is_contiguous()
    for spec, offset in zip(LAYOUT.tensors, LAYOUT.offsets, strict=True):
        view = arena.views[spec.name]
        assert view.shape == (4, *spec.shape)
        assert view[2].is_contiguous()
        assert view.stride(0) * view.element_size() == LAYOUT.record_bytes
        assert view[2].data_ptr() == arena.records[2].data_ptr() + offset


def test_views_of_one_slot_do_not_overlap() -> None:
    arena = Arena(LAYOUT, 1, "cpu")
    for number, view in enumerate(arena.views.values(), start=1):
        view.fill_(number)
    for number, view in enumerate(arena.views.values(), start=1):
        assert (view == number).all()


def test_zero_clears_its_slots_and_no_other() -> None:
    arena = filled_arena()
    before = arena.records.clone()
    arena.zero([3, 1])
    assert not arena.records[[1, 3]].any()
    assert torch.equal(arena.records[[0, 2, 4]], before[[0, 2, 4]])


def test_poison_leaves_no_usable_number_in_its_slots_and_touches_no_other() -> None:
    arena = filled_arena()
    before = arena.records.clone()
    arena.poison([2])
    assert arena.views["toy.matrix"][2].isnan().all()
    assert arena.views["toy.shift"][2].isnan().all()
    assert (arena.views["toy.count"][2] == -(2**63)).all()
    assert torch.equal(arena.records[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_copy_reproduces_the_source_bit_for_bit_nan_included() -> None:
    arena = filled_arena()
    arena.views["toy.matrix"][0, 0, 0, 0] = math.nan
    before = arena.records.clone()
    arena.copy(0, [4, 2])
    assert torch.equal(arena.records[[0, 2, 4]], before[[0, 0, 0]])
    assert torch.equal(arena.records[[1, 3]], before[[1, 3]])


def test_read_is_a_copy_that_write_restores_elsewhere() -> None:
    arena = filled_arena()
    tensors = arena.read(1)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    arena.zero([1])
    arena.write(3, tensors)
    for name, tensor in kept.items():
        assert torch.equal(tensors[name], tensor)
        assert torch.equal(arena.views[name][3], tensor)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.pop("toy.shift"),
        lambda t: t.update({"toy.extra": torch.zeros(1)}),
        lambda t: t.update({"toy.shift": t["toy.shift"].float()}),
        lambda t: t.update({"toy.shift": t["toy.shift"][:-1]}),
    ],
)
def test_tensors_that_do_not_fit_change_nothing(spoil) -> None:  # type: ignore[no-untyped-def]
    arena = filled_arena()
    before = arena.records.clone()
    tensors = arena.read(0)
    spoil(tensors)
    with pytest.raises(ValueError, match=r"toy\.shift|expected tensors"):
        arena.write(1, tensors)
    assert torch.equal(arena.records, before)


@pytest.mark.parametrize("slot", [-1, 5])
def test_a_slot_outside_the_arena_is_refused_before_anything_changes(slot: int) -> None:
    arena = filled_arena()
    before = arena.records.clone()
    for call in (
        lambda: arena.zero([0, slot]),
        lambda: arena.poison([0, slot]),
        lambda: arena.copy(slot, [0]),
        lambda: arena.copy(0, [1, slot]),
        lambda: arena.read(slot),
        lambda: arena.write(slot, {}),
    ):
        with pytest.raises(ValueError, match="slot"):
            call()
    assert torch.equal(arena.records, before)
