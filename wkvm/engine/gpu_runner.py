"""Plans to results on a GPU, which runs one step while the host prepares the next.

Decode rows are replayed from graphs, prompts after them launched as they come: see
``wkvm.engine.graphs`` and ``wkvm.models.base``. Nothing here waits for the device but
``GpuRunner.collect``, and that for its own step alone. What a decode row absorbs is known on the
device, so the host need not have seen it.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from wkvm.core.errors import RequestError, StepFailedError, WkvmError
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.request import Logprobs
from wkvm.core.start import Save, SavedRecord
from wkvm.engine.constraints import Choices, constrained
from wkvm.engine.graphs import PAD, DecodeGraphs, Replay, StepSampler, ids_and_flags, replays_of
from wkvm.engine.logit_rows import LogitRows, logit_rows, to_logprobs
from wkvm.engine.row_kinds import fresh_slots, row_kinds, slots_of
from wkvm.engine.state_mover import Copy, StateMover
from wkvm.engine.transfers import Beside, Mark, Transfers
from wkvm.kernels.sampling import finite_rows, logprobs
from wkvm.models.base import Batch, Model
from wkvm.state.arena import Arena

logger = logging.getLogger(__name__)

DEPTH = 2
"""Steps in flight: one that runs, and one that the device finds ready when that ends."""

NOT_FINITE = 1
"""The bit in the flags of a row whose logits hold NaN or infinity."""

SCORE_BLOCK = 64
"""Rows of logits whose log probabilities are computed at a time, to bound the memory."""


class SlotSampler(StepSampler, Protocol):
    """The sampler, with all it knows by slot on the device."""

    def start(self, rows: Sequence[RowPlan]) -> None:
        """Take the parameters of requests that begin."""
        ...

    def feed(self, rows: Sequence[RowPlan]) -> None:
        """Take note of the prompt ids of these rows."""
        ...

    def forget(self, slots: Sequence[int]) -> None:
        """Give up what is kept for slots that were freed."""
        ...

    def remembered(self, slot: int) -> Tensor | None:
        """The penalty counts of a slot, on the device; None if it has none."""
        ...

    def read(self, whole: Tensor) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        """The same on the host, by id: see ``SavedRecord``."""
        ...


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Chosen ids on their way: the plan's rows, and ``DecodeGraphs.out`` of at least as many."""

    rows: Sequence[int]
    out: Tensor


@dataclass(frozen=True, slots=True)
class _Scored:
    """Log probabilities on their way.

    Attributes:
        rows: the plan's rows, one for each id that was scored.
        n_top: how many of the most likely ids to tell.
        ids: the ids that were scored.
        finite: whether the logits were; None where the flags of the sampled ids say it.
        tensors: as ``logprobs`` gives them.
    """

    rows: list[int]
    n_top: list[int]
    ids: Tensor
    finite: Tensor | None
    tensors: tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class _Saving:
    """A state on its way to the host, and the penalty counts that go with it."""

    ticket: int
    copy: Copy
    counts: Tensor | None


@dataclass(slots=True)
class _Flight:
    """A step that was launched: what comes back, and what the host knows of it already."""

    plan: StepPlan
    held: Sequence[int]
    choices: Choices
    sampled: list[_Sampled] = field(default_factory=list[_Sampled])
    scored: list[_Scored] = field(default_factory=list[_Scored])
    scored_prompts: list[_Scored] = field(default_factory=list[_Scored])
    failed: dict[int, WkvmError] = field(default_factory=dict[int, WkvmError])
    saves: list[_Saving] = field(default_factory=list[_Saving])
    unsaved: dict[int, WkvmError] = field(default_factory=dict[int, WkvmError])
    end: Mark | None = None


class GpuRunner:
    """Runs steps of one model over one arena; always on the same thread.

    Args:
        sampler: of as many slots as the arena.
        graphs: over the arena and the sampler, captured.
        poison_freed: fill freed slots with NaN.
    """

    def __init__(
        self,
        model: Model,
        arena: Arena,
        sampler: SlotSampler,
        graphs: DecodeGraphs,
        *,
        poison_freed: bool,
    ) -> None:
        self._model = model
        self._arena = arena
        self._sampler = sampler
        self._graphs = graphs
        self._poison_freed = poison_freed
        self._transfers = Transfers(model.info.device)
        self._beside = Beside(model.info.device)
        self._mover = StateMover(model.layout.record_bytes, model.info.device, self._transfers)
        self._n_mask_words = graphs.masks.shape[1]
        self._slots_there: tuple[int, ...] = ()
        self._has_masks = False
        self._told = set[int]()
        self._lost = set[int]()
        self._flights = deque[_Flight]()

    @property
    def depth(self) -> int:
        """How many plans may be in flight."""
        return DEPTH

    # --- launch -----------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Begin a step. Never waits for the device.

        If it raises, the requests of the plan are lost and all others are as they were. A
        prompt's forward pass that raises ends the plan's prompts alone: ``collect`` says so, and
        that of their rows in later plans, which are not run.
        """
        saves, unsaved = self._save(plan.saves)
        if plan.freed:
            self._sampler.forget(plan.freed)
            self._told.difference_update(plan.freed)
            if self._poison_freed:
                self._arena.poison(plan.freed)
        kinds = row_kinds(plan.rows)
        if kinds.fresh:
            self._start(plan.rows, kinds.fresh)
        failed = dict[int, WkvmError]()
        if self._lost:
            # Planned before the host knew. What their slots' records point to may be released.
            lost = [at for at, row in enumerate(plan.rows) if row.slot in self._lost]
            failed |= dict.fromkeys(lost, StepFailedError())
            kinds = kinds.without(failed)
        decodes, prompts = kinds.decodes, kinds.prompts
        choices = constrained([plan.rows[at] for at in kinds.held]) if kinds.held else Choices()
        flight = _Flight(plan, kinds.held, choices, failed=failed, saves=saves, unsaved=unsaved)
        if prompts:
            self._beside.begin()
        try:
            for replay in replays_of(len(decodes), self._graphs.buckets):
                self._replay(flight, replay, decodes[replay.start : replay.start + replay.n_rows])
        except BaseException:
            self._slots_there = ()
            raise
        if prompts:
            try:
                self._absorb(flight, prompts)
            except Exception:
                logger.exception("the prompts of %d rows failed", len(prompts))
                flight.failed |= dict.fromkeys(prompts, StepFailedError())
                self._lost.update(plan.rows[at].slot for at in prompts)
                self._beside.join()
        flight.end = self._transfers.mark()
        self._flights.append(flight)

    def _save(self, saves: Sequence[Save]) -> tuple[list[_Saving], dict[int, WkvmError]]:
        """Send states to the host; those for which it has no memory are told as errors."""
        on_their_way, unsaved = list[_Saving](), dict[int, WkvmError]()
        for slot, ticket in saves:
            counts = self._sampler.remembered(slot)
            try:
                copy = self._mover.down(self._arena.records[slot])
                counts = None if counts is None else self._transfers.down(counts)
            except (RuntimeError, MemoryError):  # what pinned memory raises depends on the system
                logger.exception("no memory on the host for a state")
                unsaved[ticket] = StepFailedError()
            else:
                on_their_way.append(_Saving(ticket, copy, counts))
        return on_their_way, unsaved

    def _start(self, rows: Sequence[RowPlan], fresh: Sequence[int]) -> None:
        """Begin requests. The slots of those for whose rules there is no memory are lost."""
        starting = [rows[at] for at in fresh]
        slots = [row.slot for row in starting]
        self._lost.difference_update(slots)
        blank, entries = fresh_slots(starting)
        if blank:
            self._arena.zero(blank)
        for record, targets in entries:
            with self._mover.up(record) as there:
                self._arena.fill(there, targets)
        try:
            self._sampler.start(starting)
        except torch.OutOfMemoryError:
            if len(fresh) > 1:
                for at in fresh:
                    self._start(rows, [at])
            else:
                logger.warning("no memory for the penalties, bias or allowed ids of a request")
                self._lost.update(slots)
            return
        for row in starting:
            (self._told.discard if row.params.logprobs is None else self._told.add)(row.slot)

    def _replay(self, flight: _Flight, replay: Replay, places: Sequence[int]) -> None:
        """Decode the plan's rows at ``places``."""
        graphs, rows = self._graphs, flight.plan.rows
        bucket = replay.bucket
        slots = slots_of(rows, places) + (PAD,) * (bucket - len(places))
        if slots != self._slots_there:
            graphs.slots[:bucket].copy_(self._transfers.up(slots, torch.int32))
            self._slots_there = slots
        self._set_masks(flight, places)
        graphs.replay(bucket)
        self._take_ids(flight, places, graphs.logits(bucket))

    def _absorb(self, flight: _Flight, places: Sequence[int]) -> None:
        """Absorb the prompts at ``places``, and sample after those that end.

        The forward pass runs beside the decode rows, which saves a twentieth of both: see
        ``bench/NOTES.md``.
        """
        rows = [flight.plan.rows[at] for at in places]
        self._sampler.feed(rows)
        wanted = logit_rows(rows)
        with self._beside.queue():
            slots = tuple(row.slot for row in rows)
            batch = Batch(
                token_ids=self._transfers.up([token_id for row in rows for token_id in row.ids]),
                slots=self._transfers.up(slots, torch.int32),
                lengths=tuple(len(row.ids) for row in rows),
                slot_list=slots,
                logit_rows=self._transfers.up(wanted.tokens),
            )
            logits = self._model.forward(batch, self._arena.views)
        self._beside.join()
        self._sample(flight, places, wanted, logits)
        self._score_prompts(flight, places, wanted, logits)

    def _sample(
        self, flight: _Flight, places: Sequence[int], wanted: LogitRows, logits: Tensor
    ) -> None:
        graphs, block = self._graphs, self._graphs.buckets[-1]
        for start in range(0, len(wanted.sampling), block):
            some = [places[at] for at in wanted.sampling[start : start + block]]
            at_logits = wanted.sampled[start : start + block]
            of_some = logits.index_select(0, self._transfers.up(at_logits))
            slots = [flight.plan.rows[at].slot for at in some]
            self._set_masks(flight, some)
            n = len(some)
            self._sampler.end(
                of_some,
                self._transfers.up(slots, torch.int32),
                graphs.masks[:n],
                graphs.has_mask[:n],
                graphs.ids[:n],
                graphs.flags[:n],
            )
            self._take_ids(flight, some, of_some)

    def _set_masks(self, flight: _Flight, places: Sequence[int]) -> None:
        """What the grammars of the rows at ``places`` leave to choose from."""
        graphs = self._graphs
        masks = flight.choices.masks
        if not masks:
            if self._has_masks:
                graphs.has_mask.zero_()
                self._has_masks = False
            return
        by_place = {flight.held[at]: mask for at, mask in masks.items()}
        which = [at for at, place in enumerate(places) if place in by_place]
        has_mask = [int(place in by_place) for place in places]
        graphs.has_mask[: len(places)].copy_(self._transfers.up(has_mask, torch.bool))
        self._has_masks = True
        if which:
            words = self._transfers.words_up(
                [by_place[places[at]] for at in which], self._n_mask_words
            )
            graphs.masks.index_copy_(0, self._transfers.up(which), words)

    def _take_ids(self, flight: _Flight, places: Sequence[int], logits: Tensor) -> None:
        """Send the ids that were just chosen to the host, and what is to be told of them."""
        graphs, rows = self._graphs, flight.plan.rows
        flight.sampled.append(_Sampled(places, self._transfers.down_again(graphs.out)))
        if not self._told:
            return
        asked = [at for at, place in enumerate(places) if rows[place].slot in self._told]
        for start in range(0, len(asked), SCORE_BLOCK):
            some = asked[start : start + SCORE_BLOCK]
            index = self._transfers.up(some)
            owners = [places[at] for at in some]
            n_top = [rows[place].params.logprobs or 0 for place in owners]
            scored = self._scored(owners, n_top, logits.index_select(0, index), graphs.ids[index])
            flight.scored.append(scored)

    def _score_prompts(
        self, flight: _Flight, places: Sequence[int], wanted: LogitRows, logits: Tensor
    ) -> None:
        rows = flight.plan.rows
        for start in range(0, len(wanted.scoring), SCORE_BLOCK):
            at_logits = wanted.scoring[start : start + SCORE_BLOCK]
            some = logits.index_select(0, self._transfers.up(at_logits))
            owners = [places[wanted.owners[at]] for at in at_logits]
            n_top = [rows[place].params.prompt_logprobs or 0 for place in owners]
            ids = self._transfers.up(wanted.scored_ids[start : start + SCORE_BLOCK])
            finite = self._transfers.down(finite_rows(some))
            flight.scored_prompts.append(self._scored(owners, n_top, some, ids, finite))

    def _scored(
        self,
        owners: list[int],
        n_top: list[int],
        logits: Tensor,
        ids: Tensor,
        finite: Tensor | None = None,
    ) -> _Scored:
        down = self._transfers.down
        most = min(max(n_top), logits.shape[1])
        of_ids, ranks, top_ids, of_top = map(down, logprobs(logits, ids, most))
        return _Scored(owners, n_top, down(ids), finite, (of_ids, ranks, top_ids, of_top))

    # --- collect ----------------------------------------------------------------------------

    def collect(self, plan: StepPlan) -> StepResult:
        """Wait until a step has ended, the first of those in flight, and say what came of it.

        Raises:
            ValueError: ``plan`` is not the first in flight.
        """
        if not self._flights or self._flights[0].plan is not plan:
            raise ValueError("the plan is not the first in flight")
        flight = self._flights.popleft()
        if flight.end is not None:
            flight.end.wait()
        ids: list[int | None] = [None] * len(plan.rows)
        broken = set[int]()
        for sampled in flight.sampled:
            n = len(sampled.rows)
            all_ids, all_flags = ids_and_flags(sampled.out)
            chosen, flags = all_ids[:n].tolist(), all_flags[:n].tolist()
            self._transfers.give_back(sampled.out)
            if n == len(ids):
                ids = chosen
            else:
                for at, token_id in zip(sampled.rows, chosen, strict=True):
                    ids[at] = token_id
            broken.update(
                at for at, flag in zip(sampled.rows, flags, strict=True) if flag & NOT_FINITE
            )
        for at in broken:
            ids[at] = None
        saved = {saving.ticket: self._saved(saving) for saving in flight.saves}
        prompt_logprobs = _by_row(flight.scored_prompts, broken)
        complete, unmet = _follow(flight, ids)
        return StepResult(
            token_ids=tuple(ids),
            not_finite=frozenset(broken),
            logprobs={
                at: scores[0]
                for at, scores in _by_row(flight.scored, broken).items()
                if ids[at] is not None
            },
            prompt_logprobs={
                at: tuple(scores) for at, scores in prompt_logprobs.items() if at not in broken
            },
            complete=complete,
            unmet=unmet,
            failed=flight.failed,
            saved=saved,
            unsaved=flight.unsaved,
        )

    def _saved(self, saving: _Saving) -> SavedRecord:
        record = saving.copy.wait()
        if saving.counts is None:
            return SavedRecord(record)
        return SavedRecord(record, *self._sampler.read(saving.counts))


def _by_row(scored: list[_Scored], broken: set[int]) -> dict[int, list[Logprobs]]:
    """Log probabilities by the plan's row; rows that are not finite enter ``broken``."""
    by_row = dict[int, list[Logprobs]]()
    for some in scored:
        if some.finite is not None:
            finite = some.finite.tolist()
            broken.update(at for at, ok in zip(some.rows, finite, strict=True) if not ok)
        values = to_logprobs(some.ids.tolist(), some.n_top, some.tensors)
        for at, value in zip(some.rows, values, strict=True):
            by_row.setdefault(at, []).append(value)
    return by_row


def _follow(
    flight: _Flight, ids: list[int | None]
) -> tuple[frozenset[int], dict[int, RequestError]]:
    """Tell the grammars what was chosen: which outputs are complete, and which grammars fail.

    Rows whose grammars left nothing to choose from lose their ids.
    """
    held, choices = flight.held, flight.choices
    if not held:
        return frozenset(), {}
    for at in (*choices.complete, *choices.unmet):
        ids[held[at]] = None
    chosen = ((at, ids[held[at]]) for at in choices.masks)
    rows = [flight.plan.rows[place] for place in held]
    choices.advance(rows, {at: one for at, one in chosen if one is not None})
    return (
        frozenset(held[at] for at in choices.complete),
        {held[at]: error for at, error in choices.unmet.items()},
    )
