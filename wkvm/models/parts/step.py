"""What the parts of a model need to know of a step beside its tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.core.layout import GUEST_TABLE, GUEST_TOKENS
from wkvm.kernels.rows import Rows


@dataclass(frozen=True)
class Step:
    """One forward pass.

    Attributes:
        rows: how its tokens are packed.
        states: as in ``Model.forward``.
    """

    rows: Rows
    states: Mapping[str, Tensor]

    @cached_property
    def guest_lengths(self) -> Tensor:
        """``[N]`` int32 by slot: tokens in a slot's pages before this step."""
        return self.states[GUEST_TOKENS].squeeze(1)

    @property
    def guest_table(self) -> Tensor:
        """``[N, max_pages]`` int32 by slot: the pages of its tokens."""
        return self.states[GUEST_TABLE]

    @cached_property
    def positions(self) -> Tensor:
        """``[T]`` int64: how many tokens of its sequence are before a token. 0 for pad rows."""
        slots = self.rows.slots
        lengths = self.guest_lengths.index_select(0, slots.clamp(min=0))
        lengths = lengths.where(slots >= 0, 0).to(torch.int64)
        if self.rows.is_decode:
            return lengths
        return lengths.index_select(0, self.rows.row_of_token) + self.rows.place_in_row

    def advance(self) -> None:
        """Count the step's tokens in the slots' pages. The last thing that a step does."""
        slots = self.rows.slots.clamp(min=0).to(torch.int64)
        self.guest_lengths.index_add_(0, slots, self.rows.live_lengths)


Part: TypeAlias = Callable[[Tensor, Step], Tensor]
"""``[T, C]`` to ``[T, C]``; states of the step's slots are updated in place."""
