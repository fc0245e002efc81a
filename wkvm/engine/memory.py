"""What the sampler remembers of the ids that came before: the counts behind the penalties.

A function of a slot's token log and of its requests' ``penalty_decay``, of nothing else: not
of where the prompt was cut, of the other rows, or of the slot's last tenant. Ids enter it when
they are fed to the model, so a sampled stop id never does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wkvm.core.plan import RowPlan
from wkvm.core.start import Entry
from wkvm.kernels.sampling import penalize


class _Seen:
    """The distinct ids of one token log, and how often each occurred in its output.

    Attributes:
        n: how many distinct ids.
        ids, counts, in_output: the first ``n`` elements count; the rest is room to grow.
    """

    def __init__(self) -> None:
        self.n = 0
        self.ids: NDArray[np.int64] = np.zeros(64, np.int64)
        self.counts: NDArray[np.float32] = np.zeros(64, np.float32)
        self.in_output: NDArray[np.bool_] = np.zeros(64, np.bool_)
        self._index = dict[int, int]()

    def add_prompt(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            self._index_of(token_id)

    def add_output(self, token_id: int, decay: float) -> None:
        if decay != 1:
            self.counts[: self.n] *= decay
        index = self._index_of(token_id)
        self.counts[index] += 1
        self.in_output[index] = True

    def put_output(self, token_id: int, count: float) -> None:
        index = self._index_of(token_id)
        self.counts[index] = count
        self.in_output[index] = True

    def by_id(self) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        ids, is_output = self.ids[: self.n], self.in_output[: self.n]
        counts = zip(
            ids[is_output].tolist(), self.counts[: self.n][is_output].tolist(), strict=True
        )
        return tuple(sorted(counts)), frozenset(ids.tolist())

    def _index_of(self, token_id: int) -> int:
        index = self._index.get(token_id)
        if index is None:
            index = self._index[token_id] = self.n
            self.n += 1
            if index == len(self.ids):
                self.ids = np.concatenate((self.ids, np.zeros_like(self.ids)))
                self.counts = np.concatenate((self.counts, np.zeros_like(self.counts)))
                self.in_output = np.concatenate((self.in_output, np.zeros_like(self.in_output)))
            self.ids[index] = token_id
        return index


class PenaltyMemory:
    """Which ids occurred, and how often, for the slots whose requests have penalties.

    Lives on the host and holds only ids that occurred: a few microseconds per row and step,
    whatever the size of the vocabulary, and one transfer per step if the logits are elsewhere.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._seen = dict[int, _Seen]()

    @property
    def n_slots(self) -> int:
        """How many slots hold memory."""
        return len(self._seen)

    def start(self, slot: int, entry: Entry | None = None, *, decay: float = 1.0) -> None:
        """Give ``slot`` the memory of ``entry``, or of the empty sequence."""
        self._seen[slot] = seen = _Seen()
        if entry is not None:
            seen.add_prompt(sorted(entry.seen))
            for token_id, count in entry.counts:
                seen.put_output(token_id, count)
            for token_id in entry.fed_output:
                seen.add_output(token_id, decay)

    def copy(self, slot: int) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        """What is remembered: counts of the output by id, and all ids. Empty if nothing is."""
        seen = self._seen.get(slot)
        if seen is None:
            return (), frozenset()
        return seen.by_id()

    def drop(self, slot: int) -> None:
        """Forget ``slot``, if it has memory."""
        self._seen.pop(slot, None)

    def feed(self, row: RowPlan) -> None:
        """Absorb the ids of a row, whose slot was started."""
        seen = self._seen[row.slot]
        n_of_prompt = min(max(row.n_prompt - row.position, 0), len(row.ids))
        seen.add_prompt(row.ids[:n_of_prompt])
        for token_id in row.ids[n_of_prompt:]:
            seen.add_output(token_id, row.params.penalty_decay)

    def penalize(self, logits: Tensor, indices: Sequence[int], rows: Sequence[RowPlan]) -> None:
        """Apply the penalties of ``rows``, whose logits are ``logits[indices]``, in place."""
        seen = [self._seen[row.slot] for row in rows]
        sizes = [one.n for one in seen]
        factors = np.array(
            [
                (
                    row.params.repetition_penalty,
                    row.params.presence_penalty,
                    row.params.frequency_penalty,
                )
                for row in rows
            ],
            np.float32,
        )
        repetition, presence, frequency = np.repeat(factors, sizes, 0).T
        penalize(
            logits,
            self._tensor(np.repeat(np.array(indices, np.int64), sizes)),
            self._tensor(np.concatenate([one.ids[: one.n] for one in seen])),
            self._tensor(np.concatenate([one.counts[: one.n] for one in seen])),
            self._tensor(np.concatenate([one.in_output[: one.n] for one in seen])),
            self._tensor(repetition),
            self._tensor(presence),
            self._tensor(frequency),
        )

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
