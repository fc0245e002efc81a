import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from wkvm.core.errors import OutOfSlotsError
from wkvm.core.slots import SlotAllocator


def test_slots_are_distinct_and_in_range() -> None:
    assert sorted(SlotAllocator(5).alloc(5)) == [0, 1, 2, 3, 4]


def test_asking_for_too_many_takes_nothing() -> None:
    slots = SlotAllocator(3)
    slots.alloc()
    with pytest.raises(OutOfSlotsError) as caught:
        slots.alloc(3)
    assert (caught.value.wanted, caught.value.free, slots.n_free) == (3, 2, 2)


def test_a_double_free_is_refused_and_changes_nothing() -> None:
    slots = SlotAllocator(2)
    (slot,) = slots.alloc()
    slots.free(slot)
    with pytest.raises(ValueError, match="free already"):
        slots.free(slot)
    assert slots.n_free == 2


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_cannot_be_freed(slot: int) -> None:
    slots = SlotAllocator(2)
    slots.alloc(2)
    with pytest.raises(ValueError, match="not in"):
        slots.free(slot)
    assert slots.n_free == 0


def test_no_slots_and_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SlotAllocator(0)
    with pytest.raises(ValueError, match="cannot take"):
        SlotAllocator(1).alloc(-1)


class AllocatorMachine(RuleBasedStateMachine):
    """The allocator against a set of numbers."""

    @initialize(n_slots=st.integers(1, 8))
    def start(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self.slots = SlotAllocator(n_slots)
        self.used = set[int]()

    @rule(n=st.integers(0, 9))
    def alloc(self, n: int) -> None:
        n_free = self.n_slots - len(self.used)
        if n > n_free:
            with pytest.raises(OutOfSlotsError):
                self.slots.alloc(n)
            return
        taken = self.slots.alloc(n)
        assert len(set(taken)) == n
        assert not self.used & set(taken)
        assert all(0 <= slot < self.n_slots for slot in taken)
        self.used |= set(taken)

    @rule(slot=st.integers(-1, 8))
    def free(self, slot: int) -> None:
        if slot in self.used:
            self.slots.free(slot)
            self.used.discard(slot)
        else:
            with pytest.raises(ValueError, match="slot"):
                self.slots.free(slot)

    @invariant()
    def free_and_used_are_all(self) -> None:
        assert self.slots.n_free + len(self.used) == self.n_slots


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
