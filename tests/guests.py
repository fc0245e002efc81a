"""Arenas whose slots have pages, without a scheduler that grants them."""

from wkvm.core.layout import StateLayout
from wkvm.state.arena import Arena


def arena_of(layout: StateLayout, n_slots: int, device: str = "cpu", *, n_tokens: int) -> Arena:
    """An arena, each of whose slots has pages for ``n_tokens`` tokens if there is a guest.

    The pages of a slot are neither in order nor side by side.
    """
    each = layout.n_pages(n_tokens)
    arena = Arena(layout, n_slots, device, n_pages=n_slots * each)
    if arena.pool is not None:
        for slot in range(n_slots):
            arena.pool.grant(slot, range(arena.pool.n_pages - 1 - slot, -1, -n_slots))
    return arena
