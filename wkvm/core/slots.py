"""Which slots of the state arena are free, and how many of the others each tenant holds.

Bookkeeping only: this module deals in slot numbers, never in tensors, so that the
scheduler that relies on it is tested without torch.
"""

from collections import Counter

from wkvm.core.errors import OutOfSlotsError


class SlotAllocator:
    """A free list over slots. A slot keeps its number until freed: captured graphs hold on to it.

    The slot freed last is handed out first, since its memory is the most likely to be
    in a cache still.
    """

    def __init__(self, n_slots: int) -> None:
        if n_slots < 1:
            raise ValueError(f"n_slots is {n_slots}, at least 1 is needed")
        self.n_slots = n_slots
        self._free = list(range(n_slots - 1, -1, -1))
        self._is_free = [True] * n_slots

    @property
    def n_free(self) -> int:
        """How many slots can be taken."""
        return len(self._free)

    def alloc(self, n: int = 1) -> list[int]:
        """Take ``n`` slots, or none.

        Returns:
            ``n`` distinct slot numbers. Their contents are undefined.

        Raises:
            OutOfSlotsError: fewer than ``n`` slots are free; nothing was taken.
        """
        if n < 0:
            raise ValueError(f"cannot take {n} slots")
        if n > len(self._free):
            raise OutOfSlotsError(n, len(self._free))
        taken = [self._free.pop() for _ in range(n)]
        for slot in taken:
            self._is_free[slot] = False
        return taken

    def free(self, slot: int) -> None:
        """Give a slot back.

        Raises:
            ValueError: there is no such slot, or it is free already; nothing changed.
        """
        if not 0 <= slot < self.n_slots:
            raise ValueError(f"slot {slot} is not in [0, {self.n_slots})")
        if self._is_free[slot]:
            raise ValueError(f"slot {slot} is free already")
        self._is_free[slot] = True
        self._free.append(slot)


class TenantSlots:
    """The slots of all tenants, and those that are lent to what anybody's request goes before.

    Args:
        limit: how many one tenant may hold; None for all.
    """

    def __init__(self, n_slots: int, limit: int | None) -> None:
        self._slots = SlotAllocator(n_slots)
        self._limit = n_slots if limit is None else limit
        self._n_held = Counter[str]()
        self._n_idle = 0
        self._freed = dict[int, None]()

    @property
    def n_slots(self) -> int:
        """How many slots there are."""
        return self._slots.n_slots

    @property
    def n_free(self) -> int:
        """How many of them a request may have: those that nobody holds, and idle ones."""
        return self._slots.n_free + self._n_idle

    @property
    def n_unused(self) -> int:
        """How many of these nobody holds. Before another one is taken, an idle one is reclaimed."""
        return self._slots.n_free

    def n_free_for(self, tenant: str) -> int:
        """How many of these a tenant may take."""
        return min(self.n_free, self._limit - self._n_held[tenant])

    def is_at_limit(self, tenant: str) -> bool:
        """Whether a tenant may take none, however many are free."""
        return self._n_held[tenant] >= self._limit

    def alloc(self, tenant: str) -> int:
        """Take a slot.

        Raises:
            OutOfSlotsError: none is free.
        """
        (slot,) = self._slots.alloc()
        self._n_held[tenant] += 1
        return slot

    def free(self, slot: int, tenant: str) -> None:
        """Give a slot back."""
        self._slots.free(slot)
        self._n_held[tenant] -= 1
        if not self._n_held[tenant]:
            del self._n_held[tenant]
        self._freed[slot] = None

    def lend(self) -> int:
        """Take a slot for what is no request's.

        Raises:
            OutOfSlotsError: none is unused.
        """
        (slot,) = self._slots.alloc()
        return slot

    def adopt(self, tenant: str) -> None:
        """A slot that was lent, and is not idle, is a tenant's from now on."""
        self._n_held[tenant] += 1

    def idle(self, n: int) -> None:
        """So many slots more that are lent may be reclaimed, or fewer."""
        self._n_idle += n

    def reclaim(self, slot: int) -> None:
        """Give back a slot that was lent. It is not counted as idle any more."""
        self._slots.free(slot)
        self._freed[slot] = None

    def take_freed(self) -> tuple[int, ...]:
        """The slots that were given back since the last call, whoever holds them now."""
        freed = tuple(self._freed)
        self._freed.clear()
        return freed
