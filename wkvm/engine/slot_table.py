"""What a device knows of the requests in its slots, so that it samples without the host.

A slot's life on the device:

1. ``start`` with the first rows of its prompt writes the slot's record: the parameters, no ids.
   A request that goes on from a state may begin with a decode step: then the record has the id
   that it is fed.
2. ``feed`` with each chunk of the prompt tells the penalties its ids. Nothing else changes.
3. ``end`` with the logits of the prompt's last token samples the first id into the record.
4. In each decode step ``begin`` gives that id to the model, and ``end`` samples the next one.
   Both only launch kernels on tensors that stay where they are, so a captured graph may hold them.
5. Once ``end`` has sampled a stop id or the last one of ``max_tokens``, or has met logits that are
   not finite, the slot is done: ``begin`` passes its rows over, and its state stays as it is.
6. ``forget`` releases what is kept for the slot. A record that held an address of it is done and
   empty from then on, so that a row that is planned for the slot all the same, as after a
   ``start`` that failed, writes to nothing of others. Other records stay until the next ``start``.

All of it is for one stream: a step that was launched before ``forget`` may still read what is
released, since the allocator gives it to later work of the same stream alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wkvm.core.plan import RowPlan
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Entry
from wkvm.kernels import device_sampling
from wkvm.kernels.device_sampling import records as fields
from wkvm.kernels.sampling import SMALLEST, scales


@dataclass(slots=True)
class _Seen:
    """Penalty counts of a slot: one tensor for what ``records.COUNTS`` describes."""

    whole: Tensor
    counts: Tensor
    marks: Tensor
    decay: float


class SlotTable:
    """Parameters and progress of each slot, on the device; see the module for a slot's life.

    Attributes:
        records: ``[N, WORDS]`` int64 on the device, see ``wkvm.kernels.device_sampling.records``.

    ``max_rows`` bounds the rows of one ``end``. Memory: 256 bytes a slot; 36 KiB for each of
    ``max_rows``, if there are 65,536 ids; and for slots whose requests have them, 4 V bytes for
    bias or allowed ids, 5 V for penalties, and 4 V if they have any of these, ``min_tokens`` or a
    grammar.
    """

    def __init__(
        self, n_slots: int, vocab_size: int, device: torch.device | str, *, max_rows: int = 1024
    ) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self.records = torch.zeros((n_slots, fields.WORDS), dtype=torch.int64, device=device)
        self.records[:, fields.IS_DONE] = 1
        self._unused = self.records[0].clone()
        self._scratch = device_sampling.Scratch(max_rows, vocab_size, device)
        self._seen = dict[int, _Seen]()
        self._kept = dict[int, list[Tensor]]()

    @property
    def n_remembered(self) -> int:
        """How many slots hold penalty counts."""
        return len(self._seen)

    def start(self, rows: Sequence[RowPlan]) -> None:
        """Write the records of fresh rows: one transfer, which is not waited for.

        Bias, allowed ids, penalties and more than ``MAX_INLINE_STOPS`` stop ids cost a transfer
        and a tensor more, each.

        Raises:
            torch.OutOfMemoryError: no room for these tensors; no record of them was written.
        """
        if not rows:
            return
        table = np.zeros((len(rows), 1 + fields.WORDS), np.int64)
        self.forget(row.slot for row in rows)
        for at, row in enumerate(rows):
            table[at, 0] = row.slot
            self._write(row, table[at, 1:])
        temperature = torch.tensor([row.params.temperature for row in rows], dtype=torch.float64)
        scale = torch.where(temperature == 0, 0.0, scales(temperature.float()))
        table[:, 1 + fields.SCALE] = scale.double().numpy().view(np.int64)
        uploaded = self._upload(table)
        self.records.index_copy_(0, uploaded[:, 0], uploaded[:, 1:])

    def feed(self, rows: Iterable[RowPlan]) -> None:
        """Tell the penalties which ids the rows of prompts absorb, in order."""
        pairs = list[tuple[int, int]]()
        outputs = list[tuple[_Seen, int]]()
        for row in rows:
            seen = self._seen.get(row.slot)
            if seen is None:
                continue
            n_of_prompt = min(max(row.n_prompt - row.position, 0), len(row.ids))
            address = seen.whole.data_ptr()
            pairs += [(address, token_id) for token_id in set(row.ids[:n_of_prompt])]
            outputs += [(seen, token_id) for token_id in row.ids[n_of_prompt:]]
        if pairs:
            addresses, ids = self._upload(np.array(pairs, np.int64).T.copy())
            device_sampling.mark(addresses, ids, self._vocab_size)
        for seen, token_id in outputs:
            seen.counts *= seen.decay
            seen.counts[token_id] += 1
            seen.marks[token_id] = fields.IN_SEQUENCE | fields.IN_OUTPUT

    def forget(self, slots: Iterable[int]) -> None:
        """Release what is kept for slots that were freed."""
        for slot in slots:
            seen, kept = self._seen.pop(slot, None), self._kept.pop(slot, None)
            if seen is not None or kept is not None:
                # No allocation: this comes before each start, also where there is no memory left.
                self.records[slot].copy_(self._unused)

    def remembered(self, slot: int) -> Tensor | None:
        """The penalty counts of a slot, for ``read``: on the device, written by later steps.

        None if its request has no penalties.
        """
        seen = self._seen.get(slot)
        return None if seen is None else seen.whole

    def read(self, whole: Tensor) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        """The counts of the output by id, and all ids, of what ``remembered`` gave, on the host."""
        counts, marks = self._counts_and_marks(whole)
        output = (marks & fields.IN_OUTPUT).nonzero()[:, 0]
        by_id = zip(output.tolist(), counts[output].tolist(), strict=True)
        return tuple(by_id), frozenset(marks.nonzero()[:, 0].tolist())

    def begin(self, slots_in: Tensor, token_ids: Tensor, slots: Tensor) -> None:
        """Launch what says which id each row of a decode step is fed; see the kernels' ``begin``.

        Args:
            slots_in: ``[B]`` int32; negative for pad rows.
            token_ids: ``[B]`` int64; written, 0 for rows that do not run.
            slots: ``[B]`` int32; written: ``slots_in``, but -1 for rows whose slot is done.
        """
        device_sampling.begin(slots_in, self.records, token_ids, slots)

    def end(
        self,
        logits: Tensor,
        slots: Tensor,
        masks: Tensor,
        has_mask: Tensor,
        out_ids: Tensor,
        out_flags: Tensor,
    ) -> None:
        """Launch what samples an id for each row; see the kernels' ``sample``.

        Args:
            logits: ``[B, V]`` float32, as the model gave them; left as they were.
            slots: ``[B]`` int32, as ``begin`` wrote them; negative rows are passed over.
            masks, has_mask: ``[B, ceil(V / 32)]`` int32 and ``[B]`` bool: what grammars allow.
            out_ids: ``[B]`` int64; written.
            out_flags: ``[B]`` uint8; written, bits of ``records``.
        """
        device_sampling.sample(
            logits, slots, self.records, masks, has_mask, self._scratch, out_ids, out_flags
        )

    def _write(self, row: RowPlan, words: NDArray[np.int64]) -> None:
        params, size = row.params, self._vocab_size
        reals = words.view(np.float64)
        is_decode = row.position >= row.n_prompt
        n_start = 0 if row.entry is None else row.entry.n_start
        words[fields.POSITION] = n_start + (row.position + 1 if is_decode else row.n_prompt)
        words[fields.NEXT_ID] = row.ids[0] if is_decode else 0
        words[fields.N_OUTPUT] = row.n_output
        words[fields.PENDING] = -1
        words[fields.TOP_K] = params.top_k or size
        reals[fields.TOP_P] = params.top_p
        reals[fields.MIN_P] = params.min_p
        words[fields.SEED] = _signed(row.seed)
        words[fields.BRANCH] = _signed(row.branch)
        words[fields.MIN_TOKENS] = params.min_tokens
        words[fields.MAX_TOKENS] = params.max_tokens
        words[fields.N_STOPS] = len(row.stops)
        words[fields.STOPS] = self._stops(row, words)
        words[fields.BIAS] = self._bias(row.slot, params)
        if (
            words[fields.BIAS]
            or params.has_penalties
            or params.min_tokens
            or row.constraint is not None
            or row.awaits_constraint
        ):
            ruled = torch.empty(self._vocab_size, dtype=torch.float32, device=self._device)
            words[fields.RULED] = self._keep(row.slot, ruled)
        if params.has_penalties:
            words[fields.COUNTS] = self._counts(row)
            reals[fields.REPETITION] = max(float(np.float32(params.repetition_penalty)), SMALLEST)
            reals[fields.PRESENCE] = np.float32(params.presence_penalty)
            reals[fields.FREQUENCY] = np.float32(params.frequency_penalty)
            reals[fields.DECAY] = np.float32(params.penalty_decay)

    def _stops(self, row: RowPlan, words: NDArray[np.int64]) -> int:
        """The address of the row's stop ids, which are put there."""
        stops = np.array(row.stops, np.int64)
        if len(stops) > fields.MAX_INLINE_STOPS:
            return self._keep(row.slot, self._upload(stops))
        words[fields.FIRST_STOP : fields.FIRST_STOP + len(stops)] = stops
        return self.records[row.slot, fields.FIRST_STOP :].data_ptr()

    def _bias(self, slot: int, params: SamplingParams) -> int:
        if not params.logit_bias and params.allowed_ids is None:
            return 0
        bias = np.zeros(self._vocab_size)
        for token_id, value in params.logit_bias:
            bias[token_id] += value
        if params.allowed_ids is not None:
            is_out = np.ones(self._vocab_size, np.bool_)
            is_out[np.array(params.allowed_ids, np.int64)] = False
            bias[is_out] = -np.inf
        return self._keep(slot, self._upload(bias.astype(np.float32)))

    def _counts(self, row: RowPlan) -> int:
        size, entry, decay = (
            self._vocab_size,
            row.entry,
            float(np.float32(row.params.penalty_decay)),
        )
        if entry is None:
            whole = torch.zeros(5 * size, dtype=torch.uint8, device=self._device)
        else:
            whole = self._upload(_penalties_of(entry, size, decay))
        counts, marks = self._counts_and_marks(whole)
        self._seen[row.slot] = _Seen(whole, counts, marks, decay)
        return whole.data_ptr()

    def _counts_and_marks(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        size = self._vocab_size
        return whole[: 4 * size].view(torch.float32), whole[4 * size :]

    def _keep(self, slot: int, tensor: Tensor) -> int:
        self._kept.setdefault(slot, []).append(tensor)
        return tensor.data_ptr()

    def _upload(self, array: NDArray[np.generic]) -> Tensor:
        """A copy on the device, for work of this stream; the host does not wait for it."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        # The allocator of pinned memory hands it out again only when the copy is done.
        return tensor.pin_memory().to(self._device, non_blocking=True)


def _penalties_of(entry: Entry, size: int, decay: float) -> NDArray[np.uint8]:
    """What ``records.COUNTS`` describes, for a request that goes on from a state."""
    whole = np.zeros(5 * size, np.uint8)
    counts, marks = whole[: 4 * size].view(np.float32), whole[4 * size :]
    marks[np.fromiter(entry.seen, np.int64)] = fields.IN_SEQUENCE
    for token_id, count in entry.counts:
        counts[token_id] = count
        marks[token_id] = fields.IN_SEQUENCE | fields.IN_OUTPUT
    for token_id in entry.fed_output:
        counts *= np.float32(decay)
        counts[token_id] += 1
        marks[token_id] = fields.IN_SEQUENCE | fields.IN_OUTPUT
    return whole


def _signed(word: int) -> int:
    """64 bits, read as a signed integer."""
    return word - ((word >> 63) << 64)
