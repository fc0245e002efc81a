"""A step as two immutable values: what to run, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wkvm.core.errors import RequestError, WkvmError
from wkvm.core.grammar import Constraint
from wkvm.core.request import Logprobs
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Copy, Entry, Grant, Save, SavedRecord

POOLED_UNIT = 2.0**-24
"""In what sums of hidden states are counted. A mean is exact to half of it."""


class RowPlan(NamedTuple):
    """One request's share of a step.

    A named tuple because every running request makes one in every step: a frozen
    dataclass of this size takes four times as long to construct.

    Attributes:
        request_id: whose row it is.
        slot: where its state lives. No two rows of a plan share one.
        ids: tokens to absorb, in order. Empty where it is the one id that the row of this slot in
            the plan before samples, and which is still on its way: whoever runs the step has it.
        position: how many of the request's tokens the state has absorbed before this step.
        n_prompt: length of the prompt; ids at positions from here on are output.
        fresh: the state starts from zero or from ``entry``, and so does the sampler's memory of
            the slot.
        samples: whether an id is sampled after the last of ``ids``.
        n_output: how many ids the request has produced so far.
        params: how to sample.
        seed, branch: with the position, the key of the row's random numbers.
        next_id: the prompt id after ``ids``, if prompt log probabilities are wanted
            and there is one; the logits of the last of ``ids`` score it.
        banned_ids: must not be sampled: the request's stops, before its ``min_tokens``.
            Where plans are run ahead, the same is said by ``stops`` and ``params.min_tokens``.
        constraint: what may be sampled, by the request's grammar; whoever runs the step
            advances it. None allows all.
        stops: the ids that end the request once it has ``params.min_tokens`` ids of output.
        awaits_constraint: whether later rows have a constraint, though this one has none yet.
        entry: what a fresh row starts from; None for zero.
    """

    request_id: int
    slot: int
    ids: tuple[int, ...]
    position: int
    n_prompt: int
    fresh: bool
    samples: bool
    n_output: int
    params: SamplingParams
    seed: int
    branch: int
    next_id: int | None = None
    banned_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    stops: tuple[int, ...] = ()
    awaits_constraint: bool = False
    entry: Entry | None = None

    @property
    def n_ids(self) -> int:
        """How many tokens it absorbs, at least 1."""
        return len(self.ids) or 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: rows in the order of the batch, and slots that were freed since the last.

    It is carried out in this order: first ``saves`` are copied, as the plans before left them;
    then ``freed`` are filled with NaN, if that debugging aid is on, and what is kept for them is
    forgotten; then ``copies`` are made; then ``grants`` are carried out in their order, the fresh
    rows are started, and all are run. So a slot may be in all of it: saved for one request and
    handed out to the next. There may be saves, copies or grants and no rows, and nothing at all
    where what plans before began is waited for.

    Attributes:
        freed_pages: pages that were freed, to be filled with NaN if that debugging aid is on.
        grants: of models with a guest, for requests that got slots. Their first rows may come with
            a later plan.
    """

    rows: tuple[RowPlan, ...]
    freed: tuple[int, ...] = ()
    saves: tuple[Save, ...] = ()
    grants: tuple[Grant, ...] = ()
    freed_pages: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Tokens absorbed by all rows of the step."""
        return sum(len(row.ids) or 1 for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a plan, row by row.

    Attributes:
        token_ids: the sampled id of each row; None where none was to be sampled or
            could be.
        not_finite: indices of rows whose logits hold NaN or infinity.
        logprobs: for rows that asked, by row index: those of the sampled id.
        prompt_logprobs: for rows that asked, by row index: those of the prompt ids that
            the step's logits score.
        pooled: for rows that asked, by row index: what their tokens add to an embedding, as
            packed numbers in the order of this machine. Of ``Pooling.MEAN`` the sum of the hidden
            states, int64, as multiples of ``POOLED_UNIT``: so it does not depend on where a prompt
            is cut. Of the others the embedding itself, float32, with the last row of the prompt.
        complete: indices of rows whose grammars let nothing follow, after the id if any.
        unmet: why a row has no id that its grammar allows, by row index.
        failed: what ends a row's request, by row index, where the rest of the step ran.
        saved: the copies of ``StepPlan.saves``, by ticket, and those of plans before that came
            late.
        unsaved: why there is none, by ticket; also of ``StepPlan.copies``.
        late: tickets of ``StepPlan.saves`` whose copies come with the result of a later plan.
        loaded: tickets of grants, of this plan or plans before, whose pages are filled.
        unloaded: why they are not, by ticket.
    """

    token_ids: tuple[int | None, ...]
    not_finite: frozenset[int] = frozenset()
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict[int, Logprobs])
    prompt_logprobs: Mapping[int, tuple[Logprobs, ...]] = field(
        default_factory=dict[int, tuple[Logprobs, ...]]
    )
    pooled: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict[int, tuple[bytes, ...]])
    complete: frozenset[int] = frozenset()
    unmet: Mapping[int, RequestError] = field(default_factory=dict[int, RequestError])
    failed: Mapping[int, WkvmError] = field(default_factory=dict[int, WkvmError])
    saved: Mapping[int, SavedRecord] = field(default_factory=dict[int, SavedRecord])
    unsaved: Mapping[int, WkvmError] = field(default_factory=dict[int, WkvmError])
    late: frozenset[int] = frozenset()
    loaded: frozenset[int] = frozenset()
    unloaded: Mapping[int, WkvmError] = field(default_factory=dict[int, WkvmError])
