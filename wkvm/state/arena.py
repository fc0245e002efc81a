"""The device memory of all live states: one contiguous record per slot.

A record holds every tensor of a state, so that copying, saving or moving a state is one copy
of ``record_bytes``; for models with attention layers, and of the pages of a guest pool. Which slot
or page is free is not known here.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from wkvm.core.layout import GUEST_PAGES, GUEST_TABLE, GUEST_TOKENS, ITEM_BYTES, StateLayout
from wkvm.state.dtypes import DTYPES
from wkvm.state.guest import GuestPool, finished, runs
from wkvm.state.memory import host_memory


class Arena:
    """``n_slots`` records of one layout, on one device. All of them start as zeros.

    Args:
        n_pages: of a layout with a guest, how many pages all slots have together; 0 without.

    Attributes:
        layout: of every record.
        n_slots: slots are in ``[0, n_slots)``.
        records: ``[n_slots, record_bytes]`` uint8, contiguous.
        pool: the pages; None without a guest.
        views: by tensor name, ``[n_slots, *shape]``: the same memory, typed. The first stride
            is the record; within a slot a view is contiguous. With a guest also the pool's
            ``guest.pages`` and ``guest.table``, as in ``GuestPool``.
    """

    def __init__(
        self,
        layout: StateLayout,
        n_slots: int,
        device: torch.device | str,
        *,
        n_pages: int = 0,
    ) -> None:
        if n_slots < 1:
            raise ValueError(f"an arena needs at least one slot, got {n_slots}")
        if (layout.guest is None) != (n_pages == 0):
            raise ValueError(f"{n_pages} pages for a layout with the guest {layout.guest}")
        self.layout = layout
        self.n_slots = n_slots
        self.records = torch.zeros(n_slots, layout.record_bytes, dtype=torch.uint8, device=device)
        self._of_records = _views(layout, self.records)
        self.pool: GuestPool | None = None
        views = dict(self._of_records)
        if layout.guest is not None:
            self.pool = GuestPool(layout.guest, n_pages, n_slots, device)
            views |= {GUEST_PAGES: self.pool.pages, GUEST_TABLE: self.pool.table}
        self.views: Mapping[str, Tensor] = MappingProxyType(views)

    def zero(self, slots: Sequence[int]) -> None:
        """Make each of ``slots`` the empty sequence, whatever pages it has.

        Does not wait for the device.
        """
        words = self.records.view(torch.int64)  # bytes one by one would take eight times as long
        words.index_fill_(0, self._index(slots), 0)

    def poison(self, slots: Sequence[int]) -> None:
        """Fill the float tensors of ``slots`` with NaN, and the others with their lowest value.

        A row that is computed from such a slot shows it. The count of its pages' tokens is zero,
        since kernels take addresses from it. Pages are poisoned by the pool.
        """
        index = self._index(slots)
        for name, view in self._of_records.items():
            if name == GUEST_TOKENS:
                view.index_fill_(0, index, 0)
                continue
            is_float = view.dtype.is_floating_point
            # Not an assignment: that would wait for a transfer of the number to the device.
            view.index_fill_(0, index, float("nan") if is_float else torch.iinfo(view.dtype).min)

    def fill(self, record: Tensor, slots: Sequence[int]) -> None:
        """Make each of ``slots`` a copy of ``record``: ``[record_bytes]`` uint8, on this device.

        Its pages are filled by the pool. Does not wait for the device.
        """
        source = record.view(torch.int64)
        words = self.records.view(torch.int64)
        if len(slots) == 1:
            words[self._checked(slots[0])].copy_(source, non_blocking=True)
        else:
            words.index_copy_(0, self._index(slots), source.expand(len(slots), -1))

    def copy(self, source: int, targets: Sequence[int]) -> None:
        """Copy the record of ``source`` over each of ``targets``, padding included.

        Pages are granted by the pool: whoever writes to one must not share it. Does not wait for
        the device.
        """
        # The clone keeps the read apart from the write; then all targets are one launch.
        self.fill(self.records[self._checked(source)].clone(), targets)

    def is_finite(self, slot: int, pages: Sequence[int] = ()) -> Tensor:
        """Whether there is no NaN or infinity in the record of ``slot``, nor in these pages.

        One pass over them. Does not wait for the device.

        Args:
            pages: full ones: what was never written counts, too.

        Returns:
            A bool, on the arena's device.
        """
        at = self._checked(slot)
        views = [view[at] for view in self._of_records.values() if view.is_floating_point()]
        if self.pool is not None:
            views += [self.pool.pages[first : first + n] for _, first, n in runs(pages)]
        # A sum has a NaN if anything in it is one, or infinite; one too large for float32 is none.
        sums = [view.sum(dtype=torch.float32) for view in views]
        if not sums:
            return torch.ones((), dtype=torch.bool, device=self.records.device)
        return torch.stack(sums).isfinite().all()

    def read(self, slot: int) -> dict[str, Tensor]:
        """A copy of each tensor of ``slot``'s record, on the arena's device."""
        at = self._checked(slot)
        return {name: view[at].clone() for name, view in self._of_records.items()}

    def image(self, slot: int, pages: Sequence[int] = ()) -> Tensor:
        """The state of ``slot`` as one uint8 tensor on the host: see ``StateLayout.image_bytes``.

        Waits for the device.

        Args:
            pages: the slot's, in order: at least those that hold its tokens.

        Raises:
            ValueError: these are too few for the tokens that the record counts.
        """
        record, n_record = self.records[self._checked(slot)], self.layout.record_bytes
        if self.pool is None:
            return record.to("cpu", copy=True)
        image = host_memory(n_record + len(pages) * self.pool.spec.page_bytes)
        image[:n_record].copy_(record)
        self.pool.read(pages, image[n_record:])
        if image.device != record.device:
            torch.cuda.synchronize(record.device)
        return finished(self.layout, image)

    def write(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the record of ``slot``. Nothing is written unless every tensor fits.

        Raises:
            ValueError: ``tensors`` are not those of the layout, in name, shape or dtype.
        """
        at = self._checked(slot)
        if tensors.keys() != self._of_records.keys():
            raise ValueError(f"expected tensors {list(self._of_records)}, got {list(tensors)}")
        for name, view in self._of_records.items():
            given = tensors[name]
            if given.shape != view.shape[1:] or given.dtype != view.dtype:
                raise ValueError(
                    f"{name}: expected {tuple(view.shape[1:])} {view.dtype}, "
                    f"got {tuple(given.shape)} {given.dtype}"
                )
        for name, view in self._of_records.items():
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
