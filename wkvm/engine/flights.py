"""Steps of a GPU that were launched: what comes back of them, and what it says of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from wkvm.core.errors import RequestError, WkvmError
from wkvm.core.plan import StepPlan
from wkvm.core.request import Logprobs
from wkvm.engine.constraints import Choices
from wkvm.engine.logit_rows import to_logprobs
from wkvm.engine.page_mover import Job
from wkvm.engine.pooling import PooledOnTheWay
from wkvm.engine.state_mover import Copy
from wkvm.engine.transfers import Mark


@dataclass(frozen=True, slots=True)
class Sampled:
    """Chosen ids on their way: the plan's rows, and ``DecodeGraphs.out`` of at least as many."""

    rows: Sequence[int]
    out: Tensor


@dataclass(frozen=True, slots=True)
class Scored:
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
class Saving:
    """A state on its way to the host, and the penalty counts that go with it.

    Attributes:
        job, image: of one that comes late: what moves its full pages, and what all goes into.
    """

    ticket: int
    copy: Copy
    counts: Tensor | None = None
    job: Job | None = None
    image: Tensor | None = None


@dataclass(slots=True)
class Flight:
    """A step that was launched: what comes back, and what the host knows of it already."""

    plan: StepPlan
    held: Sequence[int]
    choices: Choices
    sampled: list[Sampled] = field(default_factory=list[Sampled])
    scored: list[Scored] = field(default_factory=list[Scored])
    scored_prompts: list[Scored] = field(default_factory=list[Scored])
    pooled: list[tuple[Sequence[int], PooledOnTheWay]] = field(
        default_factory=list[tuple[Sequence[int], PooledOnTheWay]]
    )
    failed: dict[int, WkvmError] = field(default_factory=dict[int, WkvmError])
    saves: list[Saving] = field(default_factory=list[Saving])
    unsaved: dict[int, WkvmError] = field(default_factory=dict[int, WkvmError])
    finite: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    end: Mark | None = None

    def pool(self, places: Sequence[int], found: PooledOnTheWay) -> None:
        """Note what comes back for the embeddings of the plan's rows at ``places``."""
        self.pooled.append((places, found))


def by_row(scored: list[Scored], broken: set[int]) -> dict[int, list[Logprobs]]:
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


def pooled_by_row(flight: Flight, broken: set[int]) -> dict[int, tuple[bytes, ...]]:
    """What ``StepResult.pooled`` holds; rows that are not finite enter ``broken``."""
    pooled = dict[int, tuple[bytes, ...]]()
    for places, found in flight.pooled:
        values, not_finite = found.read(places)
        pooled |= values
        broken |= not_finite
    return pooled


def follow(flight: Flight, ids: list[int | None]) -> tuple[frozenset[int], dict[int, RequestError]]:
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
