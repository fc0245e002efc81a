"""A model without weights, whose next id depends on every id before it and on their order.

The state is a hash of the whole token log, an exact integer. A slot that was not zeroed, a row
that read its neighbour's slot, a token lost, doubled or out of order: each changes the hash
and with it, all but certainly, the ids. ``fake_continuation`` says what should come out, by
the same definition over Python integers and without an engine.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from wkvm.core.layout import (
    GUEST_PAGES,
    GUEST_TABLE,
    GUEST_TOKENS,
    PAGE_TOKENS,
    GuestSpec,
    StateLayout,
    TensorSpec,
    guest_tokens,
)
from wkvm.models.base import Batch, ModelInfo, StateViews

WORD = 2**64 - 1


def mix(number: int) -> int:
    """One of the usual 64-bit finalizers: every bit of the result depends on every bit."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & WORD
    return number ^ (number >> 31)


def absorb(state: int, token_id: int) -> int:
    """The hash after one more token. The empty sequence has the hash 0."""
    return mix((state + 0x9E3779B97F4A7C15 * (token_id + 1)) & WORD)


def state_of(ids: Sequence[int]) -> int:
    """The hash of a token log."""
    state = 0
    for token_id in ids:
        state = absorb(state, token_id)
    return state


def fake_logits(ids: Sequence[int], vocab_size: int = 64) -> list[float]:
    """The logits after a token log: multiples of 1/512 in [0, 8), exact in float32."""
    state = state_of(ids)
    return [(mix(state ^ (token_id + 1)) >> 52) / 512 for token_id in range(vocab_size)]


def fake_continuation(prompt: Sequence[int], n: int, vocab_size: int = 64) -> list[int]:
    """The ``n`` ids that greedy decoding gives after ``prompt``, without a stop."""
    ids = list(prompt)
    for _ in range(n):
        logits = fake_logits(ids, vocab_size)
        ids.append(logits.index(max(logits)))
    return ids[len(prompt) :]


def hidden_of(state: int) -> float:
    """The hidden state, of one channel, after a token that left this hash."""
    return (state >> 40) / 2**20 - 8


class Weightless:
    """What models without weights have in common: all but how they absorb ids.

    Its logits are those of ``fake_logits``.
    """

    def __init__(
        self,
        name: str,
        tensors: tuple[TensorSpec, ...],
        *,
        vocab_size: int,
        eos_ids: tuple[int, ...],
        digest: str,
    ) -> None:
        self._ids = torch.arange(1, vocab_size + 1)
        self._layout = StateLayout(tensors)
        self._info = ModelInfo(
            name=name,
            vocab_size=vocab_size,
            n_layers=1,
            width=1,
            n_heads=1,
            head_size=1,
            n_parameters=0,
            weight_bytes=0,
            dtype="float32",
            device="cpu",
            digest=digest,
            eos_ids=eos_ids,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def layout(self) -> StateLayout:
        return self._layout

    def decode_step(self, n_rows: int, *, apart: bool = False) -> None:
        """It has none."""

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        return 0

    def capture_prompts(self, states: StateViews) -> None:
        """Nothing is captured."""

    def prompt_graph_bytes(self) -> int:
        """Zero."""
        return 0

    def logits(self, after: list[int], stained: list[float], wanted: list[int]) -> Tensor:
        """After the tokens that are wanted, of which these are the hashes; stains are added."""
        hashes = torch.tensor([signed(after[at]) for at in wanted], dtype=torch.int64)
        stains = torch.tensor([stained[at] for at in wanted], dtype=torch.float32)
        mixed = mix_words(hashes[:, None] ^ self._ids)
        return ((mixed >> 52) & 0xFFF).to(torch.float32) / 512 + stains[:, None]


class FakeModel(Weightless):
    """The model of ``fake_continuation``, over an arena.

    Attributes:
        before_forward: called with each batch first; may raise, block, or look.
        n_forwards: how many batches came.
    """

    def __init__(
        self,
        vocab_size: int = 64,
        eos_ids: tuple[int, ...] = (),
        before_forward: Callable[[Batch], None] | None = None,
    ) -> None:
        tensors = (TensorSpec("fake.hash", (1,), "int64"), TensorSpec("fake.zero", (3,), "float32"))
        super().__init__("fake", tensors, vocab_size=vocab_size, eos_ids=eos_ids, digest="0" * 64)
        self.before_forward = before_forward
        self.n_forwards = 0

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        self.n_forwards += 1
        if self.before_forward is not None:
            self.before_forward(batch)
        token_ids = batch.token_ids.tolist()
        hashes, zeros = states["fake.hash"], states["fake.zero"]
        after = list[int]()
        poison = list[float]()
        for slot, length in zip(batch.slot_list, batch.lengths, strict=True):
            ids = token_ids[len(after) : len(after) + length]
            if slot < 0:
                after += [0] * length
                poison += [0.0] * length
                continue
            state = int(hashes[slot, 0]) & WORD
            for token_id in ids:
                state = absorb(state, token_id)
                after.append(state)
            hashes[slot, 0] = signed(state)
            # Zero, unless the slot was poisoned and not zeroed.
            poison += [float(zeros[slot].sum())] * length
        if batch.hidden is not None:
            batch.hidden.take(torch.tensor([[hidden_of(one)] for one in after]), lambda x: x)
        return self.logits(after, poison, batch.logit_rows.tolist())


class Entries:
    """What a model without weights keeps in pages, and how it reads it.

    Each token has an entry in the pages, a function of the token and its position. A record keeps
    the sum of all entries; a step reads them all again. So a page that is stale, lost, another's,
    or in another place is seen.

    Attributes:
        tensors: that a record has for it.
        guest: what a page is.
    """

    tensors = (TensorSpec("fake.sum", (1,), "int64"), guest_tokens())
    guest = GuestSpec(n_layers=2, n_parts=2, n_heads=1, head_dim=2, dtype="float32")

    def __init__(self) -> None:
        self._odd = torch.arange(3, 19, 2)

    def attend(self, states: StateViews, slot: int, ids: Tensor) -> int:
        """Write the entries of ``ids``, after reading all before them.

        Returns:
            By what the pages differ from what they should hold: a word, 0 for nothing.
        """
        counts, sums = states[GUEST_TOKENS], states["fake.sum"]
        n = int(counts[slot])
        wrong = self._sum_of(states, slot, n) - int(sums[slot])
        places = torch.arange(n, n + len(ids))
        words = mix_words((ids + 1) * 8 + places * signed(0x9E3779B97F4A7C15))
        entries = (mix_words(words[:, None] + self._odd) >> 48 & 0xFFFF).to(torch.float32)
        pages, table = states[GUEST_PAGES], states[GUEST_TABLE]
        at = table[slot, places // PAGE_TOKENS].long()
        assert int(at.min()) >= 0, "a token that has no page"
        pages[at, :, :, places % PAGE_TOKENS] = entries.view(len(ids), 2, 2, 1, 2)
        sums[slot] += self._digest(entries, places)
        counts[slot] = n + len(ids)
        return wrong & WORD

    def _sum_of(self, states: StateViews, slot: int, n: int) -> int:
        """The entries of the first ``n`` tokens, as the pages have them."""
        n_pages = -(-n // PAGE_TOKENS)
        held = states[GUEST_PAGES][states[GUEST_TABLE][slot, :n_pages].long()]
        entries = held.permute(0, 3, 1, 2, 4, 5).reshape(-1, 8)[:n]
        return int(self._digest(entries, torch.arange(n)))

    def _digest(self, entries: Tensor, places: Tensor) -> Tensor:
        bits = entries.view(torch.int32).to(torch.int64)
        return mix_words((bits * self._odd).sum(dim=1) + places * 7).sum()


class GuestModel(FakeModel):
    """The same with a guest, and the same ids as long as its pages hold what they should."""

    def __init__(
        self,
        vocab_size: int = 64,
        eos_ids: tuple[int, ...] = (),
        before_forward: Callable[[Batch], None] | None = None,
    ) -> None:
        super().__init__(vocab_size, eos_ids, before_forward)
        self._entries = Entries()
        tensors = (*self._layout.tensors, *Entries.tensors)
        self._layout = StateLayout(tensors, Entries.guest)

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        token_ids, start = batch.token_ids, 0
        for slot, length in zip(batch.slot_list, batch.lengths, strict=True):
            if slot >= 0:
                wrong = self._entries.attend(states, slot, token_ids[start : start + length])
                states["fake.hash"][slot] += signed(wrong)
            start += length
        return super().forward(batch, states)


def signed(word: int) -> int:
    """64 bits, read as a signed integer."""
    return word - ((word >> 63) << 64)


def mix_words(numbers: Tensor) -> Tensor:
    """``mix``, over int64 that stands for unsigned 64-bit numbers."""
    numbers = (numbers ^ _shifted(numbers, 30)) * signed(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ _shifted(numbers, 27)) * signed(0x94D049BB133111EB)
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, n: int) -> Tensor:
    return (numbers >> n) & ((1 << (64 - n)) - 1)
