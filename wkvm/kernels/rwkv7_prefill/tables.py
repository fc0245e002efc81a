"""How packed rows are cut into chunks, as the kernels are told: two small tables on the device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

CHUNK = 64
"""Tokens of a chunk at most. Rows are cut from their first token on, so a prompt that is absorbed
in pieces of a multiple of this many tokens is cut at the same places as in one piece."""

EXACT_CHUNK = 16
"""Tokens of a chunk in float32 models: its products are plain float32, and more of them at a time
would not fit the registers, nor be compiled within minutes."""

FIELDS = 4
"""Numbers of an entry of either table."""


class Tables:
    """Where rows and chunks lie in the packed token axis.

    Attributes:
        rows: ``[B, 4]`` int32: slot (negative for a pad row), first chunk, number of chunks, and
            nothing.
        chunks: ``[n_chunks, 4]`` int32: first token, number of tokens, row, and nothing. A chunk
            of no tokens is skipped.
        chunk: tokens of a chunk at most.
    """

    def __init__(self, table: Tensor, n_rows: int, chunk: int) -> None:
        """``table`` is both, one after the other."""
        self._table = table
        self.chunk = chunk
        self.rows = table[:n_rows]
        self.chunks = table[n_rows:]

    @classmethod
    def empty(cls, n_rows: int, n_chunks: int, chunk: int, device: torch.device | str) -> "Tables":
        """Room for so many rows and chunks; none are there."""
        table = torch.zeros(n_rows + n_chunks, FIELDS, dtype=torch.int32, device=device)
        table[:n_rows, 0] = -1
        return cls(table, n_rows, chunk)

    def fill(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Describe other packed rows, at most as many, without waiting for the device."""
        sizes = len(self.rows), len(self.chunks)
        table = _on_host(slots, lengths, *sizes, self.chunk, self._table.device)
        self._table.copy_(table, non_blocking=True)


def n_chunks_of(lengths: Sequence[int], chunk: int) -> int:
    """Chunks of rows of these lengths."""
    return sum(-(-length // chunk) for length in lengths)


def tables_of(
    slots: Sequence[int], lengths: Sequence[int], chunk: int, device: torch.device | str
) -> Tables:
    """The tables of packed rows, uploaded without waiting for the device.

    Args:
        chunk: tokens of a chunk: 16 or 64.
    """
    sizes = len(lengths), n_chunks_of(lengths, chunk)
    table = _on_host(slots, lengths, *sizes, chunk, torch.device(device))
    return Tables(table.to(device, non_blocking=True), len(lengths), chunk)


def _on_host(
    slots: Sequence[int],
    lengths: Sequence[int],
    n_rows: int,
    n_chunks: int,
    chunk: int,
    device: torch.device,
) -> Tensor:
    """Both tables, in memory that a copy to ``device`` can be left alone with."""
    is_pinned = device.type == "cuda"
    table = torch.zeros(n_rows + n_chunks, FIELDS, dtype=torch.int32, pin_memory=is_pinned)
    n_used = len(lengths)
    of_rows, of_chunks = table.numpy()[:n_rows], table.numpy()[n_rows:]
    counts = np.array([-(-length // chunk) for length in lengths], dtype=np.int32)
    of_rows[:n_used, 0] = slots
    of_rows[n_used:, 0] = -1
    of_rows[:n_used, 1] = np.cumsum(counts) - counts
    of_rows[:n_used, 2] = counts
    row = np.repeat(np.arange(n_used, dtype=np.int32), counts)
    ends = np.cumsum(lengths, dtype=np.int32)
    starts = (ends - np.array(lengths, dtype=np.int32))[row]
    starts += (np.arange(len(row), dtype=np.int32) - of_rows[row, 1]) * chunk
    of_chunks[: len(row), 0] = starts
    of_chunks[: len(row), 1] = np.minimum(ends[row] - starts, chunk)
    of_chunks[: len(row), 2] = row
    return table
