"""How the rows of one step lie in its packed token axis: what every slot-indexed kernel takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows of one step, packed one after the other along the token axis.

    Attributes:
        slots: ``[B]`` int32 on the device of the tensors; distinct where not negative. A row
            with a negative slot is a pad row: it has no state, and kernels return zeros for it.
        slot_list: ``slots``, on the host; None in a captured step, whose slots the device alone
            knows. Whatever is made of it below cannot be had there.
        lengths: tokens of each row, at least 1; on the host.
    """

    slots: Tensor
    slot_list: tuple[int, ...] | None
    lengths: tuple[int, ...]

    @staticmethod
    def of_decode(slots: Tensor) -> "Rows":
        """Rows of one token each, whose slots the device alone knows: ``[B]`` int32."""
        return Rows(slots, None, (1,) * slots.shape[0])

    def __post_init__(self) -> None:
        if len(self.lengths) != self.slots.shape[0] or (
            self.slot_list is not None and len(self.slot_list) != len(self.lengths)
        ):
            raise ValueError("slots, slot_list and lengths name different numbers of rows")
        if min(self.lengths, default=0) < 1:
            raise ValueError(f"each row has at least one token, got lengths {self.lengths}")

    @cached_property
    def is_decode(self) -> bool:
        """Whether every row has exactly one token, so that row b is token b."""
        return self.n_tokens == len(self.lengths)

    @cached_property
    def n_tokens(self) -> int:
        """T, the tokens of all rows."""
        return sum(self.lengths)

    @cached_property
    def host_offsets(self) -> tuple[int, ...]:
        """B + 1 token indices, on the host: row b is ``[host_offsets[b], host_offsets[b + 1])``."""
        return tuple(accumulate(self.lengths, initial=0))

    @cached_property
    def offsets(self) -> Tensor:
        """``host_offsets`` as int32 on the device."""
        return self._on_device(self.host_offsets, torch.int32)

    @cached_property
    def row_of_token(self) -> Tensor:
        """``[T]`` int64 on the device: which row a token is of."""
        rows = torch.arange(len(self.lengths), device=self.slots.device)
        if self.is_decode:
            return rows
        lengths = self._on_device(self.lengths, torch.int64)
        return torch.repeat_interleave(rows, lengths, output_size=self.n_tokens)

    @cached_property
    def place_in_row(self) -> Tensor:
        """``[T]`` int64 on the device: how many tokens of its row are before a token."""
        if self.is_decode:
            return torch.zeros(len(self.lengths), dtype=torch.int64, device=self.slots.device)
        tokens = torch.arange(self.n_tokens, device=self.slots.device)
        return tokens - self.offsets[:-1].to(torch.int64).index_select(0, self.row_of_token)

    @cached_property
    def host_slots(self) -> tuple[int, ...]:
        """``slot_list``.

        Raises:
            ValueError: the device alone knows them.
        """
        if self.slot_list is None:
            raise ValueError("the host does not know the slots of a captured step")
        return self.slot_list

    @cached_property
    def live(self) -> tuple[int, ...]:
        """The rows that are no pad rows."""
        return tuple(row for row, slot in enumerate(self.host_slots) if slot >= 0)

    @cached_property
    def live_slots(self) -> Tensor:
        """Slots of the live rows, int64 on the device, to index a state with."""
        return self._on_device([self.host_slots[row] for row in self.live], torch.int64)

    @cached_property
    def live_starts(self) -> Tensor:
        """Index of the first token of each live row, int64 on the device."""
        return self._on_device([self.host_offsets[row] for row in self.live], torch.int64)

    @cached_property
    def live_ends(self) -> Tensor:
        """Index of the last token of each live row, int64 on the device."""
        return self._on_device([self.host_offsets[row + 1] - 1 for row in self.live], torch.int64)

    @cached_property
    def pad_tokens(self) -> Tensor:
        """Indices of the tokens of pad rows, int64 on the device. Empty without pad rows."""
        tokens = [
            token
            for row, slot in enumerate(self.host_slots)
            if slot < 0
            for token in range(self.host_offsets[row], self.host_offsets[row + 1])
        ]
        return self._on_device(tokens, torch.int64)

    @cached_property
    def live_lengths(self) -> Tensor:
        """``[B]`` int32 on the device: tokens of each row, 0 for pad rows."""
        if self.is_decode:
            return (self.slots >= 0).to(torch.int32)
        lengths = self._on_device(self.lengths, torch.int32)
        return lengths.where(self.slots >= 0, 0)

    def _on_device(self, numbers: Sequence[int], dtype: torch.dtype) -> Tensor:
        # From pinned memory, or the host would wait for the device.
        is_gpu = self.slots.is_cuda
        host = torch.tensor(numbers, dtype=dtype, pin_memory=is_gpu)
        return host.to(self.slots.device, non_blocking=True)
