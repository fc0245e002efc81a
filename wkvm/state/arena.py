"""The device memory of all live states: one contiguous record per slot.

A record holds every tensor of a state, so that copying, saving or moving a state is one copy
of ``record_bytes``. Which slot is free is not known here.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from wkvm.core.layout import ITEM_BYTES, StateLayout

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
}
"""The dtypes of ``ITEM_BYTES``, as torch has them."""


class Arena:
    """``n_slots`` records of one layout, on one device. All of them start as zeros.

    Attributes:
        layout: of every record.
        n_slots: slots are in ``[0, n_slots)``.
        records: ``[n_slots, record_bytes]`` uint8, contiguous.
        views: by tensor name, ``[n_slots, *shape]``: the same memory, typed. The first stride
            is the record; within a slot a view is contiguous.
    """

    def __init__(self, layout: StateLayout, n_slots: int, device: torch.device | str) -> None:
        if n_slots < 1:
            raise ValueError(f"an arena needs at least one slot, got {n_slots}")
        self.layout = layout
        self.n_slots = n_slots
        self.records = torch.zeros(n_slots, layout.record_bytes, dtype=torch.uint8, device=device)
        self.views: Mapping[str, Tensor] = MappingProxyType(_views(layout, self.records))

    def zero(self, slots: Sequence[int]) -> None:
        """Make each of ``slots`` the empty sequence. Does not wait for the device."""
        words = self.records.view(torch.int64)  # bytes one by one would take eight times as long
        words.index_fill_(0, self._index(slots), 0)

    def poison(self, slots: Sequence[int]) -> None:
        """Fill the float tensors of ``slots`` with NaN, and the others with their lowest value.

        A row that is computed from such a slot shows it.
        """
        index = self._index(slots)
        for view in self.views.values():
            is_float = view.dtype.is_floating_point
            # Not an assignment: that would wait for a transfer of the number to the device.
            view.index_fill_(0, index, float("nan") if is_float else torch.iinfo(view.dtype).min)

    def fill(self, record: Tensor, slots: Sequence[int]) -> None:
        """Make each of ``slots`` a copy of ``record``: ``[record_bytes]`` uint8, on this device.

        Does not wait for the device.
        """
        source = record.view(torch.int64)
        words = self.records.view(torch.int64)
        if len(slots) == 1:
            words[self._checked(slots[0])].copy_(source, non_blocking=True)
        else:
            words.index_copy_(0, self._index(slots), source.expand(len(slots), -1))

    def copy(self, source: int, targets: Sequence[int]) -> None:
        """Copy the record of ``source`` over each of ``targets``, padding included."""
        index = self._index(targets)
        # The clone keeps the read apart from the write; then all targets are one launch.
        self.records[index] = self.records[self._checked(source)].clone()

    def read(self, slot: int) -> dict[str, Tensor]:
        """A copy of each tensor of ``slot``, on the arena's device."""
        at = self._checked(slot)
        return {name: view[at].clone() for name, view in self.views.items()}

    def write(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite ``slot``. Nothing is written unless every tensor fits.

        Raises:
            ValueError: ``tensors`` are not those of the layout, in name, shape or dtype.
        """
        at = self._checked(slot)
        if tensors.keys() != self.views.keys():
            raise ValueError(f"expected tensors {list(self.views)}, got {list(tensors)}")
        for name, view in self.views.items():
            given = tensors[name]
            if given.shape != view.shape[1:] or given.dtype != view.dtype:
                raise ValueError(
                    f"{name}: expected {tuple(view.shape[1:])} {view.dtype}, "
                    f"got {tuple(given.shape)} {given.dtype}"
                )
        for name, view in self.views.items():
            view[at].copy_(tensors[name])

    def _checked(self, slot: int) -> int:
        # A negative index would silently name a slot from the end.
        if not 0 <= slot < self.n_slots:
            raise ValueError(f"slot {slot} is not in [0, {self.n_slots})")
        return slot

    def _index(self, slots: Sequence[int]) -> Tensor:
        checked = [self._checked(slot) for slot in slots]
        # From pinned memory, or the host would wait for the device.
        index = torch.tensor(checked, dtype=torch.int64, pin_memory=self.records.is_cuda)
        return index.to(self.records.device, non_blocking=True)


def _views(layout: StateLayout, records: Tensor) -> dict[str, Tensor]:
    views = dict[str, Tensor]()
    for spec, offset in zip(layout.tensors, layout.offsets, strict=True):
        item_bytes = ITEM_BYTES[spec.dtype]
        flat = records.view(DTYPES[spec.dtype])[:, offset // item_bytes :]
        flat = flat[:, : spec.nbytes // item_bytes]
        views[spec.name] = flat.view(len(records), *spec.shape)
    return views
