"""A model without weights whose state is a whole record of exact integers: the hash of its tokens.

It computes what ``tests.fakes`` defines, so any part of a state that is lost, stale, doubled,
swapped or from somewhere else changes, all but certainly, every id after it. Beyond the fake
model its record is as long as is asked: each word of it is a function of the hash, and whatever
differs in any word is added to the hash. So a record that was copied in part, or of which one
page is an older one, does not go on as if nothing had been. It may have attention layers besides,
which see what is wrong with any of their pages. What comes of a history is known without an
engine, and is the same for both: ``HashLog`` says it over plain integers.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tests.fakes import (
    WORD,
    Entries,
    Weightless,
    absorb,
    hidden_of,
    mix,
    mix_words,
    signed,
)
from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.models.base import Batch, StateViews

VOCAB_SIZE = 64
N_WORDS = 64
DIGEST = "4a54" * 16


class HashLog:
    """What the hash of a history is, and what comes next, told without an engine."""

    def __init__(self, ids: Iterable[int] = (), vocab_size: int = VOCAB_SIZE) -> None:
        self.state = 0
        self._ids = np.arange(1, vocab_size + 1, dtype=np.uint64)
        self.feed(ids)

    def feed(self, ids: Iterable[int]) -> None:
        """Absorb ids."""
        state = self.state
        for token_id in ids:
            state = absorb(state, token_id)
        self.state = state

    def logits(self) -> list[float]:
        """Of the next id: exact in float32."""
        logits: list[float] = (self._numbers() / 512).tolist()
        return logits

    def likeliest(self) -> int:
        """The id that greedy decoding takes next. It is not absorbed."""
        return int(self._numbers().argmax())

    def _numbers(self) -> "npt.NDArray[np.uint64]":
        mixed = np.uint64(self.state) ^ self._ids
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
        return (mixed ^ mixed >> np.uint64(31)) >> np.uint64(52)

    def generate(self, n: int) -> list[int]:
        """The next ``n`` ids of greedy decoding, absorbed."""
        ids = list[int]()
        for _ in range(n):
            token_id = self.likeliest()
            self.feed((token_id,))
            ids.append(token_id)
        return ids


def expected_words(ids: Iterable[int], n_words: int = N_WORDS) -> list[int]:
    """The words of a state's record after ``ids``, as int64 has them."""
    return [signed(word) for word in words_of(HashLog(ids).state, n_words)]


def words_of(state: int, n_words: int) -> list[int]:
    """The words of the record of a hash: the hash, and functions of it. Zeros for zero."""
    return [state, *(mix(state * (2 * at + 1) & WORD) for at in range(1, n_words))]


class HashModel(Weightless):
    """The model of ``HashLog``, over an arena.

    Args:
        n_words: of a record, each of eight bytes.
        nan_id: an id after which the logits are NaN.
        has_guest: its states have pages.

    Attributes:
        n_absorbed: ids that it has absorbed, in all rows.
    """

    def __init__(
        self,
        *,
        vocab_size: int = VOCAB_SIZE,
        n_words: int = N_WORDS,
        eos_ids: tuple[int, ...] = (),
        digest: str = DIGEST,
        nan_id: int | None = None,
        has_guest: bool = False,
    ) -> None:
        tensors = (
            TensorSpec("hash.words", (n_words,), "int64"),
            TensorSpec("hash.zero", (3,), "float32"),
        )
        super().__init__("hash", tensors, vocab_size=vocab_size, eos_ids=eos_ids, digest=digest)
        self._entries = Entries() if has_guest else None
        if has_guest:
            self._layout = StateLayout((*tensors, *Entries.tensors), Entries.guest)
        self.n_absorbed = 0
        self._nan_id = nan_id
        self._odd = torch.arange(3, 2 * n_words + 1, 2)

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        if self._entries is not None:
            self._attend(self._entries, batch, states)
        token_ids = batch.token_ids.tolist()
        rows = [row for row, slot in enumerate(batch.slot_list) if slot >= 0]
        slots = torch.tensor([batch.slot_list[row] for row in rows])
        words, zeros = states["hash.words"], states["hash.zero"]
        hashes = iter(self._hashes(words[slots]))
        # Zero, unless the slot was poisoned and neither zeroed nor overwritten.
        stains = iter(zeros[slots].sum(dim=1).tolist())
        after, stained, last = list[int](), list[float](), list[int]()
        for slot, length in zip(batch.slot_list, batch.lengths, strict=True):
            start = len(after)
            state, stain = (0, 0.0) if slot < 0 else (next(hashes), next(stains))
            for token_id in token_ids[start : start + length]:
                state = absorb(state, token_id)
                after.append(state)
            stained += [stain] * length
            if slot >= 0:
                last.append(signed(state))
        words[slots] = self._records(last)
        if batch.hidden is not None:
            batch.hidden.take(torch.tensor([[hidden_of(one)] for one in after]), lambda x: x)
        self.n_absorbed += sum(batch.lengths)
        if self._nan_id is not None:
            for at, token_id in enumerate(token_ids):
                stained[at] = float("nan") if token_id == self._nan_id else stained[at]
        return self.logits(after, stained, batch.logit_rows.tolist())

    def _attend(self, entries: Entries, batch: Batch, states: StateViews) -> None:
        """Read and write the pages; what is wrong in them is added to the hash."""
        start = 0
        for slot, length in zip(batch.slot_list, batch.lengths, strict=True):
            if slot >= 0:
                wrong = entries.attend(states, slot, batch.token_ids[start : start + length])
                states["hash.words"][slot, 0] += signed(wrong)
            start += length

    def _hashes(self, records: Tensor) -> Sequence[int]:
        """The hash that each record holds, with all that is wrong in its other words added."""
        hashes = records[:, 0]
        wrong = records[:, 1:] - mix_words(hashes[:, None] * self._odd)
        return [number & WORD for number in (hashes + wrong.sum(dim=1)).tolist()]

    def _records(self, hashes: Sequence[int]) -> Tensor:
        column = torch.tensor(hashes, dtype=torch.int64)[:, None]
        return torch.cat((column, mix_words(column * self._odd)), dim=1)
