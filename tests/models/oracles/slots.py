"""Slots with everything that a model sees of them, and their running, step by step."""

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Row, batch_of
from wkvm.core.layout import GUEST_PAGES, GUEST_TOKENS
from wkvm.models.base import Model
from wkvm.state.arena import Arena
from wkvm.state.guest import pages_in

PAGES_A_SLOT = 2
"""For at least as many tokens as the longest sequence has."""


class Slots:
    """An arena, and pages for each slot of it, that lie in no order.

    All of it is poisoned: what a model reads without having been given it shows.
    """

    def __init__(self, model: Model, n_slots: int) -> None:
        self.model = model
        has_guest = model.layout.guest is not None
        n_pages = n_slots * PAGES_A_SLOT if has_guest else 0
        self.arena = Arena(model.layout, n_slots, "cpu", n_pages=n_pages)
        self.arena.poison(range(n_slots))
        if self.arena.pool is not None:
            pages = random.Random(n_slots).sample(range(n_pages), n_pages)
            self.arena.pool.poison(pages)
            for slot in range(n_slots):
                self.arena.pool.grant(slot, pages[slot::n_slots])

    def open(self, slot: int) -> None:
        """Make a slot the empty sequence."""
        self.arena.zero([slot])

    def absorb(self, rows: Sequence[Row]) -> list[Tensor]:
        """Run a step; the logits after each token of each row."""
        logits = self.model.forward(batch_of(rows, all_logits=True), self.arena.views)
        return list(torch.split(logits, [len(ids) for _, ids in rows]))

    def in_pieces(self, slot: int, ids: Sequence[int], cuts: Sequence[int]) -> Tensor:
        """Absorb ``ids`` in pieces that end at ``cuts``; the logits after each."""
        pieces = [ids[start:stop] for start, stop in pairwise([0, *cuts, len(ids)])]
        return torch.cat([self.absorb([(slot, piece)])[0] for piece in pieces])

    def state(self, slot: int) -> dict[str, Tensor]:
        """The tensors of a slot's record, and what its pages hold: ``[L, parts, T, H, D]``."""
        state = self.arena.read(slot)
        if self.arena.pool is not None:
            held = pages_in(self.model.layout, self.image(slot)).permute(1, 2, 0, 3, 4, 5)
            state[GUEST_PAGES] = held.flatten(2, 3)[:, :, : int(state[GUEST_TOKENS])]
        return state

    def image(self, slot: int) -> Tensor:
        """The state of a slot, as it leaves the device."""
        pool = self.arena.pool
        return self.arena.image(slot, () if pool is None else pool.pages_of(slot))

    def restore(self, slot: int, image: Tensor) -> None:
        """Put a state into a slot."""
        n_record = self.model.layout.record_bytes
        self.arena.fill(image[:n_record], [slot])
        if self.arena.pool is not None and self.model.layout.guest is not None:
            n_pages = (len(image) - n_record) // self.model.layout.guest.page_bytes
            self.arena.pool.fill(self.arena.pool.pages_of(slot)[:n_pages], image[n_record:])

    def bytes_of(self, slot: int) -> bytes:
        """The record and all pages of a slot."""
        raw = self.arena.records[slot].numpy().tobytes()
        if self.arena.pool is not None:
            pages = self.arena.pool.page_bytes[list(self.arena.pool.pages_of(slot))]
            raw += pages.numpy().tobytes()
        return raw
