"""Slots and pages of an arena in any order of calls, against a model of bytes.

What the engine does to an arena: slots are taken, zeroed, written, forked, put into images and
filled from them, and given back. Whatever is given back is poisoned, as in no product, so that
whoever looks at it shows it.
"""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from tests.machines import walk
from tests.soak import amount, tell
from tests.state.images import KINDS, PAGED
from wkvm.core.layout import GUEST_TOKENS, PAGE_TOKENS
from wkvm.core.pages import PageAllocator
from wkvm.core.slots import SlotAllocator
from wkvm.state.arena import Arena
from wkvm.state.guest import NO_PAGE

PAGE_BYTES = PAGED.guest.page_bytes if PAGED.guest is not None else 0


class ArenaMachine(RuleBasedStateMachine):
    """Live slots, each with the bytes of its record and, with a guest, of its pages."""

    @initialize(
        kind=st.sampled_from(list(KINDS)), n_slots=st.integers(1, 5), n_pages=st.integers(1, 8)
    )
    def begin(self, kind: str, n_slots: int, n_pages: int) -> None:
        self.layout = KINDS[kind]
        self.n_slots, self.n_pages = n_slots, n_pages if self.layout.guest is not None else 0
        self.arena = Arena(self.layout, n_slots, "cpu", n_pages=self.n_pages)
        self.slots = SlotAllocator(n_slots)
        self.pages = PageAllocator(self.n_pages) if self.n_pages else None
        self.records = dict[int, Tensor]()
        self.held = dict[int, tuple[int, ...]]()
        self.contents = dict[int, Tensor]()
        self.images = list[Tensor]()
        self.poison(range(n_slots), range(self.n_pages))

    # --- what the engine does ----------------------------------------------------------

    def poison(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        self.arena.poison(slots)
        if self.arena.pool is not None:
            self.arena.pool.poison(pages)

    def take(self, n_pages: int) -> int | None:
        """A slot with so many pages, if both are there."""
        if not self.slots.n_free or (self.pages is not None and self.pages.n_free < n_pages):
            return None
        (slot,) = self.slots.alloc()
        self.held[slot] = () if self.pages is None else self.pages.alloc(n_pages)
        if self.arena.pool is not None:
            self.arena.pool.grant(slot, self.held[slot])
        return slot

    def count(self, slot: int, n_tokens: int) -> None:
        if self.arena.pool is not None:
            self.arena.views[GUEST_TOKENS][slot] = n_tokens

    def note(self, slot: int) -> None:
        """What is in a slot now is what must be there from here on."""
        self.records[slot] = self.arena.records[slot].clone()
        for page in self.held[slot]:
            assert self.arena.pool is not None
            self.contents[page] = self.arena.pool.page_bytes[page].clone()

    @rule(seed=st.integers(0, 2**32), n_tokens=st.integers(0, 3 * PAGE_TOKENS))
    def start(self, seed: int, n_tokens: int) -> None:
        """A sequence begins at nothing, and absorbs tokens."""
        slot = self.take(-(-n_tokens // PAGE_TOKENS))
        if slot is None:
            return
        self.arena.zero([slot])
        assert not self.arena.records[slot].any()
        self.write(slot, seed, n_tokens)

    def write(self, slot: int, seed: int, n_tokens: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        before = self.arena.read(slot)
        tensors = {
            name: torch.randint(0, 100, tensor.shape, generator=draw).to(tensor.dtype)
            for name, tensor in before.items()
        }
        self.arena.write(slot, tensors)
        self.count(slot, n_tokens)
        if self.arena.pool is not None and (held := self.held[slot]):
            size = (len(held) * PAGE_BYTES,)
            source = torch.randint(0, 100, size, generator=draw).to(torch.uint8)
            self.arena.pool.fill(held, source)
        self.note(slot)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.records)))
        n_pages = len(self.held[source])
        targets = [
            slot
            for _ in range(data.draw(st.integers(1, 3)))
            if (slot := self.take(n_pages)) is not None
        ]
        self.arena.copy(source, targets)
        for target in targets:
            if self.arena.pool is not None and n_pages:
                copied = torch.empty(n_pages * PAGE_BYTES, dtype=torch.uint8)
                self.arena.pool.read(self.held[source], copied)
                self.arena.pool.fill(self.held[target], copied)
            self.note(target)
            assert torch.equal(self.records[target], self.records[source])

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def hibernate(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.records)))
        image = self.arena.image(slot, self.held[slot])
        assert torch.equal(image[: self.layout.record_bytes], self.records[slot])
        self.images.append(image)
        self.give_back(slot)

    @precondition(lambda self: self.images)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        image = self.images[data.draw(st.integers(0, len(self.images) - 1))]
        n_record = self.layout.record_bytes
        n_pages = (len(image) - n_record) // PAGE_BYTES
        slot = self.take(n_pages)
        if slot is None:
            return
        self.arena.fill(image[:n_record], [slot])
        if self.arena.pool is not None and n_pages:
            self.arena.pool.fill(self.held[slot], image[n_record:])
        self.note(slot)
        again = self.arena.image(slot, self.held[slot])
        assert torch.equal(again, image), "an image that comes back is another one"

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.give_back(data.draw(st.sampled_from(sorted(self.records))))

    def give_back(self, slot: int) -> None:
        pages = self.held.pop(slot)
        del self.records[slot]
        self.slots.free(slot)
        if self.pages is not None:
            assert self.pages.free(pages) == pages
        for page in pages:
            del self.contents[page]
        self.poison([slot], pages)

    # --- what holds --------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "arena"))
    @invariant()
    def nothing_but_what_was_meant_has_changed(self) -> None:
        assert self.slots.n_free + len(self.records) == self.n_slots
        for slot in range(self.n_slots):
            if slot in self.records:
                assert torch.equal(self.arena.records[slot], self.records[slot])
            else:
                assert self.arena.views["toy.matrix"][slot].isnan().all()
        if (pool := self.arena.pool) is None or self.pages is None:
            return
        assert self.pages.n_free + len(self.contents) == self.n_pages
        for page in range(self.n_pages):
            if page in self.contents:
                assert torch.equal(pool.page_bytes[page], self.contents[page])
            else:
                assert pool.pages[page].isnan().all()
        for slot, pages in self.held.items():
            row = pool.table[slot].tolist()
            assert row == [*pages, *[NO_PAGE] * (len(row) - len(pages))]

    @precondition(lambda self: hasattr(self, "images"))
    @invariant()
    def few_images_are_kept(self) -> None:
        del self.images[:-4]


def test_an_arena_holds_what_a_model_of_bytes_holds_in_any_order_of_calls() -> None:
    n_steps = walk(ArenaMachine, amount(1_000, 250_000), length=40)
    tell(0, "an arena against its model", n_steps, "steps")
