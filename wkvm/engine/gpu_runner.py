"""Plans to results on a GPU, which runs one step while the host prepares the next.

Decode rows are replayed from graphs, prompts after them launched as they come: see
``wkvm.engine.graphs`` and ``wkvm.models.base``. Nothing here waits for the device but
``GpuRunner.collect``, and that for its own step alone. What a decode row absorbs is known on the
device, so the host need not have seen it.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wkvm.core.errors import EngineFailedError, StepFailedError, StepMemoryError, WkvmError
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.start import Save, SavedRecord
from wkvm.engine.constraints import Choices, constrained
from wkvm.engine.faults import fault_of
from wkvm.engine.finite import not_finite, suspects
from wkvm.engine.flights import Flight, Sampled, Saving, Scored, by_row, follow, pooled_by_row
from wkvm.engine.graphs import PAD, DecodeGraphs, Replay, SlotSampler, ids_and_flags, replays_of
from wkvm.engine.images import Images
from wkvm.engine.logit_rows import LogitRows, logit_rows
from wkvm.engine.pooling import pooled_of
from wkvm.engine.row_kinds import fresh_slots, row_kinds, slots_of
from wkvm.engine.state_mover import StateMover
from wkvm.engine.transfers import Beside, Transfers
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
        guest = model.layout.guest
        self._mover = StateMover(
            model.layout.record_bytes,
            model.info.device,
            page_bytes=0 if guest is None else guest.page_bytes,
        )
        self._images = Images(arena, self._mover)
        self._n_mask_words = graphs.masks.shape[1]
        self._slots_there: tuple[int, ...] = ()
        self._has_masks = False
        self._told = set[int]()
        self._lost = dict[int, WkvmError]()
        self._stained = set[int]()
        self._flights = deque[Flight]()

    @property
    def depth(self) -> int:
        """How many plans may be in flight."""
        return DEPTH

    @property
    def loads_beside(self) -> bool:
        """Pages are filled while other steps run."""
        return True

    # --- launch -----------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Begin a step. Never waits for the device.

        If it raises, the requests of the plan are lost and all others are as they were. A
        prompt's forward pass that raises ends the plan's prompts alone: ``collect`` says so, and
        that of their rows in later plans, which are not run.
        """
        finite = {
            one.ticket: self._transfers.down(self._arena.is_finite(one.slot, one.pages).view(1))
            for one in suspects(plan)
        }
        saves, unsaved = self._save(plan.saves)
        if plan.freed:
            self._sampler.forget(plan.freed)
            self._told.difference_update(plan.freed)
            if self._poison_freed:
                self._arena.poison(plan.freed)
        if plan.freed_pages and self._arena.pool is not None:
            self._arena.pool.poison(plan.freed_pages)
        for copy in plan.copies:
            self._arena.copy(copy.source, (copy.target,))
        if plan.grants:
            self._images.grant(plan.grants)
        kinds = row_kinds(plan.rows)
        if kinds.fresh:
            self._start(plan.rows, kinds.fresh)
        failed = dict[int, WkvmError]()
        if self._lost:
            # Planned before the host knew. What their slots' records point to may be released.
            failed |= {
                at: self._lost[row.slot]
                for at, row in enumerate(plan.rows)
                if row.slot in self._lost
            }
            kinds = kinds.without(failed)
        decodes, prompts = kinds.decodes, kinds.prompts
        choices = constrained([plan.rows[at] for at in kinds.held]) if kinds.held else Choices()
        flight = Flight(
            plan, kinds.held, choices, failed=failed, saves=saves, unsaved=unsaved, finite=finite
        )
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
            except Exception as error:
                logger.exception("the prompts of %d rows failed", len(prompts))
                fault = fault_of(error, self._model.info.device)
                if isinstance(fault, EngineFailedError):
                    raise
                flight.failed |= dict.fromkeys(prompts, fault)
                self._lost |= {plan.rows[at].slot: fault for at in prompts}
                self._beside.join()
        flight.end = self._transfers.mark()
        self._flights.append(flight)

    def _save(self, saves: Sequence[Save]) -> tuple[list[Saving], dict[int, WkvmError]]:
        """Send states to the host; those for which it has no memory are told as errors."""
        on_their_way, unsaved = list[Saving](), dict[int, WkvmError]()
        for save in saves:
            counts = self._sampler.remembered(save.slot)
            try:
                saving = self._images.save(save)
                counts = None if counts is None else self._transfers.down(counts)
            except (RuntimeError, MemoryError):  # what pinned memory raises depends on the system
                logger.exception("no memory on the host for a state")
                unsaved[save.ticket] = StepMemoryError()
            else:
                on_their_way.append(replace(saving, counts=counts))
        return on_their_way, unsaved

    def _start(self, rows: Sequence[RowPlan], fresh: Sequence[int]) -> None:
        """Begin requests. The slots of those for which there is no memory are lost."""
        starting = [rows[at] for at in fresh]
        slots = [row.slot for row in starting]
        for slot in slots:
            self._lost.pop(slot, None)
        blank, entries, copies = fresh_slots(starting)
        try:
            if blank:
                self._arena.zero(blank)
            for image, targets in entries:
                with self._mover.up(image) as there:
                    self._arena.fill(there, targets)
            for source, targets in copies:
                self._arena.copy(source, targets)
            self._sampler.start(starting)
        except torch.OutOfMemoryError:
            if len(fresh) > 1:
                for at in fresh:
                    self._start(rows, [at])
            else:
                logger.warning("no memory on the device to begin a request")
                self._lost |= dict.fromkeys(slots, StepMemoryError())
            return
        for row in starting:
            (self._told.discard if row.params.logprobs is None else self._told.add)(row.slot)

    def _replay(self, flight: Flight, replay: Replay, places: Sequence[int]) -> None:
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

    def _absorb(self, flight: Flight, places: Sequence[int]) -> None:
        """Absorb the prompts at ``places``, and sample after those that end.

        The forward pass runs beside the decode rows, which saves a twentieth of both: see
        ``bench/NOTES.md``.
        """
        rows = [flight.plan.rows[at] for at in places]
        self._sampler.feed(rows)
        wanted = logit_rows(rows)
        with self._beside.queue():
            pooled = pooled_of(rows, self._model)
            slots = tuple(row.slot for row in rows)
            batch = Batch(
                token_ids=self._transfers.up([token_id for row in rows for token_id in row.ids]),
                slots=self._transfers.up(slots, torch.int32),
                lengths=tuple(len(row.ids) for row in rows),
                slot_list=slots,
                logit_rows=self._transfers.up(wanted.tokens),
                hidden=pooled,
            )
            logits = self._model.forward(batch, self._arena.views)
            if pooled is not None:
                flight.pool(places, pooled.finish(self._arena.views, self._transfers.down))
        self._beside.join()
        self._sample(flight, places, wanted, logits)
        self._score_prompts(flight, places, wanted, logits)

    def _sample(
        self, flight: Flight, places: Sequence[int], wanted: LogitRows, logits: Tensor
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

    def _set_masks(self, flight: Flight, places: Sequence[int]) -> None:
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

    def _take_ids(self, flight: Flight, places: Sequence[int], logits: Tensor) -> None:
        """Send the ids that were just chosen to the host, and what is to be told of them."""
        graphs, rows = self._graphs, flight.plan.rows
        flight.sampled.append(Sampled(places, self._transfers.down_again(graphs.out)))
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
        self, flight: Flight, places: Sequence[int], wanted: LogitRows, logits: Tensor
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
    ) -> Scored:
        down = self._transfers.down
        most = min(max(n_top), logits.shape[1])
        of_ids, ranks, top_ids, of_top = map(down, logprobs(logits, ids, most))
        return Scored(owners, n_top, down(ids), finite, (of_ids, ranks, top_ids, of_top))

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
        self._images.turn(waits=not plan.rows)
        come, late = self._images.come(), self._images.hold(flight.saves)
        saved = dict[int, SavedRecord]()
        self._stained.update(ticket for ticket, ok in flight.finite.items() if not bool(ok))
        stained = self._stained.intersection(copy.ticket for copy in plan.copies)
        flight.unsaved |= {ticket: not_finite() for ticket in stained}
        for saving in (*come, *flight.saves):
            if saving.ticket in late:
                continue
            if saving.ticket in self._stained:
                flight.unsaved[saving.ticket] = not_finite()
                continue
            try:
                saved[saving.ticket] = self._saved(saving)
            except StepFailedError as error:
                flight.unsaved[saving.ticket] = error
        self._stained.difference_update(flight.unsaved)
        loaded, unloaded = self._images.loaded()
        prompt_logprobs = by_row(flight.scored_prompts, broken)
        complete, unmet = follow(flight, ids)
        return StepResult(
            token_ids=tuple(ids),
            pooled=pooled_by_row(flight, broken),
            not_finite=frozenset(broken),
            logprobs={
                at: scores[0]
                for at, scores in by_row(flight.scored, broken).items()
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
            late=late,
            loaded=loaded,
            unloaded=unloaded,
        )

    def _saved(self, saving: Saving) -> SavedRecord:
        image = self._images.image_of(saving)
        if saving.counts is None:
            return SavedRecord(image)
        return SavedRecord(image, *self._sampler.read(saving.counts))
