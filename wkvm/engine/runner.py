"""A step from plan to result on a CPU: tensors in, one forward pass, ids out.

Synchronous and without a clock. What the ids mean for a request is the scheduler's business.
"""

from dataclasses import replace

import torch
from torch import Tensor

from wkvm.core.errors import WkvmError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import Logprobs
from wkvm.core.start import Save, SavedRecord
from wkvm.engine.alone import run_alone
from wkvm.engine.constraints import constrained
from wkvm.engine.finite import not_finite, suspects
from wkvm.engine.logit_rows import LogitRows, logit_rows, to_logprobs
from wkvm.engine.pooling import Pooled, pooled_of
from wkvm.engine.row_kinds import fresh_slots
from wkvm.engine.sampler import Sampler
from wkvm.kernels.sampling import finite_rows, logprobs
from wkvm.models.base import Batch, Model
from wkvm.state.arena import Arena
from wkvm.state.guest import to_fill


class Runner:
    """Runs steps of one model over one arena. One at a time, always on the same thread.

    Apart from the arena it holds the sampler's memory, which follows the slots.

    Args:
        poison_freed: fill freed slots with NaN.
        deterministic: make what comes of a row a function of the row, to the bit. It costs a
            forward pass for each row, and one for each ``CUT_MULTIPLE`` tokens of a prompt.
    """

    def __init__(
        self, model: Model, arena: Arena, *, poison_freed: bool, deterministic: bool = False
    ) -> None:
        self._model = model
        self._arena = arena
        self._poison_freed = poison_freed
        self._deterministic = deterministic
        self._device = model.info.device
        self._vocab_size = model.info.vocab_size
        self.sampler = Sampler(self._vocab_size, self._device)

    @property
    def depth(self) -> int:
        """One step at a time: there is no device to be kept busy meanwhile."""
        return 1

    @property
    def loads_beside(self) -> bool:
        """Pages are there before the rows of their plan."""
        return False

    def launch(self, plan: StepPlan) -> None:
        """Nothing: the whole step is run when it is collected."""

    def collect(self, plan: StepPlan) -> StepResult:
        """Run the step."""
        return self.run(plan)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Absorb the ids of every row into its state, and sample where the plan says so.

        What is to be saved is copied first.

        Whatever the model raises comes through. The states of the plan's rows are then
        undefined, and all others are as they were.
        """
        unsaved = self._not_finite(plan)
        saved = {save.ticket: self._save(save) for save in plan.saves if save.ticket not in unsaved}
        if plan.freed:
            self.sampler.forget(plan.freed)
            if self._poison_freed:
                self._arena.poison(plan.freed)
        for copy in plan.copies:
            self._arena.copy(copy.source, (copy.target,))
        if plan.grants or plan.freed_pages:
            self._grant(plan)
        result = run_alone(plan, self._run) if self._deterministic else self._run(plan)
        return replace(result, saved=saved, unsaved=unsaved) if saved or unsaved else result

    def _not_finite(self, plan: StepPlan) -> dict[int, WkvmError]:
        """Why states that are to be kept only if they are finite are not, by ticket."""
        return {
            one.ticket: not_finite()
            for one in suspects(plan)
            if not bool(self._arena.is_finite(one.slot, one.pages))
        }

    def _save(self, save: Save) -> SavedRecord:
        with torch.inference_mode(mode=False):
            image = self._arena.image(save.slot, save.pages)
        counts, seen = self.sampler.remembered(save.slot)
        return SavedRecord(image, counts, seen)

    def _grant(self, plan: StepPlan) -> None:
        pool = self._arena.pool
        if pool is None:
            raise ValueError("pages are granted, and the model has no guest")
        if self._poison_freed and plan.freed_pages:
            pool.poison(plan.freed_pages)
        for grant in plan.grants:
            pool.grant(grant.slot, grant.pages)
            pages, source = to_fill(self._arena.layout, grant)
            if pages:
                pool.fill(pages, source)

    def _run(self, plan: StepPlan) -> StepResult:
        if not plan.rows:
            return StepResult(())
        blank, entries, copies = fresh_slots(plan.rows)
        if blank:
            self._arena.zero(blank)
        for image, slots in entries:
            self._arena.fill(image[: self._arena.layout.record_bytes], slots)
        for source, slots in copies:
            self._arena.copy(source, slots)
        self.sampler.feed(plan.rows)
        wanted = logit_rows(plan.rows)
        pooled = pooled_of(plan.rows, self._model)
        logits = self._model.forward(self._batch(plan, wanted, pooled), self._arena.views)
        result = self._result(plan, wanted, logits)
        return result if pooled is None else self._with_pooled(plan, result, pooled)

    def _with_pooled(self, plan: StepPlan, result: StepResult, pooled: Pooled) -> StepResult:
        found = pooled.finish(self._arena.views, lambda tensor: tensor.cpu())
        values, broken = found.read(range(len(plan.rows)))
        return replace(result, pooled=values, not_finite=result.not_finite | broken)

    def _batch(self, plan: StepPlan, wanted: LogitRows, pooled: Pooled | None) -> Batch:
        token_ids = [token_id for row in plan.rows for token_id in row.ids]
        slots = tuple(row.slot for row in plan.rows)
        return Batch(
            token_ids=self._tensor(token_ids),
            slots=torch.tensor(slots, dtype=torch.int32, device=self._device),
            lengths=tuple(len(row.ids) for row in plan.rows),
            slot_list=slots,
            logit_rows=self._tensor(wanted.tokens),
            hidden=pooled,
        )

    def _result(self, plan: StepPlan, wanted: LogitRows, logits: Tensor) -> StepResult:
        ids: list[int | None] = [None] * len(plan.rows)
        if not wanted.tokens:
            return StepResult(token_ids=tuple(ids))
        rows = [plan.rows[at] for at in wanted.sampling]
        all_sample = len(wanted.sampled) == len(wanted.tokens)
        to_sample = logits if all_sample else logits[self._tensor(wanted.sampled)]
        choices = constrained(rows)
        chosen = self.sampler.choose(rows, to_sample, choices.masks) if rows else self._tensor([])
        host = torch.cat((chosen, finite_rows(logits).to(torch.int64))).tolist()
        chosen_ids, finite = host[: len(rows)], host[len(rows) :]
        broken = frozenset(
            owner for owner, is_finite in zip(wanted.owners, finite, strict=True) if not is_finite
        )
        for at, token_id in zip(wanted.sampling, chosen_ids, strict=True):
            if at not in broken:
                ids[at] = token_id
        places = wanted.sampling
        for at in (*choices.complete, *choices.unmet):
            ids[places[at]] = None
        finite_ids = ((at, ids[places[at]]) for at in choices.masks)
        choices.advance(rows, {at: one for at, one in finite_ids if one is not None})
        return StepResult(
            token_ids=tuple(ids),
            not_finite=broken,
            logprobs=self._sampled_logprobs(plan, wanted, logits, ids),
            prompt_logprobs=self._prompt_logprobs(plan, wanted, logits, broken),
            complete=frozenset(places[at] for at in choices.complete),
            unmet={places[at]: error for at, error in choices.unmet.items()},
        )

    def _sampled_logprobs(
        self, plan: StepPlan, wanted: LogitRows, logits: Tensor, ids: list[int | None]
    ) -> dict[int, Logprobs]:
        asked = list[int]()
        at_logits, token_ids, n_top = list[int](), list[int](), list[int]()
        for at, logit_row in zip(wanted.sampling, wanted.sampled, strict=True):
            n, token_id = plan.rows[at].params.logprobs, ids[at]
            if n is not None and token_id is not None:
                asked.append(at)
                at_logits.append(logit_row)
                token_ids.append(token_id)
                n_top.append(n)
        return dict(zip(asked, self._logprobs(logits, at_logits, token_ids, n_top), strict=True))

    def _prompt_logprobs(
        self, plan: StepPlan, wanted: LogitRows, logits: Tensor, broken: frozenset[int]
    ) -> dict[int, tuple[Logprobs, ...]]:
        owners = [wanted.owners[logit_row] for logit_row in wanted.scoring]
        n_top = [plan.rows[at].params.prompt_logprobs or 0 for at in owners]
        values = self._logprobs(logits, wanted.scoring, wanted.scored_ids, n_top)
        by_row = dict[int, list[Logprobs]]()
        for at, value in zip(owners, values, strict=True):
            if at not in broken:
                by_row.setdefault(at, []).append(value)
        return {at: tuple(of_row) for at, of_row in by_row.items()}

    def _logprobs(
        self, logits: Tensor, at: list[int], token_ids: list[int], n_top: list[int]
    ) -> list[Logprobs]:
        if not at:
            return []
        most = min(max(n_top), self._vocab_size)
        tensors = logprobs(logits[self._tensor(at)], self._tensor(token_ids), most)
        return to_logprobs(token_ids, n_top, tensors)

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
