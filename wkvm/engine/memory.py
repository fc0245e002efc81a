"""What the sampler remembers of the ids that came before: the counts behind the penalties.

A function of a slot's token log and of its request's ``penalty_decay``, of nothing else: not
of where the prompt was cut, of the other rows, or of the slot's last tenant. Ids enter it when
they are fed to the model, so a sampled stop id never does.
"""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from wkvm.core.plan import RowPlan
from wkvm.kernels.sampling import penalize


class PenaltyMemory:
    """Which ids occurred, and how often, for the slots whose requests have penalties.

    Nine bytes per slot in use and id of the vocabulary; nothing at all until the first
    request with penalties comes. Not for slots that were not started here.
    """

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._entries = dict[int, int]()
        self._free = list[int]()
        self._in_prompt = torch.empty((0, vocab_size), dtype=torch.bool, device=device)
        self._in_output = torch.empty((0, vocab_size), dtype=torch.bool, device=device)
        self._counts = torch.empty((0, vocab_size), dtype=torch.float32, device=device)

    @property
    def n_entries(self) -> int:
        """How many slots hold memory."""
        return len(self._entries)

    def start(self, slot: int) -> None:
        """Give ``slot`` the memory of the empty sequence."""
        if slot not in self._entries:
            if not self._free:
                self._grow()
            self._entries[slot] = self._free.pop()
        entry = self._entries[slot]
        self._in_prompt[entry] = False
        self._in_output[entry] = False
        self._counts[entry] = 0

    def drop(self, slot: int) -> None:
        """Take back the memory of ``slot``, if it has any."""
        entry = self._entries.pop(slot, None)
        if entry is not None:
            self._free.append(entry)

    def feed(self, rows: Sequence[RowPlan]) -> None:
        """Absorb the ids of ``rows``, all of which have memory."""
        prompt_entries, prompt_ids = list[int](), list[int]()
        outputs = list[tuple[tuple[int, float, int], ...]]()
        for row in rows:
            entry = self._entries[row.slot]
            n_of_prompt = min(max(row.n_prompt - row.position, 0), len(row.ids))
            prompt_entries += [entry] * n_of_prompt
            prompt_ids += row.ids[:n_of_prompt]
            decay = row.params.penalty_decay
            outputs.append(tuple((entry, decay, i) for i in row.ids[n_of_prompt:]))
        if prompt_ids:
            self._in_prompt[self._index(prompt_entries), self._index(prompt_ids)] = True
        # One id of each row at a time: the counts fade between one id and the next.
        for fed in zip_longest(*outputs):
            self._feed_output([one for one in fed if one is not None])

    def _feed_output(self, fed: list[tuple[int, float, int]]) -> None:
        fading = [(entry, decay) for entry, decay, _ in fed if decay != 1]
        if fading:
            entries = self._index([entry for entry, _ in fading])
            decays = torch.tensor([decay for _, decay in fading], device=self._device)
            self._counts[entries] *= decays[:, None]
        entries = self._index([entry for entry, _, _ in fed])
        ids = self._index([token_id for _, _, token_id in fed])
        self._in_output[entries, ids] = True
        self._counts[entries, ids] += 1

    def penalize(self, logits: Tensor, indices: Sequence[int], rows: Sequence[RowPlan]) -> None:
        """Apply the penalties of ``rows``, whose logits are ``logits[indices]``, in place."""
        at = self._index(indices)
        entries = self._index([self._entries[row.slot] for row in rows])
        factors = [
            (
                row.params.repetition_penalty,
                row.params.presence_penalty,
                row.params.frequency_penalty,
            )
            for row in rows
        ]
        repetition, presence, frequency = torch.tensor(factors, device=self._device).unbind(1)
        logits[at] = penalize(
            logits[at],
            self._in_prompt[entries],
            self._in_output[entries],
            self._counts[entries],
            repetition,
            presence,
            frequency,
        )

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _grow(self) -> None:
        old = len(self._counts)
        new = max(2 * old, 4)
        self._free += reversed(range(old, new))
        self._in_prompt = self._grown(self._in_prompt, new)
        self._in_output = self._grown(self._in_output, new)
        self._counts = self._grown(self._counts, new)

    def _grown(self, tensor: Tensor, n: int) -> Tensor:
        return torch.cat((tensor, tensor.new_zeros((n - len(tensor), self._vocab_size))))
