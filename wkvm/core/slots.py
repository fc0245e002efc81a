"""Which slots of the state arena are free.

Bookkeeping only: this module deals in slot numbers, never in tensors, so that the
scheduler that relies on it is tested without torch.
"""

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
